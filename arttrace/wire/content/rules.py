"""The rules that every span goes through before it is written: everything of its content, its structure, or nothing;
what the user's own mask makes of it; and no secrets.

They never raise: what cannot be masked is dropped, and the span stays. The names of what was changed or dropped are
under `arttrace.masked`; token ids and log-probabilities are content too, and are kept only beside messages that are
whole.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.wire.content import secrets
from arttrace.wire.content.hidden import Hidden
from arttrace.wire.content.modes import MAX_CONTENT_BYTES, ContentMode, Mask
from arttrace.wire.content.redaction import encoded, redacted, redacted_text

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
    semconv.REQUEST_FIELDS: "request",
    semconv.HTTP_REQUEST_HEADERS: "headers",
    semconv.HTTP_RESPONSE_HEADERS: "headers",
    semconv.HTTP_REQUEST_BODY: "body",
    semconv.HTTP_RESPONSE_BODY: "body",
}
"""The attributes that hold content, with the `kind` that a mask receives."""

_MESSAGES = {KINDS[name] for name in semconv.CONTENT_OF_A_CALL}
_TOKENS = (semconv.PROMPT_TOKEN_IDS, semconv.TOKEN_IDS, semconv.LOGPROBS)


class MaskFailed(Exception):
    """The user's mask raised. Says what and where, and not the message, which may quote what was to be masked."""


def _report_to_nobody(error: MaskFailed) -> None:
    pass


@dataclass(frozen=True, slots=True)
class ContentRules:
    """The rules of one recorder. `mode` of a method is that of a run, where it has one of its own."""

    mode: ContentMode = "full"
    mask: Mask | None = field(default=None, repr=False)
    mask_failed: Callable[[MaskFailed], None] = field(default=_report_to_nobody, repr=False)

    def row(self, row: SpanRow, mode: ContentMode | None = None) -> SpanRow:
        """A span as it may be written."""
        attributes, message = self.span(row.attributes, row.status_message, mode)
        return msgspec.structs.replace(row, attributes=attributes, status_message=message)

    def span(
        self, attributes: Mapping[str, Any], error: str, mode: ContentMode | None = None, hidden: Hidden | None = None
    ) -> tuple[dict[str, Any], str]:
        """The attributes of a span and the message of its error as they may be written.

        `hidden` is what was taken out of the run's earlier spans, and then of this one too: an error that is raised
        through all of them is recorded in each.
        """
        mode, hidden = mode or self.mode, hidden or Hidden()
        kept = dict(attributes)
        masked: list[str] = []
        for name, kind in KINDS.items():
            value = attributes.get(name)
            if value is None:
                continue
            text = value if isinstance(value, str) else encoded(value)
            allowed = self._allowed(text, kind, "full" if name == semconv.METADATA else mode, hidden, bool(error))
            if allowed is None:
                del kept[name]
            elif allowed != text:
                kept[name] = allowed
            if allowed != text:
                masked.append(name)
        if mode != "full" or not set(semconv.CONTENT_OF_A_CALL).isdisjoint(masked):
            for name in [name for name in kept if name.startswith(_TOKENS)]:
                del kept[name]
                masked.append(name)
        if masked:
            kept[semconv.MASKED] = masked
        return kept, self._error(error, mode, hidden)

    def _error(self, message: str, mode: ContentMode, hidden: Hidden) -> str:
        """The message of an error: servers quote the prompt in it, and sometimes the key."""
        if not message or mode == "off":
            return ""
        if mode == "redacted":
            return redacted_text(message)
        try:
            if self.mask is not None:
                message = str(self.mask(message, kind="error"))
            return hidden.without(secrets.scrubbed(message))
        except BaseException as error:  # noqa: BLE001  a mask is the user's and may raise anything
            self._failed(error)
            return ""

    def note(self, text: str) -> str:
        """A text that is given to a run from outside, as metadata is: kept in every mode, masked, without secrets."""
        allowed = self._allowed(encoded(text), "metadata", "full", Hidden(), False)
        noted = "" if allowed is None else msgspec.json.decode(allowed)
        return noted if isinstance(noted, str) else encoded(noted)

    def computed_group(self, key: str, mode: ContentMode, hidden: Hidden) -> str:
        """The key of a group as it may be written, where the user's code made it of what the run was given: what stays
        of it is content of the kind "group", and a hash keeps apart what is not shown apart any more."""
        allowed = self._allowed(encoded(key), "group", mode, hidden, False)
        shown = "" if allowed is None else msgspec.json.decode(allowed)
        if shown == key:
            return key
        digest = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
        return f"{shown if isinstance(shown, str) else encoded(shown)} #{digest}".strip()

    def url(self, url: str, mode: ContentMode, hidden: Hidden) -> str | None:
        """The URL of a request as it may be written: in the mode "full" alone, masked, without secrets."""
        allowed = self._allowed(encoded(url), "url", mode, hidden, False) if mode == "full" else None
        shown = None if allowed is None else msgspec.json.decode(allowed)
        return shown if shown is None or isinstance(shown, str) else encoded(shown)

    def _allowed(self, text: str, kind: str, mode: ContentMode, hidden: Hidden, has_error: bool) -> str | None:
        """The JSON text of one attribute as it may be written, or None where it may not."""
        if mode == "off":
            return None
        learns = mode == "full" and (has_error or kind not in _MESSAGES)  # a history costs, and no other span quotes it
        try:
            if mode == "redacted":
                return encoded(redacted(msgspec.json.decode(text), kind))
            masked = text if self.mask is None else _masked(text, kind, self.mask)
            allowed = secrets.without_known(masked) if kind in _MESSAGES else _searched(masked, kind, hidden)
        except BaseException as error:  # noqa: BLE001  a mask is the user's and may raise anything
            self._failed(error)
            if learns:
                hidden.learn(text, None)
            return None
        if learns and masked != text:
            hidden.learn(text, masked)
        if learns and allowed != masked:
            # A cookie says dates and "Lax" too, which later results are to keep.
            hidden.learn(masked, allowed, secret=True, words=kind != "headers")
        return allowed

    def _failed(self, error: BaseException) -> None:
        place = error.__traceback__
        while place is not None and place.tb_next is not None:
            place = place.tb_next
        code = None if place is None else place.tb_frame.f_code
        where = "" if code is None or place is None else f" at {Path(code.co_filename).name}:{place.tb_lineno}"
        said = f": {error}" if isinstance(error, _Unusable) else ""
        self.mask_failed(MaskFailed(f"{type(error).__qualname__}{where}{said}"))


def _searched(text: str, kind: str, hidden: Hidden) -> str:
    """JSON text that is no message, without secrets."""
    without_named = secrets.without_credentials if kind == "headers" else secrets.without_named
    if kind == "headers" or secrets.may_name_one(text) or hidden.has_secret_in(text):
        with contextlib.suppress(msgspec.DecodeError):
            value = msgspec.json.decode(text)
            searched = hidden.without_secrets(without_named(value))
            text = text if searched == value else encoded(searched)
    return secrets.scrubbed(text)


class _Unusable(Exception):
    """What the mask returned is of no use; the message is ours."""


def _masked(text: str, kind: str, mask: Mask) -> str:
    value = msgspec.json.decode(text)
    before = encoded(value)  # the mask may change the value it is given
    given = mask(value, kind=kind)
    if given is None and value is not None:
        raise _Unusable(f"the mask returned None for {kind}: it must return the value, masked or not")
    after = encoded(given)
    if len(after) > MAX_CONTENT_BYTES:
        raise _Unusable(f"the mask made more than {MAX_CONTENT_BYTES} bytes of {kind}")
    return text if after == before else after
