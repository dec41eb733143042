"""Ollama's messages as ours. They are as OpenAI's but for thinking, images, the objects that tool calls give their
tools, and the name of the tool on its result, which is all that ties the two where tool calls have no ids."""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.records.message import Message, OtherPart, Part
from arttrace.wire.messages import parse_message

_KINDS = {"iVBOR": "image/png", "/9j/": "image/jpeg", "R0lGOD": "image/gif", "UklGR": "image/webp"}
"""What an image of a kind begins with in base64."""


def messages_of(messages: Any) -> tuple[Message, ...] | None:
    """The messages of a request; None where that is no list of objects."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        return None
    return tuple(map(message_of, messages))


def message_of(message: dict[str, Any]) -> Message:
    """One message. The server minds no capitals in its role."""
    role = message.get("role")
    calls = message.get("tool_calls")
    read = parse_message(
        {
            "role": role.lower() if isinstance(role, str) else role,
            "name": message.get("tool_name") or message.get("name"),
            "content": message.get("content"),
            "reasoning_content": message.get("thinking"),
            "tool_calls": list(map(_call, calls)) if isinstance(calls, list) else None,
            "tool_call_id": message.get("tool_call_id") or None,
        }
    )
    if images := image_parts(message.get("images")):
        read = msgspec.structs.replace(read, parts=(*read.parts, *images))
    return read


def image_parts(images: Any) -> tuple[Part, ...]:
    """Images in base64 as chat completions have them; those whose kind is not known as the conventions do."""
    return tuple(map(_image, images)) if isinstance(images, list) else ()


def _image(data: Any) -> Part:
    kind = next((kind for start, kind in _KINDS.items() if isinstance(data, str) and data.startswith(start)), None)
    if kind is None:
        return OtherPart({"type": "blob", "modality": "image", "content": data})
    return OtherPart({"type": "image_url", "image_url": {"url": f"data:{kind};base64,{data}"}})


def _call(call: Any) -> Any:
    """A tool call with its arguments, which are none where the function takes none, and without an empty id."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call
    given = function.get("arguments")
    return {**call, "id": call.get("id") or None, "function": {**function, "arguments": {} if given is None else given}}
