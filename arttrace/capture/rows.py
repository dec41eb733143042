"""What the recorder writes: an SDK span as plain data, and a record as bytes, whatever text it holds. Pure."""

from __future__ import annotations

from typing import Any

import msgspec
from opentelemetry.sdk.trace import ReadableSpan

from arttrace.records.record import Record, encode_record
from arttrace.records.span import SpanEvent, SpanLink, SpanRow


def span_row(span: ReadableSpan) -> SpanRow:
    """An SDK span as plain data; one that has not ended has the end 0."""
    context = span.context
    if context is None:
        raise ValueError("a span without ids")
    return SpanRow(
        trace_id=f"{context.trace_id:032x}",
        span_id=f"{context.span_id:016x}",
        name=span.name,
        start_ns=span.start_time or 0,
        end_ns=span.end_time or 0,
        parent_span_id=f"{span.parent.span_id:016x}" if span.parent else None,
        kind=span.kind.value + 1,  # OTLP counts from 1,
        status_code=span.status.status_code.value,
        status_message=span.status.description or "",
        attributes=_plain(span.attributes),
        events=[SpanEvent(event.name, event.timestamp, _plain(event.attributes)) for event in span.events],
        links=[
            SpanLink(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}", _plain(link.attributes))
            for link in span.links
        ],
        trace_state=context.trace_state.to_header(),
        resource=_plain(span.resource.attributes),
        scope_name=span.instrumentation_scope.name if span.instrumentation_scope else "",
    )


def encoded(record: Record) -> bytes:
    """One record as JSON; what UTF-8 cannot hold becomes a question mark."""
    try:
        return encode_record(record)
    except UnicodeEncodeError:  # half a surrogate pair, which a model may emit and UTF-8 cannot hold
        return encode_record(msgspec.convert(_encodable(msgspec.to_builtins(record)), Record))


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _plain(attributes: Any) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, tuple) else value for key, value in (attributes or {}).items()}
