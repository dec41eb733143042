"""OpenAI chat messages as our messages: content, tool calls, tool results, reasoning by whichever name and in whichever
form; all else kept as it came."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from arttrace.records.message import (
    Message,
    OtherPart,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    part_of_reasoning,
    stated_reasoning,
)

CALLED = {"function": "arguments", "custom": "input"}
"""Under what a tool call names the tool that it calls, and what it gives it: a custom tool takes a text."""


class OutputMessage(msgspec.Struct, frozen=True):
    """One choice's message as `gen_ai.output.messages` has it."""

    role: str
    parts: tuple[Part, ...]
    finish_reason: str | None = None


def parse_message(message: dict[str, Any]) -> Message:
    """One message of a request, or of a choice, in OpenAI's form. Unknown content is kept in `OtherPart`s."""
    role = message.get("role")
    name = message.get("name")
    return Message(
        role=role if isinstance(role, str) else "",
        parts=tuple(_parts(message)),
        name=name if isinstance(name, str) else None,
    )


def parse_messages(messages: Any) -> tuple[Message, ...] | None:
    """All messages of a request, or None when that is no list of objects."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    return tuple(parse_message(message) for message in messages)


def _parts(message: dict[str, Any]) -> Iterator[Part]:
    content = message.get("content")
    if message.get("role") in ("tool", "function"):
        id = message.get("tool_call_id")
        yield ToolResultPart(response=content, id=id if isinstance(id, str) else None)
        return
    said = list(map(_content_part, content)) if isinstance(content, list) else []
    is_thought_apart = not any(isinstance(part, ReasoningPart) for part in said)
    if is_thought_apart and (reasoning := stated_reasoning(message)):
        yield ReasoningPart(reasoning)
    if isinstance(content, str):
        if content:
            yield TextPart(content)
    elif isinstance(content, list):
        yield from said
    elif content is not None:
        yield OtherPart({"type": "content", "content": content})
    for kind in ("refusal", "audio"):
        if message.get(kind):
            yield OtherPart({"type": kind, kind: message[kind]})
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        yield from map(_tool_call, calls)
    if isinstance(message.get("function_call"), dict):
        yield _tool_call({"function": message["function_call"]})


def _content_part(part: Any) -> Part:
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict):
        return OtherPart({"type": "content", "content": part})
    if thought := part_of_reasoning(part):
        return ReasoningPart(thought)
    text = part.get("text")
    return TextPart(text) if part.get("type") == "text" and isinstance(text, str) else OtherPart(part)


def _tool_call(call: Any) -> Part:
    if not isinstance(call, dict):
        return OtherPart({"type": "tool_call", "tool_call": call})
    for form, given in CALLED.items():
        called = call.get(form)
        if isinstance(called, dict) and isinstance(called.get("name"), str):
            arguments = arguments_text(called.get(given))
            if arguments is not None:
                id = call.get("id")
                return ToolCallPart(name=called["name"], arguments=arguments, id=id if isinstance(id, str) else None)
    return OtherPart(call)


def arguments_text(arguments: Any) -> str | None:
    """A tool call's arguments as sampled; some senders give the object. None when that is too deep to be written."""
    if arguments is None or isinstance(arguments, str):
        return arguments or ""
    try:
        return _encoder.encode(arguments).decode()
    except RecursionError:
        return None


_encoder = msgspec.json.Encoder()


def openai_message(message: Message) -> dict[str, Any]:
    """The message in OpenAI's form: the inverse of `parse_message` for what it makes of OpenAI's messages."""
    chat: dict[str, Any] = {"role": message.role}
    if message.name is not None:
        chat["name"] = message.name
    contents: list[Any] = []
    calls: list[Any] = []
    for part in message.parts:
        match part:
            case TextPart(content):
                contents.append({"type": "text", "text": content})
            case ReasoningPart(content):
                chat["reasoning_content"] = chat.get("reasoning_content", "") + content
            case ToolCallPart(name, arguments, id):
                calls.append({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
            case ToolResultPart(response, id):
                chat["tool_call_id"] = id
                contents.append(response)
            case OtherPart(value) if value.get("type") in ("refusal", "audio"):
                chat[value["type"]] = value.get(value["type"])
            case OtherPart(value):
                contents.append(value)
    if len(contents) == 1 and isinstance(message.parts[0], ToolResultPart):
        chat["content"] = contents[0]
    elif len(contents) == 1 and isinstance(part := message.parts[-1 - len(calls)], TextPart) and part.content:
        chat["content"] = part.content
    else:
        chat["content"] = contents or (None if calls else "")
    if calls:
        chat["tool_calls"] = calls
    return chat


def encode_bounded(messages: Sequence[Message | OutputMessage], limit: int) -> tuple[str, bool]:
    """Messages as JSON text of at most `limit` bytes, and whether something was cut to get there.

    Long texts are cut first; when the number of messages alone is too much, none are kept.
    """
    encoded = _encoder.encode(messages)
    if len(encoded) <= limit:
        return encoded.decode(), False
    strings = 2 * sum(len(message.parts) for message in messages) or 1
    share = limit // strings
    while share > 0:
        encoded = _encoder.encode([_cut(message, share) for message in messages])
        if len(encoded) <= limit:
            return encoded.decode(), True
        share //= 2
    return "[]", True


def _cut(message: Message | OutputMessage, share: int) -> Message | OutputMessage:
    return msgspec.structs.replace(message, parts=tuple(_cut_part(part, share) for part in message.parts))


def _cut_part(part: Part, share: int) -> Part:
    match part:
        case TextPart(content):
            return TextPart(content[:share])
        case ReasoningPart(content):
            return ReasoningPart(content[:share])
        case ToolCallPart(name, arguments, id):
            return ToolCallPart(name, arguments[:share], id)
        case ToolResultPart(response, id) if isinstance(response, str):
            return ToolResultPart(response[:share], id)
        case ToolResultPart(response, id) if len(_encoder.encode(response)) > share:
            return ToolResultPart(_encoder.encode(response)[:share].decode(errors="ignore"), id)
        case OtherPart(value) if len(_encoder.encode(value)) > share:
            return OtherPart({"type": str(value.get("type", ""))[:100]})
    return part
