"""OTLP trace requests, as protobuf or JSON, become span rows. Pure.

A protobuf request is checked and kept as it came (`check_protobuf`), and becomes rows later (`protobuf_spans`): rows
are what costs. Source: opentelemetry-proto `collector/trace/v1` and the OTLP specification (JSON: ids in hex,
64-bit numbers as text or number, bytes in base64).
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from arttrace.records.span import Attributes, SpanEvent, SpanLink, SpanRow

_JSON_DEPTH = 32
_LATEST_NS = (1 << 63) - 1


class Export(msgspec.Struct, frozen=True):
    """The spans of a request, how many others were refused, and why the first of those was."""

    spans: list[SpanRow]
    refused: int = 0
    reason: str = ""


class MalformedRequest(ValueError):
    """The request as a whole cannot be read."""


# --- protobuf ----------------------------------------------------------------------------------------------


def protobuf_spans(body: bytes) -> list[SpanRow]:
    """The spans of a protobuf request that `check_protobuf` let pass. Raises DecodeError when it is none."""
    spans: list[SpanRow] = []
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource = _protobuf_attributes(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            scope = scope_spans.scope
            name, version = scope.name, scope.version
            spans.extend(_protobuf_span(span, resource, name, version) for span in scope_spans.spans)
    return spans


def _protobuf_span(span: Span, resource: Attributes, scope_name: str, scope_version: str) -> SpanRow:
    status, events, links = span.status, span.events, span.links
    return SpanRow(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex() or None,
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        kind=span.kind,
        status_code=status.code,
        status_message=status.message,
        attributes=_protobuf_attributes(span.attributes),
        events=[SpanEvent(event.name, event.time_unix_nano, _protobuf_attributes(event.attributes)) for event in events]
        if events
        else [],
        links=[
            SpanLink(link.trace_id.hex(), link.span_id.hex(), _protobuf_attributes(link.attributes)) for link in links
        ]
        if links
        else [],
        trace_state=span.trace_state,
        resource=resource,
        scope_name=scope_name,
        scope_version=scope_version,
    )


def _protobuf_attributes(pairs: Iterable[KeyValue]) -> Attributes:
    found: Attributes = {}
    for pair in pairs:
        value = pair.value
        found[pair.key] = value.string_value or _protobuf_value(value)  # nearly all are texts
    return found


def _protobuf_value(value: AnyValue) -> Any:
    # Nesting is bounded by protobuf itself: a message of more than 100 levels does not parse.
    match kind := value.WhichOneof("value"):
        case None:
            return None
        case "bytes_value":
            return base64.b64encode(value.bytes_value).decode("ascii")
        case "array_value":
            return [_protobuf_value(item) for item in value.array_value.values]
        case "kvlist_value":
            return _protobuf_attributes(value.kvlist_value.values)
    return getattr(value, kind)


# --- JSON --------------------------------------------------------------------------------------------------


def parse_json(body: bytes) -> Export:
    """Reads a JSON request; a span that is not valid is refused alone. Raises MalformedRequest when it is none."""
    try:
        request = msgspec.json.decode(body)
        groups = [
            (resource_spans, scope_spans)
            for resource_spans in _list(request, "resourceSpans")
            for scope_spans in _list(resource_spans, "scopeSpans")
        ]
        batches = [(group, _list(group[1], "spans")) for group in groups]
    except (ValueError, RecursionError) as error:
        raise MalformedRequest(f"the body is no OTLP trace request in JSON: {error}") from error
    spans: list[SpanRow] = []
    refused: list[str] = []
    for (resource_spans, scope_spans), members in batches:
        for span in members:
            try:
                spans.append(_checked(_json_span(span, resource_spans, _object(scope_spans, "scope"))))
            except (ValueError, TypeError, OverflowError) as error:
                refused.append(str(error))
    return Export(spans, len(refused), refused[0] if refused else "")


def _json_span(span: Any, resource_spans: Any, scope: dict[str, Any]) -> SpanRow:
    status = _object(span, "status")
    return SpanRow(
        trace_id=_text(span, "traceId").lower(),
        span_id=_text(span, "spanId").lower(),
        parent_span_id=_text(span, "parentSpanId").lower() or None,
        name=_text(span, "name"),
        start_ns=int(span.get("startTimeUnixNano", 0)),
        end_ns=int(span.get("endTimeUnixNano", 0)),
        kind=int(span.get("kind", 0)),
        status_code=int(status.get("code", 0)),
        status_message=_text(status, "message"),
        attributes=_json_attributes(span),
        events=[
            SpanEvent(_text(event, "name"), int(event.get("timeUnixNano", 0)), _json_attributes(event))
            for event in _list(span, "events")
        ],
        links=[
            SpanLink(_text(link, "traceId").lower(), _text(link, "spanId").lower(), _json_attributes(link))
            for link in _list(span, "links")
        ],
        trace_state=_text(span, "traceState"),
        resource=_json_attributes(_object(resource_spans, "resource")),
        scope_name=_text(scope, "name"),
        scope_version=_text(scope, "version"),
    )


def _json_attributes(holder: dict[str, Any], key: str = "attributes", depth: int = 0) -> Attributes:
    return {_text(pair, "key"): _json_value(_object(pair, "value"), depth) for pair in _list(holder, key)}


def _json_value(value: dict[str, Any], depth: int) -> Any:
    if depth > _JSON_DEPTH:
        raise ValueError(f"an attribute is nested deeper than {_JSON_DEPTH} levels")
    for kind, item in value.items():
        match kind:
            case "stringValue" | "bytesValue":
                return str(item)
            case "boolValue":
                return bool(item)
            case "intValue":
                return int(item)
            case "doubleValue":
                return float(item)
            case "arrayValue":
                return [_json_value(_mapping(entry), depth + 1) for entry in _list(_mapping(item), "values")]
            case "kvlistValue":
                return _json_attributes(_mapping(item), "values", depth + 1)
    return None


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("expected an object")
    return value


def _list(holder: Any, key: str) -> list[Any]:
    value = _mapping(holder).get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{key} is no array")
    return value


def _object(holder: Any, key: str) -> dict[str, Any]:
    value = _mapping(holder).get(key)
    return {} if value is None else _mapping(value)


def _text(holder: Any, key: str) -> str:
    value = _mapping(holder).get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _checked(span: SpanRow) -> SpanRow:
    if not _is_id(span.trace_id, 32):
        raise ValueError(f"span {span.name!r}: the trace id is not 16 bytes, or all zero")
    if not _is_id(span.span_id, 16):
        raise ValueError(f"span {span.name!r}: the span id is not 8 bytes, or all zero")
    if span.parent_span_id is not None and not _is_id(span.parent_span_id, 16):
        raise ValueError(f"span {span.name!r}: the parent span id is not 8 bytes, or all zero")
    if not (0 < span.start_ns <= _LATEST_NS and 0 <= span.end_ns <= _LATEST_NS):
        raise ValueError(f"span {span.name!r}: its times are not nanoseconds since 1970")
    return span


def _is_id(text: str, digits: int) -> bool:
    return len(text) == digits and text.strip("0") != "" and all(c in "0123456789abcdef" for c in text)
