"""OTLP trace requests, as protobuf or JSON, become span rows. Pure.

A protobuf request is checked and kept as it came (`check_protobuf`), and becomes rows later (`protobuf_spans`): rows
are what costs. Source: opentelemetry-proto `collector/trace/v1` and the OTLP specification (JSON: ids in hex,
64-bit numbers as text or number, bytes in base64).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Iterable
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, ScopeSpans, Span

from arttrace.formats.otlp.validate import MAX_DEPTH, check_ids, check_times
from arttrace.records.span import Attributes, EntityRef, OriginRest, SpanEvent, SpanLink, SpanRest, SpanRow, Typed
from arttrace.records.values.integers import INT32, INT64, UINT32, UINT64
from arttrace.records.values.json_types import plain
from arttrace.records.values.lenient_json import read_json
from arttrace.records.values.nesting import UNREADABLE

MAX_SPANS = 65_536
"""Bound on the spans of one request."""
MAX_ATTRIBUTES = 65_536
"""Bound on the attributes of one span."""
MAX_SPAN_BYTES = 32 << 20
"""Bound on one span, and so on each of its attributes, as encoded."""

_Odd = list[bytes | float]
"""Takes up values that JSON cannot hold, so that attributes without any are not looked through again."""

_SHOWN = 200  # characters of what was wrong
_WHOLE = re.compile(r"-?[0-9]{1,20}", re.ASCII)
_DOUBLE = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?|NaN|-?Infinity", re.ASCII)
_STANDARD_ALPHABET = str.maketrans("-_", "+/")
_USUAL_ORIGIN, _USUAL_REST = OriginRest(), SpanRest()
_NOTHING_DROPPED = (0, 0, 0)


class Export(msgspec.Struct, frozen=True):
    """The spans of a request, how many others were refused, and why the first of those was."""

    spans: list[SpanRow]
    refused: int = 0
    reason: str = ""


class MalformedRequest(ValueError):
    """The request as a whole cannot be read."""


class TooManySpans(ValueError):
    """The request holds more spans than one request may."""

    def __init__(self) -> None:
        super().__init__(f"the request holds more than {MAX_SPANS} spans: send smaller batches")


# --- protobuf ----------------------------------------------------------------------------------------------


def protobuf_spans(body: bytes) -> list[SpanRow]:
    """The spans of a protobuf request that `check_protobuf` let pass. Raises DecodeError when it is none."""
    spans: list[SpanRow] = []
    odd: _Odd = []
    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        resource, resource_typed = _settled(_protobuf_attributes(resource_spans.resource.attributes, odd), odd)
        for scope_spans in resource_spans.scope_spans:
            scope = scope_spans.scope
            name, version = scope.name, scope.version
            origin = _protobuf_origin(resource_spans, resource_typed, scope_spans)
            spans.extend(_protobuf_span(span, resource, name, version, origin, odd) for span in scope_spans.spans)
    return spans


def _protobuf_origin(
    resource_spans: ResourceSpans, resource_typed: Typed, scope_spans: ScopeSpans
) -> OriginRest | None:
    odd: _Odd = []
    resource, scope = resource_spans.resource, scope_spans.scope
    scope_attributes, scope_typed = _settled(_protobuf_attributes(scope.attributes, odd), odd)
    origin = OriginRest(
        resource_schema_url=resource_spans.schema_url,
        resource_dropped_attributes=resource.dropped_attributes_count,
        resource_typed=resource_typed,
        entities=[
            EntityRef(one.schema_url, one.type, list(one.id_keys), list(one.description_keys))
            for one in resource.entity_refs
        ],
        scope_attributes=scope_attributes,
        scope_dropped_attributes=scope.dropped_attributes_count,
        scope_typed=scope_typed,
        schema_url=scope_spans.schema_url,
    )
    return origin if origin != _USUAL_ORIGIN else None


_NO_PARENT = "0" * 16


def _protobuf_span(
    span: Span, resource: Attributes, scope_name: str, scope_version: str, origin: OriginRest | None, odd: _Odd
) -> SpanRow:
    status, events, links = span.status, span.events, span.links
    attributes, rest = _protobuf_attributes(span.attributes, odd), None
    dropped = span.dropped_attributes_count, span.dropped_events_count, span.dropped_links_count
    if odd or dropped != _NOTHING_DROPPED:
        attributes, typed = _settled(attributes, odd)
        rest = _unusual(SpanRest(*dropped, typed))
    return SpanRow(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=_parent(span.parent_span_id.hex()),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        kind=span.kind,
        status_code=status.code,
        status_message=status.message,
        attributes=attributes,
        events=[_protobuf_event(event, odd) for event in events] if events else [],
        links=[_protobuf_link(link, odd) for link in links] if links else [],
        trace_state=span.trace_state,
        resource=resource,
        scope_name=scope_name,
        scope_version=scope_version,
        flags=span.flags,
        rest=rest,
        origin=origin,
    )


def _protobuf_event(event: Span.Event, odd: _Odd) -> SpanEvent:
    attributes, typed = _settled(_protobuf_attributes(event.attributes, odd), odd)
    return SpanEvent(event.name, event.time_unix_nano, attributes, event.dropped_attributes_count, typed)


def _protobuf_link(link: Span.Link, odd: _Odd) -> SpanLink:
    attributes, typed = _settled(_protobuf_attributes(link.attributes, odd), odd)
    dropped = link.dropped_attributes_count
    return SpanLink(link.trace_id.hex(), link.span_id.hex(), attributes, link.trace_state, link.flags, dropped, typed)


def _protobuf_attributes(pairs: Iterable[KeyValue], odd: _Odd) -> Attributes:
    found: Attributes = {}
    for pair in pairs:
        value = pair.value
        # Nearly all are texts, and of the others nearly all are numbers: what is asked first is what is read fastest.
        found[pair.key] = value.string_value or value.int_value or _protobuf_value(value, odd)
    return found


def _protobuf_value(value: AnyValue, odd: _Odd) -> Any:
    # Nesting is bounded by protobuf itself: a message of more than 100 levels does not parse.
    match kind := value.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_protobuf_value(item, odd) for item in value.array_value.values]
        case "kvlist_value":
            return _protobuf_attributes(value.kvlist_value.values, odd)
    found = getattr(value, kind)
    if kind == "bytes_value" or (kind == "double_value" and not math.isfinite(found)):
        odd.append(found)
    return found


# --- JSON --------------------------------------------------------------------------------------------------


def parse_json(body: bytes) -> Export:
    """Reads a JSON request; a span that is not valid is refused alone. Raises MalformedRequest when it is none,
    TooManySpans when it holds too many."""
    try:
        request = read_json(body)
    except UNREADABLE as error:
        raise MalformedRequest(f"the body is no OTLP trace request in JSON: {error}") from error
    return json_spans(request, most=MAX_SPANS, large=len(body) > MAX_SPAN_BYTES)


def json_spans(request: Any, *, most: float = math.inf, large: bool = True) -> Export:
    """The same of a request that was decoded already. `large` says that a span may be over the bound on its bytes."""
    try:
        groups = [
            (resource_spans, scope_spans)
            for resource_spans in _list(request, "resourceSpans")
            for scope_spans in _list(resource_spans, "scopeSpans")
        ]
        batches = [(group, _list(group[1], "spans")) for group in groups]
    except ValueError as error:
        raise MalformedRequest(f"the body is no OTLP trace request in JSON: {error}") from error
    if sum(len(members) for _, members in batches) > most:
        raise TooManySpans
    spans: list[SpanRow] = []
    refused, reason = 0, ""
    for (resource_spans, scope_spans), members in batches:
        try:
            origin = _json_origin(resource_spans, scope_spans)
        except _INVALID as error:
            refused, reason = refused + len(members), reason or str(error)[:_SHOWN]
            continue
        for span in members:
            try:
                if large and len(msgspec.json.encode(span)) > MAX_SPAN_BYTES:
                    raise ValueError(f"a span is over {MAX_SPAN_BYTES} bytes")
                spans.append(_checked(_json_span(span, origin)))
            except _INVALID as error:
                refused, reason = refused + 1, reason or str(error)[:_SHOWN]
    return Export(spans, refused, reason)


_INVALID = (*UNREADABLE, TypeError, OverflowError)


def _json_origin(resource_spans: Any, scope_spans: Any) -> dict[str, Any]:
    """What all spans of a scope share, as fields of SpanRow."""
    resource, scope = _object(resource_spans, "resource"), _object(scope_spans, "scope")
    attributes, typed = _json_attributes(resource)
    scope_attributes, scope_typed = _json_attributes(scope)
    rest = OriginRest(
        resource_schema_url=_text(resource_spans, "schemaUrl"),
        resource_dropped_attributes=_number(resource, "droppedAttributesCount", UINT32),
        resource_typed=typed,
        entities=[
            EntityRef(
                _text(one, "schemaUrl"),
                _text(one, "type"),
                _texts(one, "idKeys"),
                _texts(one, "descriptionKeys"),
            )
            for one in _list(resource, "entityRefs")
        ],
        scope_attributes=scope_attributes,
        scope_dropped_attributes=_number(scope, "droppedAttributesCount", UINT32),
        scope_typed=scope_typed,
        schema_url=_text(scope_spans, "schemaUrl"),
    )
    return {
        "resource": attributes,
        "scope_name": _text(scope, "name"),
        "scope_version": _text(scope, "version"),
        "origin": rest if rest != _USUAL_ORIGIN else None,
    }


def _parent(id: str) -> str | None:
    """A span's parent; all zeros is how some exporters say that it has none."""
    return None if id == _NO_PARENT else id or None


