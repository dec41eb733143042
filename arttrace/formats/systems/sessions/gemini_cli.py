"""Sessions of Google's Gemini CLI (`chats/session-*.json`, since 2026 `.jsonl`). Pure.

An older file is one object with all messages. A newer one is a line that names the session and then what happened: a
message, which replaces the one with its id; `$rewindTo` takes back that message and all behind it; `$set` with
`messages` says the conversation anew (it was compressed, masked or resumed). What a call was given is what the
conversation was when its answer was first written. Thoughts are told to no later call, unless they stand in the
content. Messages without a model were put in by the program and are context; those of type `info`, `warning` and
`error` are for the person at the screen, but for files in parts, which the model was given. Results of tools stand in
the message that called them, in newer versions also in a message of the user's. A sub-agent's file
(`chats/PARENT/ID.jsonl`) does not name its parent and is a run of its own. Source: gemini-cli,
packages/core/src/services/chatRecordingTypes.ts, chatRecordingService.ts, and core/geminiChat.ts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from arttrace.formats.imported_run import SECOND, ImportedRun, lacks
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.systems.sessions.gemini_messages import (
    Line,
    Messages,
    calls_in,
    content_of,
    joined,
    result_of,
    results_in,
    said_by_user,
    thoughts_of,
    unreturned,
)
from arttrace.records import semconv
from arttrace.records.message import ReasoningPart, TextPart
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.times import time_ns
from arttrace.records.values.units import quantity
from arttrace.trajectories.identity.session_readings import BEING_WRITTEN, GEMINI_CLI
from arttrace.wire.apis.gemini.answer import counts
from arttrace.wire.span_attributes import usage_attributes

KIND = "gemini cli sessions"
_ON_SCREEN = ("info", "warning", "error")
_TYPES = ("user", "gemini", *_ON_SCREEN)
_COMPRESSED = re.compile(r"compressed (from|context)", re.IGNORECASE)
"""What the screen says of it; `/compress` writes an empty text."""
_TOKENS = {
    "input": "promptTokenCount", "output": "candidatesTokenCount", "cached": "cachedContentTokenCount",
    "thoughts": "thoughtsTokenCount", "tool": "toolUsePromptTokenCount",
}  # fmt: skip


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a session, or a line of one."""
    if isinstance(item.get("$rewindTo"), str) or isinstance(item.get("$set"), dict):
        return True
    return _names_a_session(item) or (_is_message(item) and "sessionId" not in item)


def _names_a_session(item: dict[str, Any]) -> bool:
    return isinstance(item.get("sessionId"), str) and "projectHash" in item and "type" not in item


def _is_message(item: dict[str, Any]) -> bool:
    return item.get("type") in _TYPES and isinstance(item.get("id"), str) and "content" in item and "timestamp" in item


class GeminiSessions:
    """The sessions of one file, read when it has ended."""

    def __init__(self) -> None:
        self._sessions: dict[str, _Conversation] = {}
        self._current: _Conversation | None = None
        self._unread = 0

    @property
    def count(self) -> int:
        """How many sessions there are."""
        return len(self._sessions)

    def take(self, item: dict[str, Any]) -> Iterator[LeftOutItem]:
        """Keeps a line. Raises ValueError for one of no session, or with messages that cannot be read."""
        if _names_a_session(item):
            self._current = self._sessions.setdefault(item["sessionId"], _Conversation(item))
        if self._current is None:
            raise ValueError("a line of a session of the Gemini CLI before the one that names the session")
        said = item if _names_a_session(item) else json_object(item.get("$set"))
        if isinstance(said.get("messages"), list):
            if not all(isinstance(one, dict) and _is_message(one) for one in said["messages"]):
                raise ValueError("one of its messages has no id, timestamp, content or known type")
            self._current.say_anew(said["messages"])
        elif isinstance(target := item.get("$rewindTo"), str):
            self._current.rewind(target)
        elif _is_message(item):
            self._current.say(item)
        yield from ()

    def miss(self) -> None:
        """A line of the file cannot be read, and so not whose it is."""
        self._unread += 1

    def finish(self) -> Iterator[Read]:
        """The spans of all sessions."""
        for session in self._sessions.values():
            yield from session.records(self._unread)


