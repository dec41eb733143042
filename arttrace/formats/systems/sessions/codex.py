"""Sessions of the Codex CLI (`rollout-*.jsonl`): lines of `timestamp`, `type` and `payload`. Pure.

`response_item` lines are what was said, in the form of OpenAI's Responses API; `turn_context` names the model, and
`token_count` events follow the call that they count. What the model said in a row, up to the next result of a tool or
word of the user, is one call. Reasoning is kept as its summary where there is one; the rest of it is encrypted. What
the service did itself (a search of the web, an image) stands in the answer as it came. Turns that the user took back
stand in the file and in no later prompt. What another agent said to this one is a user's message here: some versions
write it as the assistant's. A file that goes on from another (`history_base`) is a run of its own, which lacks its
beginning; what the file of a sub-agent, or of a fork, has of its parent is context. Older versions mark no end of what
they copied: its lines have the time of the copy, so that it ends where a line is a second later than the one before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from arttrace.formats.imported_run import SECOND, ImportedRun, hashed, lacks
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.trajectories.identity.session_readings import BEING_WRITTEN, CODEX

KIND = "codex sessions"
_OF_OTHERS = "inter_agent_communication"
_READ = {"session_meta", "response_item", "event_msg", "turn_context", "compacted", _OF_OTHERS}
_NOT_SAID = {"ghost_snapshot", "world_state", "turn_aborted", "token_usage_record", f"{_OF_OTHERS}_metadata"}


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a line of a session."""
    kind = item.get("type")
    return isinstance(kind, str) and isinstance(item.get("payload"), dict) and (kind in _READ or "timestamp" in item)


class CodexSessions:
    """The session of one file; a line of `session_meta` begins another one. `count` is how many have ended."""

    def __init__(self) -> None:
        self._lines: list[dict[str, Any]] = []
        self._unread = 0
        self.count = 0

    def miss(self) -> None:
        """A line of the file cannot be read."""
        self._unread += 1

    def take(self, item: dict[str, Any]) -> Iterator[Read]:
        """Keeps a line; the spans of the session before it, where this begins another."""
        if item["type"] not in _READ:
            if item["type"] not in _NOT_SAID:
                yield LeftOutItem(f"lines of type {item['type'][:40]}")
            return
        if item["type"] == "session_meta" and any(line["type"] == "response_item" for line in self._lines):
            if _copied([*self._lines, item]) > len(self._lines):  # of one further up
                return
            yield from self.finish()
        self._lines.append(item)

    def finish(self) -> Iterator[Read]:
        """The spans of the session."""
        lines, self._lines = self._lines, []
        unread, self._unread = self._unread, 0
        if lines:
            self.count += 1
            copied = _copied(lines)
            if copied == len(lines):
                yield LeftOutItem("sessions that only repeat another")
            else:
                yield from _Session(lines, unread, copied).records()


def _copied(lines: list[dict[str, Any]]) -> int:
    """How many of a session's first lines are copies of another's: all of them where it has none of its own."""
    until = next((place for place, line in enumerate(lines) if line["type"] == "response_item"), len(lines))
    metas = [line["payload"] for line in lines[:until] if line["type"] == "session_meta"]
    if not metas or metas[0].keys() & {"history_base", "subagent_history_start_ordinal"}:
        return 0
    if not metas[0].get("forked_from_id") and len({text_of(meta.get("id")) for meta in metas}) == 1:
        return 0
    before: int | None = None
    for place, line in enumerate(lines):
        at = time_ns(line.get("timestamp"))
        if at is not None:
            if before is not None and not 0 <= at - before <= SECOND:
                return place
            before = at
    return 0 if before is None else len(lines)


