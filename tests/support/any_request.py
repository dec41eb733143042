"""Any trace request: every field of OTLP's trace messages filled by hypothesis, and what makes two requests equal."""

from __future__ import annotations

import math
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from hypothesis import assume
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from arttrace.records import semconv

OF_PROFILES = {"key_strindex", "string_value_strindex"}
"""Fields that mean nothing in traces: senders must not set them there."""

_MEANT = [value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str)]
_JSON = ['[{"role": "user", "parts": []}]', '[{"a":1},{"b":[1.0]}]', "[]", "[1,2]", "{}", "null", "AAEC", "chat"]

texts = st.text(max_size=8)
_keys = st.one_of(st.sampled_from(_MEANT), texts)
_scalars: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_BYTES: st.binary(max_size=8),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_INT64: st.integers(-(1 << 63), (1 << 63) - 1),
    FieldDescriptor.TYPE_UINT32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_FIXED32: st.integers(0, (1 << 32) - 1),
    FieldDescriptor.TYPE_FIXED64: st.integers(0, (1 << 64) - 1),
    FieldDescriptor.TYPE_ENUM: st.one_of(st.integers(0, 5), st.integers(-(1 << 31), (1 << 31) - 1)),
}
_time = st.integers(1, (1 << 63) - 1)
_id_of_span = st.binary(min_size=8, max_size=8).filter(any)
_NAMED: dict[str, st.SearchStrategy[Any]] = {
    "Span.trace_id": st.one_of(st.just(b"\1" * 16), st.binary(min_size=16, max_size=16).filter(any)),
    "Span.span_id": _id_of_span,
    "Span.parent_span_id": st.one_of(st.just(b""), _id_of_span),
    "Span.start_time_unix_nano": _time,
    "Span.end_time_unix_nano": st.one_of(st.just(0), _time),
}


@st.composite
def requests(draw: st.DrawFn, spans: int = 3) -> ExportTraceServiceRequest:
    """A request in which every span is one that a collector takes, and no two are one span, to a store: their ids are
    bytes, of which hypothesis likes to draw the same twice."""
    request = ExportTraceServiceRequest()
    _fill(draw, request, spans)
    for of_resource in request.resource_spans:
        for of_scope in of_resource.scope_spans:
            if not of_scope.spans:
                _fill(draw, of_scope.spans.add(), spans)
    ids = [
        (span.trace_id, span.span_id)
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]
    assume(len(set(ids)) == len(ids))
    return request


def _fill(draw: st.DrawFn, message: Message, most: int, depth: int = 0) -> None:
    if isinstance(message, AnyValue):
        _fill_value(draw, message, most, depth)
        return
    for field in message.DESCRIPTOR.fields:
        if field.name in OF_PROFILES:
            continue
        if _is_pairs(field):
            for key in draw(st.lists(_keys, max_size=most, unique=True)):
                pair = getattr(message, field.name).add(key=key)
                pair.value.SetInParent()
                _fill(draw, pair.value, most, depth + 1)
        elif field.message_type is not None and field.is_repeated:
            for _ in range(draw(st.integers(1 if field.name == "scope_spans" else 0, most))):
                _fill(draw, getattr(message, field.name).add(), most, depth)
        elif field.message_type is not None:
            _fill(draw, getattr(message, field.name), most, depth)
        elif field.is_repeated:
            getattr(message, field.name).extend(draw(st.lists(_scalars[field.type], max_size=most)))
        else:
            named = _NAMED.get(f"Span.{field.name}") if isinstance(message, Span) else None
            setattr(message, field.name, draw(named if named is not None else _scalars[field.type]))


def _fill_value(draw: st.DrawFn, value: AnyValue, most: int, depth: int) -> None:
    kinds = [field for field in value.DESCRIPTOR.fields if field.name not in OF_PROFILES]
    field = draw(st.sampled_from([None, *(kind for kind in kinds if depth < 4 or kind.message_type is None)]))
    if field is None:
        return
    if field.message_type is not None:
        getattr(value, field.name).SetInParent()
        _fill(draw, getattr(value, field.name), most, depth + 1)
        return
    scalar = _scalars[field.type]
    setattr(
        value, field.name, draw(st.one_of(st.sampled_from(_JSON), scalar) if field.name == "string_value" else scalar)
    )


def _is_pairs(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.name == "KeyValue"


def spans_of(request: ExportTraceServiceRequest) -> set[Any]:
    """Each span with its resource and scope, whatever the grouping and the order of spans and attributes."""
    return {
        (
            _canonical(of_resource.resource),
            of_resource.schema_url,
            _canonical(of_scope.scope),
            of_scope.schema_url,
            _canonical(span),
        )
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    }


def _canonical(message: Message) -> Any:
    return tuple((field.name, _of_field(message, field)) for field in _fields(message.DESCRIPTOR))


def _fields(descriptor: Descriptor) -> list[FieldDescriptor]:
    return sorted(descriptor.fields, key=lambda field: field.number)


def _of_field(message: Message, field: FieldDescriptor) -> Any:
    value = getattr(message, field.name)
    if field.is_repeated:
        items = [_canonical(item) if field.message_type is not None else item for item in value]
        return tuple(sorted(items, key=repr) if _is_pairs(field) else items)
    if field.containing_oneof is not None and not message.HasField(field.name):
        return None
    if field.message_type is not None:  # one that is absent is an empty one
        return _canonical(value) if message.HasField(field.name) or field.message_type.name != "AnyValue" else _EMPTY
    return ("nan" if math.isnan(value) else repr(value)) if isinstance(value, float) else value


_EMPTY = _canonical(AnyValue())
