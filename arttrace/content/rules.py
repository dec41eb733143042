"""The rules that every span goes through before it is written: everything of its content, its structure, or nothing;
what the user's own mask makes of it; and no secrets.

They never raise: what cannot be masked is dropped, and the span stays. The names of what was changed or dropped are
under `arttrace.masked`; token ids and log-probabilities are content too, and are kept only beside messages that are
whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from arttrace import semconv
from arttrace.content import secrets
from arttrace.content.modes import MAX_CONTENT_BYTES, ContentMode, Mask
from arttrace.content.redaction import redacted, redacted_text
from arttrace.records.span import SpanRow

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


class MaskFailed(Exception):
    """The user's mask raised. Says what and where, and not the message, which may quote what was to be masked."""


def _nobody_is_told(error: MaskFailed) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ContentRules:
    """The rules of one recorder. `mode` of a method is that of a run, where it has one of its own."""

    mode: ContentMode = "full"
    mask: Mask | None = field(default=None, repr=False)
    mask_failed: Callable[[MaskFailed], None] = field(default=_nobody_is_told, repr=False)

    def row(self, row: SpanRow, mode: ContentMode | None = None) -> SpanRow:
        """A span as it may be written."""
        attributes = self.attributes(row.attributes, mode)
        message = self.error(row.status_message, mode)
        return msgspec.structs.replace(row, attributes=attributes, status_message=message)

    def attributes(self, attributes: Mapping[str, Any], mode: ContentMode | None = None) -> dict[str, Any]:
        """The attributes of a span as they may be written."""
        mode = mode or self.mode
        kept = dict(attributes)
        masked: list[str] = []
        for name, kind in KINDS.items():
            value = attributes.get(name)
            if value is None:
                continue
            text = value if isinstance(value, str) else _encoded(value)
            allowed = self._allowed(text, kind, "full" if name == semconv.METADATA else mode)
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

    def error(self, message: str, mode: ContentMode | None = None) -> str:
        """The message of an error as it may be written: servers quote the prompt in it, and sometimes the key."""
        mode = mode or self.mode
        if not message or mode == "off":
            return ""
        if mode == "redacted":
            return redacted_text(message)
        try:
            if self.mask is not None:
                message = str(self.mask(message, kind="error"))
            return secrets.scrubbed(message)
        except BaseException as error:  # noqa: BLE001  a mask is the user's and may raise anything
            self._failed(error)
            return ""

    def note(self, text: str) -> str:
        """A text that is given to a run from outside, as metadata is: kept in every mode, masked, without secrets."""
        allowed = self._allowed(_encoded(text), "metadata", "full")
        noted = "" if allowed is None else msgspec.json.decode(allowed)
        return noted if isinstance(noted, str) else _encoded(noted)

    def _allowed(self, text: str, kind: str, mode: ContentMode) -> str | None:
        """The JSON text of one attribute as it may be written, or None where it may not."""
        if mode == "off":
            return None
        try:
            if mode == "redacted":
                return _encoded(redacted(msgspec.json.decode(text), kind))
            if self.mask is not None:
                text = _masked(text, kind, self.mask)
            is_message = kind not in ("arguments", "result", "metadata")
            return secrets.without_known(text) if is_message else secrets.scrubbed(text)
        except BaseException as error:  # noqa: BLE001  a mask is the user's and may raise anything
            self._failed(error)
            return None

    def _failed(self, error: BaseException) -> None:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        code = None if place is None else place.tb_frame.f_code
        where = "" if code is None or place is None else f" at {Path(code.co_filename).name}:{place.tb_lineno}"
        said = f": {error}" if isinstance(error, _Unusable) else ""
        self.mask_failed(MaskFailed(f"{type(error).__qualname__}{where}{said}"))


class _Unusable(Exception):
    """What the mask returned is of no use; the message is ours."""


def _masked(text: str, kind: str, mask: Mask) -> str:
    value = msgspec.json.decode(text)
    before = _encoded(value)  # the mask may change the value it is given
    given = mask(value, kind=kind)
    if given is None and value is not None:
        raise _Unusable(f"the mask returned None for {kind}: it must return the value, masked or not")
    after = _encoded(given)
    if len(after) > MAX_CONTENT_BYTES:
        raise _Unusable(f"the mask made more than {MAX_CONTENT_BYTES} bytes of {kind}")
    return text if after == before else after


def _encoded(value: Any) -> str:
    return msgspec.json.encode(value).decode()
