"""Items of the Responses API as our messages: one message for each stretch of items that one side wrote.

What a model answers in one go (reasoning, text, tool calls) comes back, and is sent again later, as several items;
both ways they become one assistant message, so that a history that was replayed equals the one that was sampled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from arttrace.records.message import Message, OtherPart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.values.lenient_json import json_objects
from arttrace.wire.messages import arguments_text

_TEXTS = ("input_text", "output_text", "text")
_TOOL_CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
# What the server notes on an item and a client may or may not send again; it changes nothing for the model.
_SERVERS_OWN = ("status", "created_by")


def parse_input(value: Any) -> tuple[Message, ...] | None:
    """The `input` of a request, a text or a list of items; None when it is neither."""
    if isinstance(value, str):
        return (Message("user", (TextPart(value),)),)
    return tuple(_grouped(value)) if isinstance(value, list) else None


def parse_instructions(value: Any) -> list[Part] | None:
    """The parts of `instructions`, a text or a list of items; None when there are none."""
    if isinstance(value, str):
        return [TextPart(value)] if value else None
    messages = parse_input(value)
    return [part for message in messages for part in message.parts] if messages else None


def parse_output(items: Iterable[Any]) -> tuple[Part, ...]:
    """The parts of one answer."""
    return tuple(part for item in items for part in _read(item))


def _grouped(items: Iterable[Any]) -> Iterator[Message]:
    assistant: list[Part] = []
    for item in items:
        role, parts = _role(item), list(_read(item))
        if role == "assistant":
            assistant += parts
            continue
        if assistant:
            yield Message("assistant", tuple(assistant))
            assistant = []
        yield Message(role, tuple(parts))
    if assistant:
        yield Message("assistant", tuple(assistant))


def _role(item: Any) -> str:
    """Who wrote an item."""
    if not isinstance(item, dict):
        return "user"
    if isinstance(item.get("role"), str):
        return str(item["role"])
    kind = item.get("type")
    return "tool" if isinstance(kind, str) and kind.endswith(("_output", "_response")) else "assistant"


def _read(item: Any) -> Iterator[Part]:
    if not isinstance(item, dict):
        yield OtherPart({"type": "content", "content": item})
        return
    kind = item.get("type", "message")
    if kind == "message" or "role" in item:
        yield from _content(item.get("content"))
    elif kind == "reasoning":
        yield _reasoning(item)
    elif isinstance(kind, str) and kind in _TOOL_CALLS and isinstance(item.get("name"), str):
        yield _tool_call(item, _TOOL_CALLS[kind])
    elif isinstance(kind, str) and kind.endswith("_output") and "call_id" in item:
        yield ToolResultPart(response=item.get("output") or "", id=_text(item.get("call_id")))
    else:  # calls of built-in tools, references, approvals
        yield _other(item)


def _content(content: Any) -> Iterator[Part]:
    if isinstance(content, str):
        if content:
            yield TextPart(content)
    elif isinstance(content, list):
        for part in content:
            text = part.get("text") if isinstance(part, dict) else None
            if isinstance(part, str):
                yield TextPart(part)
            elif isinstance(text, str) and part.get("type") in _TEXTS:
                if text:
                    yield TextPart(text)
            elif isinstance(part, dict):
                yield OtherPart(part)
            else:
                yield OtherPart({"type": "content", "content": part})
    elif content is not None:
        yield OtherPart({"type": "content", "content": content})


def _reasoning(item: dict[str, Any]) -> Part:
    """The reasoning's own text, else its summary; an item that hides both is kept as it came."""
    for key in ("content", "summary"):
        texts = [piece.get("text") for piece in json_objects(item.get(key))]
        text = "\n\n".join(text for text in texts if isinstance(text, str))
        if text:
            return ReasoningPart(text)
    return _other(item)


def _tool_call(item: dict[str, Any], key: str) -> Part:
    arguments = arguments_text(item.get(key))
    if arguments is None:
        return _other(item)
    return ToolCallPart(name=item["name"], arguments=arguments, id=_text(item.get("call_id")))


def _other(item: dict[str, Any]) -> Part:
    return OtherPart({key: value for key, value in item.items() if value is not None and key not in _SERVERS_OWN})


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
