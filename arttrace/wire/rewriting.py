"""Changes single fields of a JSON request body and leaves every other byte as it was: order, spaces and numbers."""

from __future__ import annotations

import re

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


def with_flags(body: bytes, *names: str) -> bytes:
    """The body with `"name": true` at its end for each name that it does not have at its top level."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    end = body.rindex(b"}")
    for name in names:
        if name not in fields:
            comma = b"," if fields else b""
            body = body[:end] + comma + msgspec.json.encode(name) + b":true" + body[end:]
            end = body.rindex(b"}")
            fields[name] = msgspec.Raw(b"true")
    return body
