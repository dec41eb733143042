"""Message: one chat message as role and parts, in the form of the GenAI conventions, with a canonical hash."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec


class TextPart(msgspec.Struct, frozen=True, gc=False, tag="text"):
    """Plain text."""

    content: str


class ReasoningPart(msgspec.Struct, frozen=True, gc=False, tag="reasoning"):
    """The model's reasoning text, where the engine gives it apart from the answer."""

    content: str


class ToolCallPart(msgspec.Struct, frozen=True, gc=False, tag="tool_call"):
    """A tool call the model asked for. `arguments` is the text as sampled, which need not be valid JSON."""

    name: str
    arguments: str
    id: str | None = None


class ToolResultPart(msgspec.Struct, frozen=True, gc=False, tag="tool_call_response"):
    """What a tool answered. `response` is text, or parsed JSON when the sender gave structure."""

    response: Any
    id: str | None = None


class OtherPart(msgspec.Struct, frozen=True, gc=False, tag="other"):
    """Anything else (image, audio, file, refusal), kept as it came."""

    value: dict[str, Any]


Part = TextPart | ReasoningPart | ToolCallPart | ToolResultPart | OtherPart


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message. An assistant message without any part is an empty generation."""

    role: str
    parts: tuple[Part, ...]
    name: str | None = None

    @property
    def text(self) -> str:
        """The text parts, joined."""
        return "".join(part.content for part in self.parts if isinstance(part, TextPart))

    @property
    def tool_calls(self) -> tuple[ToolCallPart, ...]:
        """The tool calls asked for, in order."""
        return tuple([part for part in self.parts if isinstance(part, ToolCallPart)])


class MessageTexts(tuple[str, ...]):
    """A message list as the JSON text of each message; equal messages are best one and the same str object."""

    __slots__ = ()


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces: equal values give equal bytes."""
    return msgspec.json.encode(value, order="sorted")


def _canonical_arguments(arguments: str) -> Any:
    try:
        return msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, RecursionError):  # a model may well sample `[[[[[...`
        return arguments


def _canonical_part(part: Part, arguments: Callable[[str], Any] = _canonical_arguments) -> Any:
    if isinstance(part, (TextPart, ReasoningPart)):  # faster than matching, and this runs for every message
        return [type(part).__name__, part.content] if part.content else None
    if isinstance(part, ToolCallPart):
        return ["tool_call", part.name, arguments(part.arguments), part.id or ""]
    if isinstance(part, ToolResultPart):
        return ["tool_result", part.response, part.id or ""]
    return ["other", part.value]


def message_hash(message: Message) -> str:
    """32 hex digits, equal for messages that mean the same to a model.

    Empty text equals no text, the order of JSON keys in tool arguments does not count, and a missing name or id
    equals an empty one. Raises RecursionError for a tool result, or another part, too deep to be written as JSON.
    """
    parts = [canonical for part in message.parts if (canonical := _canonical_part(part)) is not None]
    try:
        document = canonical_json([message.role, message.name or "", parts])
    except RecursionError:  # arguments just so deep that they could be read: text, as those a level deeper are
        parts = [canonical for part in message.parts if (canonical := _canonical_part(part, str)) is not None]
        document = canonical_json([message.role, message.name or "", parts])
    return hashlib.blake2b(document, digest_size=16).hexdigest()