def _json_span(span: Any, origin: dict[str, Any]) -> SpanRow:
    status = _object(span, "status")
    if len(_list(span, "attributes")) > MAX_ATTRIBUTES:
        raise ValueError(f"a span has more than {MAX_ATTRIBUTES} attributes")
    attributes, typed = _json_attributes(span)
    rest = SpanRest(
        dropped_attributes=_number(span, "droppedAttributesCount", UINT32),
        dropped_events=_number(span, "droppedEventsCount", UINT32),
        dropped_links=_number(span, "droppedLinksCount", UINT32),
        typed=typed,
    )
    return SpanRow(
        trace_id=_text(span, "traceId").lower(),
        span_id=_text(span, "spanId").lower(),
        parent_span_id=_parent(_text(span, "parentSpanId").lower()),
        name=_text(span, "name"),
        start_ns=_number(span, "startTimeUnixNano", UINT64),
        end_ns=_number(span, "endTimeUnixNano", UINT64),
        kind=_number(span, "kind", INT32),
        status_code=_number(status, "code", INT32),
        status_message=_text(status, "message"),
        attributes=attributes,
        events=[_json_event(event) for event in _list(span, "events")],
        links=[_json_link(link) for link in _list(span, "links")],
        trace_state=_text(span, "traceState"),
        flags=_number(span, "flags", UINT32),
        rest=_unusual(rest),
        **origin,
    )


