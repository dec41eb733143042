"""What of the content is kept: everything, its structure, or nothing; and what the user's own mask makes of it.

Runs in the background, on the attributes of a span that is about to be written. It never raises: what cannot be masked
is dropped, and the span stays. The names of what was changed or dropped are under `arttrace.masked`; token ids and
log-probabilities are content too, and are kept only beside messages that are whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from arttrace import semconv
from arttrace.capture import secrets
from arttrace.capture.config import MAX_CONTENT_BYTES, ContentMode, Mask, Settings
from arttrace.capture.guard import failed

KINDS = {
    semconv.INPUT_MESSAGES: "input_messages",
    semconv.OUTPUT_MESSAGES: "output_messages",
    semconv.SYSTEM_INSTRUCTIONS: "system_instructions",
    semconv.TOOL_DEFINITIONS: "tool_definitions",
    semconv.ENTRY_ARGUMENTS: "arguments",
    semconv.TOOL_CALL_ARGUMENTS: "arguments",
    semconv.ENTRY_RESULT: "result",
    semconv.TOOL_CALL_RESULT: "result",
    semconv.TOOL_RESULT: "result",
    semconv.METADATA: "metadata",
}
"""The attributes that hold content, with the `kind` that a mask is told."""

_OF_A_CALL = (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.SYSTEM_INSTRUCTIONS, semconv.TOOL_DEFINITIONS)
_TOKENS = (semconv.PROMPT_TOKEN_IDS, semconv.TOKEN_IDS, semconv.LOGPROBS)


def apply(settings: Settings, attributes: Mapping[str, Any], mode: ContentMode | None = None) -> dict[str, Any]:
    """The attributes as they may be written; `mode` is the scope's, where it has one of its own."""
    mode = mode or settings.capture_content
    kept = dict(attributes)
    masked: list[str] = []
    for name, kind in KINDS.items():
        value = attributes.get(name)
        if value is None:
            continue
        text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
        allowed = _allowed(text, kind, "full" if name == semconv.METADATA else mode, settings.mask)
        if allowed is None:
            del kept[name]
        elif allowed != text:
            kept[name] = allowed
        if allowed != text:
            masked.append(name)
    if mode != "full" or not set(_OF_A_CALL).isdisjoint(masked):
        for name in [name for name in kept if name.startswith(_TOKENS)]:
            del kept[name]
            masked.append(name)
    if masked:
        kept[semconv.MASKED] = masked
    return kept


def apply_to_error(settings: Settings, message: str, mode: ContentMode | None = None) -> str:
    """The message of an error as it may be written: servers quote the prompt in it, and sometimes the key."""
    mode = mode or settings.capture_content
    if not message or mode == "off":
        return ""
    if mode == "redacted":
        return redacted_text(message)
    try:
        if settings.mask is not None:
            message = str(settings.mask(message, kind="error"))
        return secrets.scrubbed(message)
    except BaseException as error:  # noqa: BLE001  a mask is the user's and may raise anything
        _mask_failed(error)
        return ""


def redacted_text(text: str) -> str:
    """What stands in place of a text."""
    return f"[redacted, {len(text)} characters]"


def _allowed(text: str, kind: str, mode: ContentMode, mask: Mask | None) -> str | None:
    """The JSON text of one attribute as it may be written, or None where it may not."""
    if mode == "off":
        return None
    try:
        if mode == "redacted":
            return _encoded(_REDACTIONS[kind](msgspec.json.decode(text)))
        if mask is not None:
            text = _masked(text, kind, mask)
        is_message = kind not in ("arguments", "result", "metadata")
        return secrets.without_known(text) if is_message else secrets.scrubbed(text)
    except BaseException as error:  # noqa: BLE001  a mask is the user's and may raise anything
        _mask_failed(error)
        return None


def _masked(text: str, kind: str, mask: Mask) -> str:
    value = msgspec.json.decode(text)
    before = _encoded(value)  # the mask may change the value it is given
    given = mask(value, kind=kind)
    if given is None and value is not None:
        raise TypeError(f"the mask returned None for {kind}: it must return the value, masked or not")
    after = _encoded(given)
    if len(after) > MAX_CONTENT_BYTES:
        raise ValueError(f"the mask made more than {MAX_CONTENT_BYTES} bytes of {kind}")
    return text if after == before else after


def _mask_failed(error: BaseException) -> None:
    failed("the mask", error if isinstance(error, Exception) else RuntimeError(repr(error)), background=True)


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- redaction: roles, kinds, names and ids stay ---------------------------------------------------------------
def _messages(value: Any) -> Any:
    return [_message(message) for message in value]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "parts": _parts(message.get("parts", []))}


def _parts(parts: Any) -> list[Any]:
    return [_part(part) for part in parts]


def _part(part: dict[str, Any]) -> dict[str, Any]:
    if "parts" in part:  # instructions may be given as messages
        return _message(part)
    kept = {key: part[key] for key in ("type", "id", "name") if isinstance(part.get(key), str)}
    return kept | {key: _leaf(value) for key, value in part.items() if key not in kept and value is not None}


def _leaf(value: Any) -> Any:
    """A marker for a value; of an object its own type as well."""
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        return {"type": value["type"], "content": redacted_text(_encoded(value))}
    return redacted_text(value if isinstance(value, str) else _encoded(value))


def _definitions(tools: Any) -> Any:
    return [_definition(tool) if isinstance(tool, dict) else redacted_text(_encoded(tool)) for tool in tools]


def _definition(tool: dict[str, Any]) -> dict[str, Any]:
    kept = {key: tool[key] for key in ("type", "name") if isinstance(tool.get(key), str)}
    function = tool.get("function")
    return kept | ({"function": {"name": function.get("name")}} if isinstance(function, dict) else {})


def _arguments(value: Any) -> Any:
    return {name: _leaf(item) for name, item in value.items()} if isinstance(value, dict) else _leaf(value)


_REDACTIONS = {
    "input_messages": _messages,
    "output_messages": _messages,
    "system_instructions": _parts,
    "tool_definitions": _definitions,
    "arguments": _arguments,
    "result": _leaf,
}
