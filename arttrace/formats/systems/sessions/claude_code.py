"""Sessions of Claude Code: one JSON object per line, each with its `uuid` and that of the line before it. Pure.

Nothing about it is documented; this reads what files of versions 1.0 to 2.1 hold. An answer is several lines with one
message id, a content block each. The lines form a tree (`parentUuid`): what a call was given is its path from the
root, so that an edited prompt is a branch. Lines without a `uuid` are the program's own books (titles, modes,
snapshots), those of `system` and `progress` are for the person at the screen: neither was said, but for what a command
put out. Sidechains are sub-agents, of newer versions in files of their own (`agent-*.jsonl`), which name the session:
whatever file they come from, they are one run. Answers by the model `<synthetic>` were written by the program: an error
of the API was given to no later call, another is context. So are those that a branched session copied (`forkedFrom`).
What the user said while the model worked is an attachment of its own type, and the user's word; other attachments,
which the model read beside what was said, are counted. The system prompt and the tools are not kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from arttrace.formats.imported_run import ImportedRun, lacks
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import in_openais_form, unread_parts
from arttrace.records import semconv
from arttrace.records.message import joined_text
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.trajectories.identity.session_readings import BEING_WRITTEN, CLAUDE_CODE
from arttrace.wire.apis.anthropic.messages import counts
from arttrace.wire.span_attributes import usage_attributes

KIND = "claude code sessions"
_ELSEWHERE = "sub-agents, unless their own files (agent-*.jsonl) are imported too"
_NOT_SAID = {"system", "progress", "summary"}
_BY_THE_PROGRAM = "<synthetic>"
_PUT_OUT = "local_command"
"""What a command of the program put out, which the next call is given as the user's word."""
_QUEUED = "queued_command"
"""What the user said, or a task in the background, while the model worked."""
_OF_OTHERS = {
    "messages", "traj", "trajectory", "conversation", "conversations", "prompt", "chosen", "preferred_output",
    "request", "steps", "payload", "run_type", "observations",
}  # fmt: skip


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a line of a session."""
    if not isinstance(item.get("type"), str) or _OF_OTHERS & item.keys():
        return False
    books = item["type"] in ("summary", "file-history-snapshot") and ("leafUuid" in item or "messageId" in item)
    return books or isinstance(item.get("sessionId"), str)


class ClaudeSessions:
    """The sessions of one file, read when it has ended."""

    def __init__(self) -> None:
        self._lines: dict[str, dict[str, dict[str, Any]]] = {}
        self._unread = 0

    def take(self, item: dict[str, Any]) -> Iterator[LeftOutItem]:
        """Keeps a line. Raises ValueError for one that was said and has no place."""
        if (told := _told_by_the_way(item)) is not None:
            item = {**item, "type": "user", "message": {"role": "user", "content": told}}
        kind, id, message = item["type"], item.get("uuid"), item.get("message")
        if kind in ("user", "assistant") and not item.get("isVirtual"):
            if not isinstance(id, str) or not isinstance(item.get("sessionId"), str) or not isinstance(message, dict):
                raise ValueError(f"a line of type {kind} has a sessionId, a uuid and a message")
            if _is_by_the_program(item) and item.get("isApiErrorMessage"):
                self._lines.setdefault(item["sessionId"], {})[id] = {"parentUuid": item.get("parentUuid")}
                yield LeftOutItem("errors of the API, which no model said")
                return
            self._lines.setdefault(item["sessionId"], {})[id] = item
            yield from unread_parts([{"role": kind, "content": message.get("content")}])
            return
        if isinstance(id, str) and isinstance(item.get("sessionId"), str):  # only its place in the tree counts
            self._lines.setdefault(item["sessionId"], {})[id] = {"parentUuid": item.get("parentUuid")}
        if kind == "attachment":
            yield LeftOutItem("attachments")
        elif isinstance(id, str) and kind not in _NOT_SAID and not item.get("isVirtual"):
            yield LeftOutItem(f"lines of type {kind[:40]}")

    def miss(self) -> None:
        """A line of the file cannot be read, and so not whose it is."""
        self._unread += 1

    @property
    def count(self) -> int:
        """How many sessions there are."""
        return len(self._lines)

    def finish(self) -> Iterator[Read]:
        """The spans of all sessions."""
        for session, lines in self._lines.items():
            if any("message" in line for line in lines.values()):
                above = {id for line in lines.values() if isinstance(id := line.get("parentUuid"), str)}
                missing = len(above - lines.keys())
                yield from _session(session, lines, lacks(max(missing, self._unread)))
                started = _agents(json_object(line.get("toolUseResult")) for line in lines.values())
                yield from [LeftOutItem(_ELSEWHERE)] * len(started - _agents(lines.values()))


def _agents(lines: Iterable[dict[str, Any]]) -> set[str]:
    """The sub-agents that lines, or results of tools, name."""
    return {id for line in lines if isinstance(id := line.get("agentId"), str)}


def _told_by_the_way(item: dict[str, Any]) -> str | list[Any] | None:
    """What a line that is no message gives the next call as the user's word."""
    attached = json_object(item.get("attachment"))
    told = attached.get("prompt") if attached.get("type") == _QUEUED else None
    if item.get("subtype") == _PUT_OUT and isinstance(item.get("content"), str):
        told = item["content"]
    return told if isinstance(told, (str, list)) and told else None


