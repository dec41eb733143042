"""Records as an OTLP trace request in protobuf, written by hand: the bare install has no protobuf. Pure.

Protobuf and not JSON, because every OTLP receiver must take it and JSON texts inside JSON texts would grow. Field
numbers are those of opentelemetry-proto `collector/trace/v1`, `trace/v1`, `common/v1` and `resource/v1`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from arttrace.formats.otlp.protobuf_fields import encode_varint
from arttrace.records.span import SpanEvent, SpanLink, SpanRow
from arttrace.records.values.integers import INT64

_MAX_DEPTH = 32  # a message nested over a hundred levels does not parse; each of ours takes three
_SMALL = [bytes((number,)) for number in range(0x80)]
_TAGS = [_SMALL[field << 3 | 2] for field in range(16)]  # of fields that hold a length and bytes
_double = struct.Struct("<d").pack
_fixed64 = struct.Struct("<Q").pack


def encode_request(spans: Iterable[SpanRow]) -> bytes:
    """One ExportTraceServiceRequest. Spans of one resource and instrumentation scope that follow each other share it.

    Raises ValueError for a span whose ids are no hex or whose values OTLP cannot hold.
    """
    request: list[bytes] = []
    group: list[bytes] = []
    last: SpanRow | None = None
    for span in spans:
        if last is not None and not _same_origin(last, span):
            request.append(_resource_spans(last, group))
            group = []
        group.append(_bytes(2, _span(span)))
        last = span
    if last is not None:
        request.append(_resource_spans(last, group))
    return b"".join(request)


def _same_origin(one: SpanRow, other: SpanRow) -> bool:
    return (
        one.scope_name == other.scope_name
        and one.scope_version == other.scope_version
        and one.resource == other.resource
    )


def _resource_spans(origin: SpanRow, spans: list[bytes]) -> bytes:
    resource = _attributes(1, origin.resource)
    scope = _text(1, origin.scope_name) + _text(2, origin.scope_version)
    scope_spans = _bytes(1, scope) + b"".join(spans)
    return _bytes(1, _bytes(1, resource) + _bytes(2, scope_spans))


def _span(span: SpanRow) -> bytes:
    status = _text(2, span.status_message) + (_number(3, span.status_code) if span.status_code else b"")
    return b"".join(
        (
            _bytes(1, bytes.fromhex(span.trace_id)),
            _bytes(2, bytes.fromhex(span.span_id)),
            _text(3, span.trace_state),
            _bytes(4, bytes.fromhex(span.parent_span_id)) if span.parent_span_id else b"",
            _text(5, span.name),
            _number(6, span.kind),
            _time(7, span.start_ns),
            _time(8, span.end_ns),
            _attributes(9, span.attributes),
            *(_bytes(11, _event(event)) for event in span.events),
            *(_bytes(13, _link(link)) for link in span.links),
            _bytes(15, status) if status else b"",
        )
    )


def _event(event: SpanEvent) -> bytes:
    return _time(1, event.time_ns) + _text(2, event.name) + _attributes(3, event.attributes)


def _link(link: SpanLink) -> bytes:
    ids = _bytes(1, bytes.fromhex(link.trace_id)) + _bytes(2, bytes.fromhex(link.span_id))
    return ids + _attributes(4, link.attributes)


def _attributes(field: int, attributes: Mapping[str, Any], depth: int = 0) -> bytes:
    return b"".join([_bytes(field, _key(key) + _bytes(2, _value(value, depth))) for key, value in attributes.items()])


@lru_cache(maxsize=1024)
def _key(key: str) -> bytes:
    return _text(1, key)


def _value(value: Any, depth: int) -> bytes:
    """One AnyValue; a member of a oneof is written even when it is zero or empty."""
    if isinstance(value, str):
        return _bytes(1, value.encode())
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return _number(3, value) if INT64.start <= value < INT64.stop else _bytes(1, str(value).encode())
    if isinstance(value, float):
        return b"\x21" + _double(value)
    if value is None:
        return b""
    if depth >= _MAX_DEPTH:
        raise ValueError(f"an attribute is nested deeper than {_MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return _bytes(6, _attributes(1, value, depth + 1))
    if isinstance(value, bytes):
        return _bytes(7, value)
    return _bytes(5, b"".join(_bytes(1, _value(item, depth + 1)) for item in value))


def _text(field: int, text: str) -> bytes:
    return _bytes(field, text.encode()) if text else b""


def _bytes(field: int, data: bytes) -> bytes:
    size = len(data)
    return _TAGS[field] + (_SMALL[size] if size < 0x80 else encode_varint(size)) + data


def _number(field: int, number: int) -> bytes:
    return encode_varint(field << 3) + encode_varint(number & 0xFFFF_FFFF_FFFF_FFFF)


def _time(field: int, time_ns: int) -> bytes:
    try:
        return encode_varint(field << 3 | 1) + _fixed64(time_ns)
    except struct.error as error:
        raise ValueError(f"{time_ns} is no time in nanoseconds since 1970") from error
