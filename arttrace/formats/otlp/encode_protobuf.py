"""Spans out as OTLP trace requests in protobuf. Pure; the inverse of otlp.protobuf_spans."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from arttrace.formats.otlp.by_resource import grouped
from arttrace.records.message import canonical_json
from arttrace.records.span import Attributes, OriginRest, SpanRest, SpanRow, Typed
from arttrace.records.values.integers import INT64
from arttrace.records.values.json_types import exact

_USUAL = SpanRest()
_ROOM = 100 - 6
"""Messages within each other that a parser takes, less those around the value of an event's attribute."""
_MESSAGES_PER_LEVEL = 3
"""Of an object; a list has one less."""


def encode_protobuf(spans: Iterable[SpanRow]) -> bytes:
    """One request. Two of them one after the other are one request again, with the spans of both. What is nested deeper
    than a parser of protobuf goes, 31 objects or 46 lists, is written as JSON text."""
    request = ExportTraceServiceRequest()
    for (span, rest), scopes in grouped(spans):
        of_resource = request.resource_spans.add(schema_url=rest.resource_schema_url)
        _resource(of_resource.resource, span, rest)
        for (one, of_one), members in scopes:
            of_scope = of_resource.scope_spans.add(schema_url=of_one.schema_url)
            _scope(of_scope.scope, one, of_one)
            for member in members:
                _span(of_scope.spans.add(), member)
    return request.SerializeToString()


def _resource(into: Resource, span: SpanRow, rest: OriginRest) -> None:
    _attributes(into.attributes, span.resource, rest.resource_typed)
    into.dropped_attributes_count = rest.resource_dropped_attributes
    for one in rest.entities:
        into.entity_refs.add(
            schema_url=one.schema_url, type=one.type, id_keys=one.id_keys, description_keys=one.description_keys
        )


def _scope(into: InstrumentationScope, span: SpanRow, rest: OriginRest) -> None:
    into.name, into.version = span.scope_name, span.scope_version
    _attributes(into.attributes, rest.scope_attributes, rest.scope_typed)
    into.dropped_attributes_count = rest.scope_dropped_attributes


def _span(into: Span, span: SpanRow) -> None:
    rest = span.rest or _USUAL
    into.trace_id, into.span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
    into.parent_span_id = bytes.fromhex(span.parent_span_id or "")
    into.trace_state, into.flags, into.name = span.trace_state, span.flags, span.name
    into.kind = span.kind  # type: ignore[assignment]  # an open enum
    into.start_time_unix_nano, into.end_time_unix_nano = span.start_ns, span.end_ns
    into.status.code, into.status.message = span.status_code, span.status_message  # type: ignore[assignment]
    _attributes(into.attributes, span.attributes, rest.typed)
    into.dropped_attributes_count = rest.dropped_attributes
    into.dropped_events_count, into.dropped_links_count = rest.dropped_events, rest.dropped_links
    for event in span.events:
        one = into.events.add(name=event.name, time_unix_nano=event.time_ns)
        _attributes(one.attributes, event.attributes, event.typed)
        one.dropped_attributes_count = event.dropped_attributes
    for link in span.links:
        other = into.links.add(
            trace_id=bytes.fromhex(link.trace_id), span_id=bytes.fromhex(link.span_id), trace_state=link.trace_state
        )
        _attributes(other.attributes, link.attributes, link.typed)
        other.flags, other.dropped_attributes_count = link.flags, link.dropped_attributes


class _Pairs(Protocol):
    def add(self, *, key: str) -> KeyValue: ...


def _attributes(into: _Pairs, attributes: Attributes, typed: Typed) -> None:
    _fill(into, exact(attributes, typed))


def _fill(into: _Pairs, attributes: Attributes, room: int = _ROOM) -> None:
    for key, value in attributes.items():
        _value(into.add(key=key).value, value, room)


def _value(into: AnyValue, value: Any, room: int) -> None:
    match value:
        case list() | tuple() | dict() if room < _MESSAGES_PER_LEVEL:
            into.string_value = canonical_json(value).decode()
        case None:
            pass
        case bool():
            into.bool_value = value
        case int() if value in INT64:
            into.int_value = value
        case float():
            into.double_value = value
        case bytes():
            into.bytes_value = value
        case list() | tuple():
            into.array_value.SetInParent()
            for item in value:
                _value(into.array_value.values.add(), item, room - 2)
        case dict():
            into.kvlist_value.SetInParent()
            _fill(into.kvlist_value.values, value, room - _MESSAGES_PER_LEVEL)
        case _:
            into.string_value = str(value)
