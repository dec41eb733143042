"""Whether a record could have arrived over OTLP, and so can be sent over it again. Pure."""

from __future__ import annotations

from typing import Final

from arttrace.records.record import Record
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.integers import INT32, INT64, UINT32, UINT64
from arttrace.records.values.nesting import are_shallow

MAX_DEPTH: Final = 64
"""Bound on the nesting of an attribute's value: more than protobuf's own lets through."""


def checked(record: Record) -> Record:
    """The record. Raises ValueError when it is a span that OTLP cannot hold."""
    if isinstance(record, SpanRow):
        check_ids(record)
        check_times(record)
        _check_numbers(record)
        _check_depth(record)
    return record


def check_ids(span: SpanRow) -> None:
    """Raises ValueError unless its ids are hex of the right length, and not all zero."""
    if not _is_id(span.trace_id, 32):
        raise ValueError(f"span {span.name!r}: the trace id is not 16 bytes, or all zero")
    if not _is_id(span.span_id, 16):
        raise ValueError(f"span {span.name!r}: the span id is not 8 bytes, or all zero")
    if span.parent_span_id is not None and not _is_id(span.parent_span_id, 16):
        raise ValueError(f"span {span.name!r}: the parent span id is not 8 bytes, or all zero")


def _is_id(text: str, digits: int) -> bool:
    return len(text) == digits and text.strip("0") != "" and all(c in "0123456789abcdef" for c in text)


def check_times(span: SpanRow) -> None:
    """Raises ValueError unless it has begun, and both times fit a column; one without an end has not ended."""
    if not (0 < span.start_ns < INT64.stop and 0 <= span.end_ns < INT64.stop):
        raise ValueError(f"span {span.name!r}: its times are not nanoseconds since 1970")


def _check_numbers(span: SpanRow) -> None:
    dropped = [*(one.dropped_attributes for one in span.events), *(one.dropped_attributes for one in span.links)]
    if span.rest is not None:
        dropped += [span.rest.dropped_attributes, span.rest.dropped_events, span.rest.dropped_links]
    if span.origin is not None:
        dropped += [span.origin.resource_dropped_attributes, span.origin.scope_dropped_attributes]
    if (
        span.kind not in INT32
        or span.status_code not in INT32
        or any(number not in UINT32 for number in (span.flags, *dropped, *(link.flags for link in span.links)))
        or any(event.time_ns not in UINT64 for event in span.events)
    ):
        raise ValueError(f"span {span.name!r}: a number is out of range")
    for link in span.links:
        try:
            bytes.fromhex(link.trace_id), bytes.fromhex(link.span_id)
        except ValueError:
            raise ValueError(f"span {span.name!r}: the ids of a link are not hexadecimal") from None


def _check_depth(span: SpanRow) -> None:
    holders: list[Attributes] = [span.attributes, span.resource]
    holders += [one.attributes for one in span.events]
    holders += [one.attributes for one in span.links]
    if span.origin is not None:
        holders.append(span.origin.scope_attributes)
    if not are_shallow((value for holder in holders for value in holder.values()), MAX_DEPTH + 1):
        raise ValueError(f"span {span.name!r}: an attribute is nested deeper than {MAX_DEPTH} levels")