class _GeminiAnswer:
    """A call of the model: what it was given, and what is known of its answer so far."""

    def __init__(self, line: Line, history: Messages, start_ns: int | None, *, is_compacted: bool) -> None:
        self.history = history
        self.start_ns = start_ns
        self.end_ns = time_ns(line.get("timestamp"))
        self.is_compacted = is_compacted
        self.text = self.thoughts = ""
        self.calls: Messages = []
        self.line = line
        self._ended_empty = isinstance(line["content"], list)
        self.update(line)

    def update(self, line: Line) -> None:
        """Its message as it is written now; what was said first stays, since the program rewrites old messages."""
        self.line = {**self.line, **{name: value for name, value in line.items() if value}}
        parts = content_of(line)
        self.text = self.text or joined(parts, TextPart)
        self.thoughts = self.thoughts or thoughts_of(line, parts)
        self.calls = calls_in(line, parts) or self.calls

    @property
    def is_silent(self) -> bool:
        """Whether the file does not say yet what was answered. One that ended empty is written as a list."""
        return not (self.text or self.calls or self._ended_empty)

    def reply(self) -> dict[str, Any]:
        """In OpenAI's form."""
        said: dict[str, Any] = {"role": "assistant", "content": self.text}
        if self.thoughts:
            said["reasoning_content"] = self.thoughts
        return {**said, "tool_calls": self.calls} if self.calls else said

    def usage(self) -> dict[str, Any]:
        """Its counts, where there are any: what the API did not count is written as 0."""
        tokens = json_object(self.line.get("tokens"))
        if not any(tokens.get(name) for name in ("input", "output")):
            return {}
        return usage_attributes(counts({name: tokens.get(said) for said, name in _TOKENS.items()}))

    def may_be_several(self) -> bool:
        """Whether its tools ended more than a second apart: older versions write them of several answers as one's."""
        times = [at for one in json_objects(self.line.get("toolCalls")) if (at := time_ns(one.get("timestamp")))]
        return bool(times) and max(times) - min(times) > SECOND