def _session(session: str, lines: dict[str, dict[str, Any]], missing: dict[str, Any]) -> Iterator[Record]:
    """The spans of one session; what is `missing` of it is said by its own span, or by those of a sub-agent's file."""
    message_lines = [line for line in lines.values() if "message" in line]
    times = [at for line in message_lines if (at := time_ns(line.get("timestamp"))) is not None]
    run = ImportedRun(CLAUDE_CODE, session, start_ns=min(times, default=None))
    answered: dict[str, list[dict[str, Any]]] = {}
    results: dict[str, Any] = {}
    for line in message_lines:
        if line["type"] == "assistant":
            answered.setdefault(_answer_id(line), []).append(line)
        else:
            results |= {id: block for block in _blocks(line["message"].get("content")) if (id := _answers(block))}
    histories = _Histories(answered, results)
    agents: dict[str, _SubAgent] = {}
    seen: set[str] = set()
    final: Any = None
    is_a_part = all(line.get("isSidechain") for line in message_lines)
    for id, parts in answered.items():
        first, last = parts[0], parts[-1]
        if _is_by_the_program(first) or first.get("forkedFrom"):
            continue
        path = _path(first, lines)
        agent = None
        if first.get("isSidechain"):
            key = str(first.get("agentId") or (path[0]["uuid"] if path else first["uuid"]))
            agent = run.agent_id(key)
        message = last["message"]
        blocks = [block for part in parts for block in _blocks(part["message"].get("content"))]
        replies = _said("assistant", blocks) or [{"role": "assistant", "content": ""}]
        replies[-1]["finish_reason"] = finish_reason(message.get("stop_reason"))
        usage = message.get("usage")
        start_ns = time_ns((path[-1] if path else first).get("timestamp"))
        history = histories.of(path)
        places = range(len(history) - 1, -1, -1)
        answer = next((at for at in places if history[at]["role"] == "assistant"), None)
        before = next((_answer_id(line) for line in reversed(path) if line["type"] == "assistant"), "")
        if answer is not None and before not in seen:
            seen.add(before)
            yield from run.results(history, answer, agent=agent, end_ns=start_ns)
        call = run.call(
            id,
            history,
            replies,
            agent=agent,
            start_ns=start_ns,
            end_ns=time_ns(last.get("timestamp")),
            model=message.get("model") if isinstance(message.get("model"), str) else None,
            attributes={
                semconv.RESPONSE_ID: message.get("id"),
                semconv.CONVERSATION_COMPACTED: _is_compacted(path) or None,
                **_usage(json_object(usage)),
            },
        )
        yield call
        if agent is not None:
            agents.setdefault(key, _SubAgent(first.get("attributionAgent"))).did(call)
        else:
            final = replies[-1].get("content")
            final = final if (text := joined_text(final)) is None else text
    for key, one in agents.items():
        lacking = missing if is_a_part else None
        yield from run.agent(key, one.name, start_ns=one.start_ns, end_ns=one.end_ns, attributes=lacking)[1]
    if not missing and _is_being_written(message_lines, answered, results):
        missing = {semconv.INTERRUPTED: BEING_WRITTEN}
    if is_a_part:
        return  # a sub-agent's own file: the run's span comes with the session's
    metadata = {name: value for name in ("version", "gitBranch") if (value := message_lines[0].get(name))}
    yield run.end(task=session, metadata={"session": session, **metadata}, result=final, attributes=missing)


class _SubAgent:
    """What is known of a sub-agent when all its calls are read; newer versions say of which `kind` it is."""

    def __init__(self, kind: Any) -> None:
        self.name = kind if isinstance(kind, str) and kind else "sub-agent"
        self.start_ns: int | None = None
        self.end_ns = 0

    def did(self, call: SpanRow) -> None:
        self.start_ns = call.start_ns if self.start_ns is None else min(self.start_ns, call.start_ns)
        self.end_ns = max(self.end_ns, call.end_ns)


def _is_compacted(path: list[dict[str, Any]]) -> bool:
    """Whether what an answer was given is the first to begin with a summary in the place of what was said before."""
    return any(line.get("isCompactSummary") for line in path) and all(line["type"] != "assistant" for line in path)


