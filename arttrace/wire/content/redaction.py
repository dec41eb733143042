"""The mode "redacted": roles, kinds, names and ids stay, of every other value only its length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec


def redacted(value: Any, kind: str) -> Any:
    """A value of content of this kind, without its texts."""
    return _REDACTIONS[kind](value)


_OF_A_MESSAGE = ("role", "name", "id", "tool_call_id", "finish_reason")


def redacted_text(text: str) -> str:
    """What stands in place of a text."""
    return f"[redacted, {len(text)} characters]"


def _messages(value: Any) -> Any:
    return [_message(message) for message in value] if isinstance(value, list) else _leaf(value)


def _message(message: Any) -> Any:
    if not isinstance(message, dict):
        return _leaf(message)
    kept = {key: message[key] for key in _OF_A_MESSAGE if isinstance(message.get(key), str)}
    if "parts" in message:
        kept["parts"] = _parts(message["parts"])
    return kept | {key: _leaf(value) for key, value in message.items() if key not in kept and value is not None}


def _parts(parts: Any) -> Any:
    return [_part(part) for part in parts] if isinstance(parts, list) else _leaf(parts)


def _part(part: Any) -> Any:
    if not isinstance(part, dict):
        return _leaf(part)
    if "parts" in part:  # instructions may be given as messages
        return _message(part)
    kept = {key: part[key] for key in ("type", "id", "name") if isinstance(part.get(key), str)}
    if isinstance(arguments := part.get("arguments"), str):
        kept["arguments"] = _length(_parsed(arguments or "{}"))
    return kept | {key: _leaf(value) for key, value in part.items() if key not in kept and value is not None}


def _leaf(value: Any) -> Any:
    """A marker for a value; of an object its own type as well."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return {"type": value["type"], "content": redacted_text(encoded(value))}
    return _length(value)


def _length(value: Any) -> str:
    return redacted_text(value if isinstance(value, str) else encoded(value))


def _parsed(text: str) -> Any:
    """What frameworks parse and write anew, with other spaces, has one length in an answer and in the next prompt."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return text


def _definitions(tools: Any) -> Any:
    if not isinstance(tools, list):
        return _leaf(tools)
    return [_definition(tool) if isinstance(tool, dict) else redacted_text(encoded(tool)) for tool in tools]


def _definition(tool: dict[str, Any]) -> dict[str, Any]:
    kept = {key: tool[key] for key in ("type", "name") if isinstance(tool.get(key), str)}
    function = tool.get("function")
    return kept | ({"function": {"name": function.get("name")}} if isinstance(function, dict) else {})


def _arguments(value: Any) -> Any:
    return {name: _leaf(item) for name, item in value.items()} if isinstance(value, dict) else _leaf(value)


def encoded(value: Any) -> str:
    """A value as JSON."""
    return msgspec.json.encode(value).decode()


_REDACTIONS: dict[str, Callable[[Any], Any]] = {
    "input_messages": _messages,
    "output_messages": _messages,
    "system_instructions": _parts,
    "tool_definitions": _definitions,
    "arguments": _arguments,
    "result": _leaf,
    "request": _arguments,
    "group": _leaf,
    "headers": _arguments,
    "body": _length,
}
