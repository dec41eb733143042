"""Message lists, answers and tool definitions of one trajectory's spans become typed messages, each read once.

Each result of a tool is a message, as chat templates render it: senders put those of one turn together, and what the
user says with them.

What cannot be read is left out or kept as it came, so that a malformed attribute costs that attribute and nothing else.
Message lists may be JSON text, structured values or MessageTexts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import chain, groupby
from typing import Any

import msgspec
from msgspec import to_builtins

from arttrace.records.message import (
    Message,
    OtherPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    message_hash,
    part_of_reasoning,
    stated_reasoning,
)
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.decoding.attribute_values import as_written, from_json, or_none
from arttrace.trajectories.decoding.shared_prefixes import MessageList, SharedTexts, message_texts

_Messages = tuple[Message, ...]
_message: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)

_OF_TEXT = frozenset((TextPart, ReasoningPart, ToolCallPart))


class _SampledMessage(msgspec.Struct, gc=False):
    role: str
    parts: tuple[Part, ...]
    name: str | None = None
    finish_reason: str | None = None


class _FinishReason(msgspec.Struct):
    finish_reason: str | None = None


_answers: msgspec.json.Decoder[list[_SampledMessage]] = msgspec.json.Decoder(list[_SampledMessage])
_finish_reason: msgspec.json.Decoder[_FinishReason] = msgspec.json.Decoder(_FinishReason)


class MessageReader:
    """Reads what the calls of one trajectory hold, each distinct message, tool list and prompt prefix once.

    `hash` gives a message's canonical hash by identity of the cached object (`id`); the reader keeps them alive.
    """

    def __init__(self) -> None:
        self._texts = SharedTexts()
        self._seen = _Seen()
        self._read: dict[MessageList, _Messages] = {}
        self._before: dict[int, tuple[_Messages, _Messages]] = {}  # a tuple by identity, a shorter one
        self._instructions: dict[str, Message | None] = {}
        self._instructed: dict[tuple[int, int], tuple[_Messages, _Messages]] = {}  # with instructions, and without
        self._tools: dict[str, tuple[dict[str, Any], ...]] = {}

    def read(self, value: Any) -> _Messages:
        """The messages of an attribute. An unreadable list is an empty one."""
        found = value if isinstance(value, MessageList) else self._texts.messages(value)
        return () if found is None else self._read.get(found) or self._of(found)

    def choices(self, value: Any) -> list[tuple[Message, str | None]]:
        """The messages of an answer, each with its reason to finish."""
        answers = or_none(self._answers, value) if isinstance(value, str) else None
        return answers if answers is not None else [self._choice(text) for text in or_none(message_texts, value) or ()]

    def _answers(self, value: str) -> list[tuple[Message, str | None]]:
        canonical = self._seen.canonical
        return [(canonical(Message(a.role, a.parts, a.name)), a.finish_reason) for a in _answers.decode(value)]

    def tools(self, value: Any) -> tuple[dict[str, Any], ...]:
        """Tool definitions, functions in the form of chat completions: one and the same object for one text."""
        text = as_written(value)
        if text is None:
            return ()
        found = self._tools.get(text)
        if found is None:
            tools = from_json(text)
            found = tuple(chat_tool(one) for one in tools if isinstance(one, dict)) if isinstance(tools, list) else ()
            self._tools[text] = found
        return found

    @property
    def hashes(self) -> Mapping[int, str]:
        """The canonical hashes of the messages that this reader gave, by their identity."""
        return self._seen.hashes

    def hash(self, message: Message) -> str:
        """The canonical hash of a message (records.message.message_hash), computed once per distinct message."""
        known = self._seen.hashes.get(id(message))
        return message_hash(message) if known is None else known

    def _choice(self, text: str) -> tuple[Message, str | None]:
        found = or_none(_finish_reason.decode, text)
        return self._seen[text], found.finish_reason if found else None

    def instructions(self, value: Any) -> Message | None:
        """System instructions as a message; None when there are none.

        A plain text, which some exporters send in place of a list of parts, is one part; what begins as JSON does, and
        is none, was cut.
        """
        if value is None:
            return None
        if isinstance(value, str) and value in self._instructions:
            return self._instructions[value]
        parts = from_json(value)
        if isinstance(parts, str) and parts and not parts.lstrip().startswith(("[", "{")):
            parts = [{"type": "text", "content": parts}]
        found = self.read([{"role": "system", "parts": parts}]) if isinstance(parts, list) and parts else ()
        message = found[0] if found else None
        if isinstance(value, str):
            self._instructions[value] = message
        return message

    def extended(self, messages: _Messages, further: _Messages) -> _Messages:
        """Messages that this reader gave, and further ones."""
        longer = messages + further
        if messages and further:
            self._before[id(longer)] = (longer, messages)
        return longer

    def instructed(self, message: Message, messages: _Messages) -> _Messages:
        """Messages that this reader gave, after a message of instructions."""
        whole, _ = self._instructed.get((id(message), id(messages)), ((), ()))
        if not whole:
            whole = (message, *messages)
            _, shorter = self._before.get(id(messages), ((), ()))
            before, _ = self._instructed.get((id(message), id(shorter)), ((), ()))
            if before:
                self._before[id(whole)] = (whole, before)
            self._instructed[id(message), id(messages)] = (whole, messages)
        return whole

    def befores(self, messages: _Messages) -> Iterator[_Messages]:
        """The messages of a call, and those given before that they are known to go on from, nearest first."""
        while messages:
            yield messages
            _, messages = self._before.get(id(messages), ((), ()))

    def _of(self, found: MessageList) -> _Messages:
        missing = [found]
        while (before := missing[-1].before) is not None and before not in self._read:
            missing.append(before)
        messages = self._read[before] if before else ()
        for one in reversed(missing):
            added = tuple(chain.from_iterable([self._seen.apart(text) for text in one.added]))
            messages = self._read[one] = self.extended(messages, added)
        return messages


class _Seen(dict[str, Message]):
    """Messages by their JSON text, equal ones as one object, and their hashes by identity."""

    def __init__(self) -> None:
        self.hashes: dict[int, str] = {}
        self._canonical: dict[Message | int, Message] = {}
        self._apart: dict[str, _Messages] = {}

    def __missing__(self, text: str) -> Message:
        try:
            found = self.canonical(_message.decode(text))
        except UNREADABLE:
            try:
                found = self.canonical(_lenient_message(from_json(text)))
            except RecursionError:  # it can be read, and not be written
                found = self.canonical(_lenient_message(text))
        self[text] = found
        return found

    def apart(self, text: str) -> _Messages:
        """The message, or those that it consists of."""
        message = self[text]
        if _is_one(message):
            return (message,)
        found = self._apart.get(text)
        if found is None:
            found = self._apart[text] = tuple(map(self.canonical, _single(message)))
        return found

    def canonical(self, message: Message) -> Message:
        """The first message seen that equals this one. What a part holds but text is not compared: 1 equals true."""
        parts = message.parts
        exact = type(parts[0]) in _OF_TEXT if len(parts) == 1 else _OF_TEXT.issuperset(map(type, parts))
        if not exact and message.role == "assistant":
            message = _without_results(message)
        message = self._canonical.setdefault(message if exact else id(message), message)
        key = id(message)
        if key not in self.hashes:
            self.hashes[key] = message_hash(message)
        return message


def chat_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """As chat templates know it; the Responses API, and the conventions, have a function's fields beside its type."""
    is_flat = (
        tool.get("type", "function") == "function" and "function" not in tool and isinstance(tool.get("name"), str)
    )
    if not is_flat or "input_schema" in tool:
        return tool
    function = {
        name: from_json(one) if name == "parameters" else one
        for name, one in tool.items()
        if name != "type" and one is not None
    }
    return {"type": "function", "function": function}


