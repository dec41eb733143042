"""Headers and bodies of HTTP requests as JSON texts of bounded size."""

from __future__ import annotations

import codecs
import email
from collections.abc import Iterable, Iterator, Mapping
from email.utils import collapse_rfc2231_value
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from arttrace.capture.base.values import json_object, json_text
from arttrace.wire.compression import decompress

MAX_BYTES = 64 << 10
"""Bound on the headers, and on the body, of one request or response."""

_utf8 = codecs.getincrementaldecoder("utf-8")

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, each with a value."""


def pairs(headers: Mapping[str, Any] | None) -> Headers:
    """A copy of a client's headers: clients change theirs for the next attempt."""
    return tuple((_text(name).lower(), _text(value)) for name, value in (headers or {}).items())


def value_of(headers: Headers, name: str) -> str:
    """The first value of a header; "" where there is none."""
    return next((value for each, value in headers if each == name), "")


def headers_json(headers: Headers) -> tuple[str | None, bool]:
    """A JSON object of the headers, and whether a value was cut; one that comes again is appended after a comma."""
    return json_object(_grouped(headers, ", ".join), MAX_BYTES) if headers else (None, False)


def body_json(body: bytes, content_type: str, encoding: str = "") -> tuple[str | None, bool]:
    """A body as JSON text, and whether it was cut: a JSON document as it is, the fields of a form as an object, other
    text as a string. None for a body that is neither."""
    if not body:
        return None, False
    try:
        data = decompress(body[:MAX_BYTES], encoding)
    except ValueError:
        return None, False
    cut = max(len(body), len(data)) > MAX_BYTES
    data = data[:MAX_BYTES]
    if content_type.lower().startswith("multipart/form-data"):
        fields = list(_fields_of_parts(data, content_type, cut=cut))
        if fields:
            return msgspec.json.encode(_grouped(fields)).decode(), cut
    try:
        text = _utf8().decode(data, final=not cut)  # without a character that is cut
    except ValueError:
        return None, False
    try:
        msgspec.json.decode(text)
    except (ValueError, RecursionError):
        if "=" in text and content_type.lower().startswith("application/x-www-form-urlencoded"):
            return msgspec.json.encode(_grouped(parse_qsl(text, keep_blank_values=True))).decode(), cut
        shown, shortened = json_text(text, MAX_BYTES)
        return shown, cut or shortened
    return text, cut


def _fields_of_parts(body: bytes, content_type: str, *, cut: bool) -> Iterator[tuple[str, str | None]]:
    """The fields of a multipart form; None in place of what is no text."""
    parts = email.message_from_bytes(f"content-type: {content_type}\r\n\r\n".encode("latin-1", "replace") + body)
    for part in parts.walk():
        name = part.get_param("name", header="content-disposition")
        if name is not None:
            value = part.get_payload(decode=True)
            try:
                text = _utf8().decode(value, final=not cut) if isinstance(value, bytes) else None
            except ValueError:
                text = None
            yield collapse_rfc2231_value(name), text


def _grouped(fields: Iterable[tuple[str, Any]], joined: Any = list) -> dict[str, Any]:
    """Fields by name; the values of one that comes several times are joined."""
    found: dict[str, list[Any]] = {}
    for name, value in fields:
        found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else joined(values) for name, values in found.items()}


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else str(value)