def _is_being_written(
    lines: list[dict[str, Any]], answered: dict[str, list[dict[str, Any]]], results: dict[str, Any]
) -> bool:
    """Whether the last answer of a session says nothing yet, waits for tools, or says no reason to stop where others
    do: some versions write none at all."""
    said = [line for line in lines if line["type"] == "assistant" and not line.get("isSidechain")]
    if not said or _is_by_the_program(said[-1]):
        return False
    own = _answer_id(said[-1])
    blocks = json_objects([block for part in answered[own] for block in _blocks(part["message"].get("content"))])
    asked = [block.get("id") for block in blocks if block.get("type") == "tool_use"]
    if asked or not any(block.get("type") == "text" for block in blocks):
        return not all(id in results for id in asked) or not asked
    stops = {id: parts[-1]["message"].get("stop_reason") for id, parts in answered.items()}
    stop = stops.pop(own)
    return lines[-1] is said[-1] and (stop == "tool_use" or (stop is None and any(stops.values())))


def _path(line: dict[str, Any], lines: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines with messages that came before this one, the root first."""
    found: list[dict[str, Any]] = []
    seen = {line["uuid"]}
    parent = line.get("parentUuid")
    while isinstance(parent, str) and parent not in seen and parent in lines:
        seen.add(parent)
        above = lines[parent]
        if "message" in above:
            found.append(above)
        parent = above.get("parentUuid")
    return found[::-1]


class _Histories:
    """The messages of paths. What is said once is one message in all of them: a prompt that grows is known as such."""

    def __init__(self, answered: dict[str, list[dict[str, Any]]], results: dict[str, Any]) -> None:
        self._answered = answered
        self._results = results
        self._known: dict[tuple[str, ...], list[dict[str, Any]]] = {}
        self._given: dict[str, tuple[str, ...]] = {}

    def of(self, path: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Of several tools called at once each has a branch of its own in the file, and only one is on the path: the
        other parts of the answer, and their results, are added."""
        messages: list[dict[str, Any]] = []
        seen_ids: set[str] = set()
        given = {id for line in path if line["type"] == "user" for id in self._results_in(line)}
        added: list[str] = []
        for line in path:
            if line["type"] == "user":
                messages += self._user(line, added)
                added = []
                continue
            id = _answer_id(line)
            if id in seen_ids:
                continue
            seen_ids.add(id)
            messages += self._user(None, added)
            messages += (said := self._assistant(id))
            asked = [call for one in said for call in _ids(one)]
            added = [call for call in asked if call not in given and call in self._results]
        return [*messages, *self._user(None, added)]

    def _results_in(self, line: dict[str, Any]) -> tuple[str, ...]:
        if (found := self._given.get(line["uuid"])) is None:
            blocks = _blocks(line["message"].get("content"))
            found = self._given[line["uuid"]] = tuple(id for block in blocks if (id := _answers(block)))
        return found

    def _user(self, line: dict[str, Any] | None, added: list[str]) -> list[dict[str, Any]]:
        """A line's messages behind the added results."""
        key = ("user", line["uuid"] if line else "", *added)
        if key not in self._known:
            own = _blocks(line["message"].get("content")) if line else []
            self._known[key] = _said("user", [*(self._results[id] for id in added), *own])
        return self._known[key]

    def _assistant(self, id: str) -> list[dict[str, Any]]:
        if (key := ("assistant", id)) not in self._known:
            blocks = [block for part in self._answered[id] for block in _blocks(part["message"].get("content"))]
            self._known[key] = _said("assistant", blocks)
        return self._known[key]


def _answers(block: Any) -> str | None:
    """The tool call that a block is the result of."""
    id = block.get("tool_use_id") if isinstance(block, dict) and block.get("type") == "tool_result" else None
    return id if isinstance(id, str) else None


def _is_by_the_program(line: dict[str, Any]) -> bool:
    return bool(line["message"].get("model") == _BY_THE_PROGRAM)


def _answer_id(line: dict[str, Any]) -> str:
    return str(line["message"].get("id") or line["uuid"])


def _blocks(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [{"type": "text", "text": content}] if isinstance(content, str) else []


def _said(role: str, content: Any) -> list[dict[str, Any]]:
    """A line's message in OpenAI's form, or several; an empty one is none."""
    return in_openais_form({"role": role, "content": content}) if content != [] else []


def _ids(message: dict[str, Any]) -> tuple[str, ...]:
    """Those of the tool calls of an answer."""
    return tuple(str(call["id"]) for call in message.get("tool_calls", ()))


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    return usage_attributes(counts(usage)) if isinstance(usage.get("input_tokens"), int) else {}