def has_unnamed_calls(message: Message) -> bool:
    """Whether it asks for a tool whose name its sender did not record."""
    return any(not call.name for call in message.tool_calls)


def _is_one(message: Message) -> bool:
    if message.role == "assistant" or (len(message.parts) == 1 and message.role in ("tool", "function")):
        return True
    return not any(isinstance(part, ToolResultPart) for part in message.parts)


def _without_results(message: Message) -> Message:
    """An answer whose results of tools, which the model's server ran, are parts like others."""
    if not any(isinstance(part, ToolResultPart) for part in message.parts):
        return message
    parts = [OtherPart(to_builtins(part)) if isinstance(part, ToolResultPart) else part for part in message.parts]
    return Message(message.role, tuple(parts), message.name)


def _single(message: Message) -> Iterator[Message]:
    """The results of tools that a message holds, one by one, and what it says beside them, in their order."""
    other = "user" if message.role == "tool" else message.role
    for is_result, parts in groupby(message.parts, lambda part: isinstance(part, ToolResultPart)):
        if is_result:
            yield from (Message("tool", (part,), message.name) for part in parts)
        else:
            yield Message(other, tuple(parts), message.name)


def _lenient_message(value: Any) -> Message:
    if not isinstance(value, dict):
        return Message(role="", parts=(OtherPart({"value": value}),))
    parts = value.get("parts")
    name = value.get("name")
    return Message(
        role=str(value.get("role", "")),
        parts=tuple(_lenient_part(part) for part in parts) if isinstance(parts, list) else tuple(_of_content(value)),
        name=name if isinstance(name, str) else None,
    )


def _of_content(message: dict[str, Any]) -> Iterator[Part]:
    """A message in OpenAI's form, which some SDKs put in the place of one with parts."""
    content, calls = message.get("content"), message.get("tool_calls")
    if message.get("role") == "tool":
        id = message.get("tool_call_id", message.get("id"))
        yield ToolResultPart(response=content, id=id if isinstance(id, str) else None)
        return
    items = content if isinstance(content, list) else []
    said = [TextPart(item) if isinstance(item, str) else _lenient_part(item) for item in items]
    is_thought_apart = not any(isinstance(part, ReasoningPart) for part in said)
    if is_thought_apart and (reasoning := stated_reasoning(message)):
        yield ReasoningPart(reasoning)
    if isinstance(content, str):
        yield TextPart(content)
    elif isinstance(content, list):
        yield from said
    elif content is not None:
        yield OtherPart({"type": "content", "content": content})
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else None
        yield _lenient_part({**call, **function, "type": "tool_call"} if isinstance(function, dict) else call)


def _lenient_part(part: Any) -> Part:
    if not isinstance(part, dict):
        return OtherPart({"value": part})
    content, id = part.get("content", part.get("text")), part.get("id")
    id = id if isinstance(id, str) else None
    match part.get("type"):
        case "text" | "input_text" | "output_text" if isinstance(content, str) or content is None:
            return TextPart(content or "")
        case _ if thought := part_of_reasoning(part):
            return ReasoningPart(thought)
        case "reasoning" if isinstance(content, str) or content is None:
            return ReasoningPart(content or "")
        case "tool_call":
            return ToolCallPart(
                name=str(part.get("name") or ""), arguments=as_written(part.get("arguments")) or "", id=id
            )
        case "tool_call_response":
            return ToolResultPart(response=part.get("response", part.get("result")), id=id)
    return OtherPart(part)
