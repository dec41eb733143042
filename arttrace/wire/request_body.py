"""Changes single fields of a JSON request body and leaves every other byte as it was: order, spaces and numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,]')


def model_span(body: bytes) -> tuple[int, int] | None:
    """Where the text of the top-level "model" lies, quotes included; None where there is none."""
    depth, key, before = 0, b"", b""
    for match in _TOKEN.finditer(body):
        token = match.group()
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and token[:1] == b'"':
            if before == b":" and key == b'"model"':
                return match.span()
            if before in (b"{", b","):
                key = token
        before = token
    return None


def read_model(body: bytes) -> str | None:
    """The top-level "model" of a JSON body."""
    span = model_span(body)
    return None if span is None else msgspec.json.decode(body[slice(*span)], type=str)


def with_model(body: bytes, model: str) -> bytes:
    """The body with another "model"."""
    span = model_span(body)
    return body if span is None else body[: span[0]] + msgspec.json.encode(model) + body[span[1] :]


def with_fields(body: bytes, fields: Mapping[str, Any]) -> bytes:
    """The body with the fields at its end that it does not have at its top level; those that it has stay."""
    present = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    added = {name: value for name, value in fields.items() if name not in present}
    if not added:
        return body
    end = body.rindex(b"}")
    return body[:end] + (b"," if present else b"") + msgspec.json.encode(added)[1:-1] + body[end:]