class _Conversation:
    """The conversation as it is after each line, and the answers as they came."""

    def __init__(self, named: dict[str, Any]) -> None:
        self._id: str = named["sessionId"]
        self._named = named
        self._lines: dict[str, Line] = {}
        self._parts_of: dict[str, str] = {}
        self._answers: dict[str, _GeminiAnswer] = {}
        self._known: dict[str, tuple[Line, Messages]] = {}
        self._agents: set[str] = set()
        self._unreturned: set[str] = set()
        self._tells_results_apart = self._is_compacted = self._is_said_anew = False
        self._lacks_summary = self._was_compressed = False

    def say_anew(self, lines: list[Line]) -> None:
        """The whole conversation from here on."""
        before = [id for id in self._lines if id in self._answers]
        stay = {one["id"] for one in lines}
        gone = [id for id in before if id not in stay]
        if gone and gone != before[len(before) - len(gone) :]:  # else the last turn was taken back
            self._is_compacted = True
        self._is_said_anew, self._was_compressed = True, False
        self._lines = {}
        for line in lines:
            self.say(line)

    def rewind(self, target: str) -> None:
        """Takes back a message and all behind it; all, where it is unknown, as the program does."""
        target = self._parts_of.get(target, target)
        ids = list(self._lines)
        for id in ids[ids.index(target) if target in ids else 0 :]:
            del self._lines[id]

    def say(self, line: Line) -> None:
        """A message, or what one is now."""
        self._agents |= {id for one in json_objects(line.get("toolCalls")) if isinstance(id := one.get("agentId"), str)}
        if line["type"] in _ON_SCREEN and self._answers and not self._is_said_anew:
            self._was_compressed |= _tells_of_compression(line["content"])
        whole = self._parts_of.get(line["id"]) or self._continued(line)
        if whole is not None:
            self._parts_of[line["id"]] = whole
            if whole not in self._lines:
                return
            line = {**self._lines[whole], "toolCalls": line.get("toolCalls")}
        elif line["type"] == "user" and results_in(content_of(line)):
            self._tells_results_apart = True
        id = line["id"]
        if id in self._answers:
            self._answers[id].update(line)
        elif line["type"] == "gemini" and (line.get("model") or json_object(line.get("tokens"))):
            history = self._history()
            self._unreturned |= unreturned(history)
            self._lacks_summary |= self._was_compressed
            self._answers[id] = _GeminiAnswer(line, history, self._said_at(), is_compacted=self._is_compacted)
            self._is_compacted = False
        self._lines[id] = line

    def _continued(self, line: Line) -> str | None:
        """The answer that this has the tool calls of: where something was shown between, they are a message apart."""
        if line["type"] != "gemini" or line["id"] in self._lines or line.get("thoughts") or line.get("tokens"):
            return None
        last = self._last()
        if last is None or last["id"] not in self._answers or last.get("toolCalls"):
            return None
        return last["id"] if line.get("toolCalls") and not line["content"] else None

    def _last(self) -> Line | None:
        """The last message that was said to the model, or by it."""
        return next((one for one in reversed(self._lines.values()) if not _is_shown_only(one)), None)

    def _said_at(self) -> int | None:
        last = self._last() or {}
        times = [one.get("timestamp") for one in (last, *json_objects(last.get("toolCalls")))]
        return max((at for one in times if (at := time_ns(one)) is not None), default=None)

    def _history(self) -> Messages:
        """The conversation now, each result once: behind the call, or where it is said alone."""
        lines = [one for one in self._lines.values() if not _is_shown_only(one)]
        alone = {id for one in lines if one["type"] != "gemini" for id in results_in(content_of(one))}
        found: Messages = []
        returned: set[str] = set()
        for line in lines:
            said = self._messages(line)
            ids = {one["tool_call_id"] for one in said if one["role"] == "tool"}
            for one in said:
                again = one["tool_call_id"] in returned if one["role"] == "tool" else False
                beside = line["type"] == "gemini" and one["role"] == "user" and ids & alone
                if not again and not beside:
                    found.append(one)
            returned |= ids
        return found

    def _messages(self, line: Line) -> Messages:
        """In OpenAI's form: the same objects for the same line, so that a prompt that grows is known as such."""
        known = self._known.get(line["id"])
        if known is None or known[0] is not line:
            made = self._of_model(line) if line["type"] == "gemini" else said_by_user(content_of(line))
            known = self._known[line["id"]] = line, made
        return known[1]

    def _of_model(self, line: Line) -> Messages:
        parts = content_of(line)
        text, answer = joined(parts, TextPart), self._answers.get(line["id"])
        if answer is not None and text.strip() == answer.text.strip():
            text = answer.text
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if thoughts := joined(parts, ReasoningPart):
            said["reasoning_content"] = thoughts
        if calls := calls_in(line, parts):
            said["tool_calls"] = calls
        returned = [result_of(one) for one in json_objects(line.get("toolCalls"))]
        tools = [one for result in returned for one in result if one["role"] == "tool"]
        beside = [one for result in returned for one in result if one["role"] != "tool"]
        return [*([said] if text or len(said) > 2 else []), *tools, *beside]

    def records(self, unread: int) -> Iterator[Read]:
        """The spans of the session."""
        if not self._answers:
            yield LeftOutItem("sessions without an answer")
            return
        began = time_ns(self._named.get("startTime")) or next(iter(self._answers.values())).start_ns
        run = ImportedRun(GEMINI_CLI, self._id, start_ns=began)
        for id, answer in self._answers.items():
            yield from run.last_results(answer.history, end_ns=answer.start_ns)
            model = answer.line.get("model")
            yield run.call(
                id,
                answer.history,
                [answer.reply()],
                start_ns=answer.start_ns,
                end_ns=answer.end_ns,
                model=model if isinstance(model, str) else None,
                attributes={semconv.CONVERSATION_COMPACTED: answer.is_compacted or None, **answer.usage()},
            )
        yield from [LeftOutItem("sub-agents, whose own files (chats/PARENT/ID.jsonl) are runs of their own")] * len(
            self._agents
        )
        texts = [self._answers[id].text for id in self._lines if id in self._answers and self._answers[id].text]
        metadata = {name: said for name in ("projectHash", "kind") if isinstance(said := self._named.get(name), str)}
        yield run.end(
            task=self._id,
            metadata={"session": self._id, **metadata},
            result=texts[-1] if texts else None,
            attributes=lacks(unread) or {semconv.INTERRUPTED: self._lacking()},
        )

    def _lacking(self) -> str | None:
        """Why the session is not whole, by what it says itself."""
        last = self._last()
        silent = sum(answer.is_silent for id, answer in self._answers.items() if last is None or id != last["id"])
        several = sum(one.may_be_several() for one in self._answers.values()) * (not self._tells_results_apart)
        if self._lacks_summary:
            return "it was compressed, and the file does not hold to what"
        for count, what in ((len(self._unreturned), "tool result"), (silent, "answer")):
            if count:
                return f"{quantity(count, what)} of the session missing"
        if several:
            return f"{quantity(several, 'message')} with tool calls of different times, which may be several answers"
        return BEING_WRITTEN if last is not None and self._is_awaited(last) else None

    def _is_awaited(self, last: Line) -> bool:
        """Whether the model is to answer the last message, or says or does something that is not written yet."""
        if last["type"] != "gemini":
            calls = {one.get("id"): one for line in self._lines.values() for one in json_objects(line.get("toolCalls"))}
            ids = results_in(content_of(last))
            return not ids or not all(json_object(calls.get(id)).get("status") == "cancelled" for id in ids)
        answer = self._answers.get(last["id"])
        return answer is not None and (answer.is_silent or bool(unreturned(self._messages(last))))


def _tells_of_compression(content: Any) -> bool:
    return isinstance(content, str) and (not content or _COMPRESSED.search(content) is not None)


def _is_shown_only(line: Line) -> bool:
    return line["type"] in _ON_SCREEN and not isinstance(line["content"], list)