def _json_event(event: Any) -> SpanEvent:
    attributes, typed = _json_attributes(event)
    dropped = _number(event, "droppedAttributesCount", UINT32)
    return SpanEvent(_text(event, "name"), _number(event, "timeUnixNano", UINT64), attributes, dropped, typed)


def _json_link(link: Any) -> SpanLink:
    attributes, typed = _json_attributes(link)
    trace_id, span_id = (bytes.fromhex(_text(link, name)).hex() for name in ("traceId", "spanId"))
    dropped = _number(link, "droppedAttributesCount", UINT32)
    flags = _number(link, "flags", UINT32)
    return SpanLink(trace_id, span_id, attributes, _text(link, "traceState"), flags, dropped, typed)


def _json_attributes(holder: dict[str, Any]) -> tuple[Attributes, Typed]:
    odd: _Odd = []
    return _settled(_json_pairs(holder, "attributes", 0, odd), odd)


def _json_pairs(holder: dict[str, Any], key: str, depth: int, odd: _Odd) -> Attributes:
    return {_text(pair, "key"): _json_value(_object(pair, "value"), depth, odd) for pair in _list(holder, key)}


def _json_value(value: dict[str, Any], depth: int, odd: _Odd) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"an attribute is nested deeper than {MAX_DEPTH} levels")
    for kind, item in value.items():
        if item is None:
            continue  # as if it were not there
        match kind:
            case "stringValue":
                return _text(value, kind)
            case "boolValue":
                return _bool(item)
            case "intValue":
                return _number(value, kind, INT64)
            case "doubleValue":
                found = _double(item)
                if not math.isfinite(found):
                    odd.append(found)
                return found
            case "bytesValue":
                odd.append(_base64(_text(value, kind)))
                return odd[-1]
            case "arrayValue":
                return [_json_value(_mapping(entry), depth + 1, odd) for entry in _list(_mapping(item), "values")]
            case "kvlistValue":
                return _json_pairs(_mapping(item), "values", depth + 1, odd)
    return None


def _base64(text: str) -> bytes:
    """Of either alphabet, padded or not, as protobuf's JSON allows."""
    standard = text.translate(_STANDARD_ALPHABET).rstrip("=")
    return base64.b64decode(standard + "=" * (-len(standard) % 4), validate=True)


def _unusual(rest: SpanRest) -> SpanRest | None:
    return rest if rest != _USUAL_REST else None


def _settled(attributes: Attributes, odd: _Odd) -> tuple[Attributes, Typed]:
    if not odd:
        return attributes, {}
    odd.clear()
    return plain(attributes)


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


def _number(holder: Any, key: str, among: range) -> int:
    """A number, or a text that is one, as protobuf's JSON has it: never a part of it, a truth value or a list."""
    given = _mapping(holder).get(key)
    match given:
        case None | "":
            return 0
        case bool():
            raise ValueError(f"{key} is no number")
        case int():
            value = given
        case float() if given.is_integer():
            value = int(given)
        case str() if (whole := _WHOLE.fullmatch(given)) is not None:
            value = int(whole[0])
        case _:
            raise ValueError(f"{key} is no whole number")
    if value not in among:
        raise ValueError(f"{key} is out of range")
    return value


def _bool(given: Any) -> bool:
    if isinstance(given, bool):
        return given
    if given in ("true", "false"):  # no protobuf writes it so, but people do
        return bool(given == "true")
    raise ValueError("boolValue is neither true nor false")


def _double(given: Any) -> float:
    if isinstance(given, bool) or not isinstance(given, (int, float, str)):
        raise ValueError("doubleValue is no number")
    if isinstance(given, str) and not _DOUBLE.fullmatch(given):
        raise ValueError("doubleValue is no number")
    return float(given)


def _texts(holder: Any, key: str) -> list[str]:
    texts = _list(holder, key)
    if not all(isinstance(one, str) for one in texts):
        raise ValueError(f"{key} holds what is no text")
    return texts


def _text(holder: Any, key: str) -> str:
    value = _mapping(holder).get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ValueError(f"{key} is no text")
    return value


def _checked(span: SpanRow) -> SpanRow:
    check_ids(span)
    check_times(span)
    return span