class _Session:
    def __init__(self, lines: list[dict[str, Any]], unread: int, copied: int) -> None:
        self._lines = lines
        self._copied = copied
        meta: dict[str, Any] = next((line["payload"] for line in lines if line["type"] == "session_meta"), {})
        self._meta = meta
        self._id = meta["id"] if isinstance(meta.get("id"), str) else hashed(32, lines)
        times = [at for line in lines if (at := time_ns(line.get("timestamp"))) is not None]
        goes_on_at = json_object(meta.get("history_base")).get("end_ordinal_exclusive")
        self._missing = unread + (goes_on_at if isinstance(goes_on_at, int) else 0)
        key = [self._id, goes_on_at] if goes_on_at else self._id
        self._run = ImportedRun(CODEX, key, start_ns=min(times, default=None))
        began = meta.get("subagent_history_start_ordinal")
        self._own_from = began if isinstance(began, int) else 0
        self._history: list[dict[str, Any]] = []
        self._asked: list[Any] = []  # contents of the messages that begin a turn: others of the user are context
        self._reply: dict[str, Any] | None = None
        self._began: int | None = None
        self._ended: int | None = None
        self._model: str | None = None
        self._usage: dict[str, Any] = {}
        self._calls = 0
        self._is_own = self._is_sampled = True
        self._is_compacted = False
        self._turns_ended = 0
        self._is_in_turn: bool | None = None

    def records(self) -> Iterator[Read]:
        instructions = self._meta.get("instructions") or self._meta.get("base_instructions")
        if isinstance(instructions, dict):
            instructions = instructions.get("text")
        if isinstance(instructions, str) and instructions:
            self._history.append({"role": "system", "content": instructions})
        for place, line in enumerate(self._lines):
            payload, at = line["payload"], time_ns(line.get("timestamp"))
            ordinal = line.get("ordinal")
            self._is_own = place >= self._copied and (not isinstance(ordinal, int) or ordinal >= self._own_from)
            if line["type"] == "turn_context" and isinstance(payload.get("model"), str):
                self._model = payload["model"]
            elif line["type"] == "event_msg":
                yield from self._event(payload)
            elif line["type"] == _OF_OTHERS:
                yield from self._instructed(payload)
            elif line["type"] == "compacted":
                yield from self._flush()
                self._is_compacted = True
                replaced = payload.get("replacement_history")
                kept = [one for one in self._history if one["role"] in ("system", "developer")]
                self._history = kept
                if isinstance(replaced, list):
                    for item in replaced:
                        yield from self._item(item, at)
                elif isinstance(payload.get("message"), str):
                    self._history.append({"role": "user", "content": payload["message"]})
            elif line["type"] == "response_item":
                yield from self._item(payload, at)
        yield from self._flush()
        missing = lacks(self._missing)
        if not missing and self._is_being_written():
            missing = {semconv.INTERRUPTED: BEING_WRITTEN}
        said = [one for one in self._history if one["role"] == "assistant" and one.get("content")]
        metadata = {"session": self._id} | {
            name: value for name in ("cli_version", "model_provider") if isinstance(value := self._meta.get(name), str)
        }
        result = said[-1]["content"] if said else None
        yield self._run.end(task=self._id, metadata=metadata, result=result, attributes=missing)

    def _is_being_written(self) -> bool:
        """Whether the last answer of the session says nothing yet or waits for tools; or whether its turn has begun and
        not ended: some versions do not write that."""
        places = [at for at, one in enumerate(self._history) if one["role"] == "assistant"]
        if self._is_in_turn is False or not places:
            return False
        answer = self._history[places[-1]]
        calls = [call.get("id") for call in answer.get("tool_calls", ()) if "function" in call]
        returned = [one.get("tool_call_id") for one in self._history[places[-1] :] if one["role"] == "tool"]
        says_something = answer.get("content") or answer.get("tool_calls")
        return (
            not says_something
            or not all(id in returned for id in calls)
            or (self._is_in_turn is True and self._turns_ended > 0)
        )

    def _event(self, payload: dict[str, Any]) -> Iterator[Record]:
        match payload.get("type"):
            case "task_started" | "turn_started":
                self._is_in_turn = True
            case "task_complete" | "turn_complete" | "turn_aborted":
                self._turns_ended += 1
                self._is_in_turn = False
            case "token_count":
                last = json_object(payload.get("info")).get("last_token_usage")
                self._usage = last if isinstance(last, dict) else self._usage  # some have rate limits alone
            case "user_message" if self._history and self._history[-1]["role"] == "user":
                self._asked.append(self._history[-1]["content"])
            case "thread_rolled_back" if isinstance(turns := payload.get("num_turns"), int) and turns > 0:
                yield from self._flush()
                self._take_back(turns)

    def _take_back(self, turns: int) -> None:
        """The last turns, and the context that was said before each."""
        begun = [at for at, one in enumerate(self._history) if self._begins_a_turn(one)]
        if begun:
            end = begun[max(len(begun) - turns, 0)]
            while end > begun[0] and self._is_context(self._history[end - 1]):
                end -= 1
            del self._history[end:]

    def _begins_a_turn(self, message: dict[str, Any]) -> bool:
        return message["role"] == "user" and message["content"] in self._asked

    def _is_context(self, message: dict[str, Any]) -> bool:
        return message["role"] in ("developer", "user") and not self._begins_a_turn(message)

    def _instructed(self, sent: dict[str, Any]) -> Iterator[Record]:
        """What another agent said to this one, which begins a turn."""
        sealed, content = sent.get("encrypted_content"), sent.get("content")
        given = [{"type": "encrypted_content", "encrypted_content": sealed}] if sealed else content
        yield from self._told("user", given if isinstance(given, str) else _parts(given))
        self._asked.append(self._history[-1]["content"])

    def _told(self, role: str, content: Any) -> Iterator[Record]:
        yield from self._flush()
        self._history.append({"role": role, "content": content})

    def _item(self, item: Any, at: int | None) -> Iterator[Read]:
        if not isinstance(item, dict):
            yield LeftOutItem("items that are no objects")
            return
        kind = item.get("type", "message" if "role" in item else None)  # of the first versions
        match kind:
            case "agent_message":
                yield from self._instructed(item)
            case "compaction" | "compaction_summary":  # encrypted: data sets leave out what has it
                yield from self._told("user", [item])
            case "message" if (sent := _sent_by_another(item)) is not None:
                yield from self._instructed(sent)
            case "message" if item.get("role") == "assistant":
                reply = self._said(at)
                reply["content"] = (reply.get("content") or "") + _text(item.get("content"))
            case "message":
                role = item.get("role")
                yield from self._told(role if isinstance(role, str) else "user", _parts(item.get("content")))
            case "reasoning":
                summary = _text(item.get("summary")) or _text(item.get("content"))
                if summary:
                    reply = self._said(at)
                    reply["reasoning_content"] = reply.get("reasoning_content", "") + summary
            case "function_call" | "custom_tool_call" | "local_shell_call":
                given = item.get("arguments", item.get("input", item.get("action")))
                name = item.get("name") if isinstance(item.get("name"), str) else "local_shell"
                function = {"name": name, "arguments": given if isinstance(given, str) else text_of(given) or "{}"}
                call = {"id": item.get("call_id"), "type": "function", "function": function}
                self._said(at).setdefault("tool_calls", []).append(call)
            case str() if kind.endswith("_call"):
                self._said(at).setdefault("tool_calls", []).append(item)
            case str() if kind.endswith("_output"):
                yield from self._flush()
                output = item.get("output", item)
                if isinstance(output, dict) and "content" in output:
                    output = output["content"]
                content = _parts(output) if isinstance(output, list) else output
                self._history.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": content})
            case _ if str(kind) not in _NOT_SAID:
                yield LeftOutItem(f"items of type {str(kind)[:40]}")

    def _said(self, at: int | None) -> dict[str, Any]:
        if self._reply is None:
            self._reply, self._began = {"role": "assistant", "content": None}, at
            self._is_sampled = self._is_own
        self._ended = at
        return self._reply

    def _flush(self) -> Iterator[Record]:
        if self._reply is None:
            return
        of_answer = {
            semconv.USAGE_INPUT_TOKENS: self._usage.get("input_tokens"),
            semconv.USAGE_OUTPUT_TOKENS: self._usage.get("output_tokens"),
            semconv.USAGE_CACHE_READ_INPUT_TOKENS: self._usage.get("cached_input_tokens"),
            semconv.USAGE_REASONING_OUTPUT_TOKENS: self._usage.get("reasoning_output_tokens"),
            semconv.CONVERSATION_COMPACTED: self._is_compacted or None,
        }
        if self._is_sampled:
            self._calls += 1
            yield self._run.call(
                self._calls,
                self._history,
                [self._reply],
                start_ns=self._began,
                end_ns=self._ended,
                model=self._model,
                attributes={name: said for name, said in of_answer.items() if isinstance(said, int)},
            )
        self._history.append(self._reply)
        self._reply, self._usage, self._is_compacted = None, {}, False


def _sent_by_another(message: dict[str, Any]) -> dict[str, Any] | None:
    """What another agent sent, where a message of the assistant's is the JSON of it."""
    text = _text(message.get("content")) if message.get("role") == "assistant" else ""
    sent = json_object(from_json(text)) if text.startswith("{") else {}
    return sent if sent.keys() >= {"author", "recipient", "content", "trigger_turn"} else None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in json_objects(content)]
    return "".join(text for text in texts if isinstance(text, str))


def _parts(content: Any) -> Any:
    """The text, or, where there is more than text, all parts."""
    objects = json_objects(content)
    if any("text" not in one for one in objects):
        return [{"type": "text", "text": one["text"]} if "text" in one else one for one in objects]
    return _text(content)
