"""What both encodings of an OTLP trace request share: its bounds, its errors, and how a span's values are read."""

from __future__ import annotations

import msgspec

from arttrace.records.span import Attributes, OriginRest, SpanRest, SpanRow, Typed
from arttrace.records.values.json_types import plain

MAX_SPANS = 65_536
"""Bound on the spans of one request."""
MAX_ATTRIBUTES = 65_536
"""Bound on the attributes of one span."""
MAX_SPAN_BYTES = 32 << 20
"""Bound on one span, and so on each of its attributes, as encoded."""

Odd = list[bytes | float]
"""Takes up values that JSON cannot hold, so that attributes without any are not looked through again."""

USUAL_ORIGIN = OriginRest()
_USUAL_REST = SpanRest()
_NO_PARENT = "0" * 16


class Export(msgspec.Struct, frozen=True):
    """The spans of a request, how many others were refused, why the first of those was, and what stands in for those of
    them whose trace is known."""

    spans: list[SpanRow]
    refused: int = 0
    reason: str = ""
    stand_ins: list[SpanRow] = []


class MalformedRequest(ValueError):
    """The request as a whole cannot be read."""


class TooManySpans(ValueError):
    """The request holds more spans than one request may."""

    def __init__(self) -> None:
        super().__init__(f"the request holds more than {MAX_SPANS} spans: send smaller batches")


def parent(id: str) -> str | None:
    """A span's parent; all zeros is how some exporters say that it has none."""
    return None if id == _NO_PARENT else id or None


def unusual(rest: SpanRest) -> SpanRest | None:
    """What a span has beside its columns; None for most."""
    return rest if rest != _USUAL_REST else None


def settled(attributes: Attributes, odd: Odd) -> tuple[Attributes, Typed]:
    """Attributes as JSON can hold them, and the types of those that were changed for it; empties `odd`."""
    if not odd:
        return attributes, {}
    odd.clear()
    return plain(attributes)
