"""An OTLP trace request as JSON becomes span rows; a span that is not valid is refused alone. Pure.

Source: the OTLP specification: ids in hex, 64-bit numbers as text or number, bytes in base64.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

import msgspec

from arttrace.formats.otlp.json_fields import (
    array,
    base64_bytes,
    boolean,
    double,
    integer,
    mapping,
    object_of,
    text,
    texts,
)
from arttrace.formats.otlp.logs import instead_of_unread, traces_of_json
from arttrace.formats.otlp.request import (
    MAX_ATTRIBUTES,
    MAX_SPAN_BYTES,
    MAX_SPANS,
    USUAL_ORIGIN,
    Export,
    MalformedRequest,
    Odd,
    TooManySpans,
    parent,
    settled,
    unusual,
)
from arttrace.formats.otlp.validate import MAX_DEPTH, check_ids, check_times
from arttrace.records.span import Attributes, EntityRef, OriginRest, SpanEvent, SpanLink, SpanRest, SpanRow, Typed
from arttrace.records.values.integers import INT32, INT64, UINT32, UINT64
from arttrace.records.values.lenient_json import read_json
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.identity.stand_ins import SAID, stand_in

_SHOWN = 200  # characters of what was wrong


def parse_json(body: bytes, *, logs: bool = False) -> Export:
    """Reads a JSON request of traces, or of logs; a span that is not valid is refused alone. Raises MalformedRequest
    when it is none, TooManySpans when it holds too many."""
    try:
        request = read_json(body)
    except UNREADABLE as error:
        raise MalformedRequest(f"the body is no OTLP {'log' if logs else 'trace'} request in JSON: {error}") from error
    read = json_logs if logs else json_spans
    return read(request, most=MAX_SPANS, large=len(body) > MAX_SPAN_BYTES)


def json_logs(request: Any, *, most: float = math.inf, large: bool = True) -> Export:
    """The GenAI events of a log request that was decoded already; a record that is not valid is refused alone."""
    traces, refused = traces_of_json(request)
    export = json_spans(traces, most=most, large=large)
    why = f"a log record cannot be read: {refused[0][1]}"[:_SHOWN] if refused else export.reason
    stand_ins = [one for record, why in refused if (one := instead_of_unread(record, why)) is not None]
    return Export(export.spans, export.refused + len(refused), why, [*export.stand_ins, *stand_ins])


def json_spans(request: Any, *, most: float = math.inf, large: bool = True) -> Export:
    """The same of a request that was decoded already. `large` says that a span may be over the bound on its bytes."""
    try:
        groups = [
            (resource_spans, scope_spans)
            for resource_spans in array(request, "resourceSpans")
            for scope_spans in array(resource_spans, "scopeSpans")
        ]
        batches = [(group, array(group[1], "spans")) for group in groups]
    except ValueError as error:
        raise MalformedRequest(f"the body is no OTLP trace request in JSON: {error}") from error
    if sum(len(members) for _, members in batches) > most:
        raise TooManySpans
    spans: list[SpanRow] = []
    reasons: list[str] = []
    stand_ins: list[SpanRow] = []

    def refuse(span: Any, error: Exception) -> None:
        reasons.append(str(error)[:_SHOWN])
        if (instead := _stand_in(span, reasons[-1])) is not None:
            stand_ins.append(instead)

    for (resource_spans, scope_spans), members in batches:
        try:
            origin = _origin(resource_spans, scope_spans)
        except _INVALID as error:
            for span in members:
                refuse(span, error)
            continue
        for span in members:
            try:
                if large and len(msgspec.json.encode(span)) > MAX_SPAN_BYTES:
                    raise ValueError(f"it is over {MAX_SPAN_BYTES} bytes")
                spans.append(_checked(_span(span, origin)))
            except _INVALID as error:
                refuse(span, error)
    return Export(spans, len(reasons), reasons[0] if reasons else "", stand_ins)


_INVALID = (*UNREADABLE, TypeError, OverflowError)


def _origin(resource_spans: Any, scope_spans: Any) -> dict[str, Any]:
    """What all spans of a scope share, as fields of SpanRow."""
    resource, scope = object_of(resource_spans, "resource"), object_of(scope_spans, "scope")
    attributes, typed = _attributes(resource)
    scope_attributes, scope_typed = _attributes(scope)
    rest = OriginRest(
        resource_schema_url=text(resource_spans, "schemaUrl"),
        resource_dropped_attributes=integer(resource, "droppedAttributesCount", UINT32),
        resource_typed=typed,
        entities=[
            EntityRef(
                text(one, "schemaUrl"),
                text(one, "type"),
                texts(one, "idKeys"),
                texts(one, "descriptionKeys"),
            )
            for one in array(resource, "entityRefs")
        ],
        scope_attributes=scope_attributes,
        scope_dropped_attributes=integer(scope, "droppedAttributesCount", UINT32),
        scope_typed=scope_typed,
        schema_url=text(scope_spans, "schemaUrl"),
    )
    return {
        "resource": attributes,
        "scope_name": text(scope, "name"),
        "scope_version": text(scope, "version"),
        "origin": rest if rest != USUAL_ORIGIN else None,
    }


def _span(span: Any, origin: dict[str, Any]) -> SpanRow:
    status = object_of(span, "status")
    if len(array(span, "attributes")) > MAX_ATTRIBUTES:
        raise ValueError(f"a span has more than {MAX_ATTRIBUTES} attributes")
    attributes, typed = _attributes(span)
    rest = SpanRest(
        dropped_attributes=integer(span, "droppedAttributesCount", UINT32),
        dropped_events=integer(span, "droppedEventsCount", UINT32),
        dropped_links=integer(span, "droppedLinksCount", UINT32),
        typed=typed,
    )
    return SpanRow(
        trace_id=text(span, "traceId").lower(),
        span_id=text(span, "spanId").lower(),
        parent_span_id=parent(text(span, "parentSpanId").lower()),
        name=text(span, "name"),
        start_ns=integer(span, "startTimeUnixNano", UINT64),
        end_ns=integer(span, "endTimeUnixNano", UINT64),
        kind=integer(span, "kind", INT32),
        status_code=integer(status, "code", INT32),
        status_message=text(status, "message"),
        attributes=attributes,
        events=[_event(event) for event in array(span, "events")],
        links=[_link(link) for link in array(span, "links")],
        trace_state=text(span, "traceState"),
        flags=integer(span, "flags", UINT32),
        rest=unusual(rest),
        **origin,
    )


def _event(event: Any) -> SpanEvent:
    attributes, typed = _attributes(event)
    dropped = integer(event, "droppedAttributesCount", UINT32)
    return SpanEvent(text(event, "name"), integer(event, "timeUnixNano", UINT64), attributes, dropped, typed)


def _link(link: Any) -> SpanLink:
    attributes, typed = _attributes(link)
    trace_id, span_id = (bytes.fromhex(text(link, name)).hex() for name in ("traceId", "spanId"))
    dropped = integer(link, "droppedAttributesCount", UINT32)
    flags = integer(link, "flags", UINT32)
    return SpanLink(trace_id, span_id, attributes, text(link, "traceState"), flags, dropped, typed)


def _attributes(holder: dict[str, Any]) -> tuple[Attributes, Typed]:
    odd: Odd = []
    return settled(_pairs(holder, "attributes", 0, odd), odd)


def _pairs(holder: dict[str, Any], key: str, depth: int, odd: Odd) -> Attributes:
    return {text(pair, "key"): _value(object_of(pair, "value"), depth, odd) for pair in array(holder, key)}


def _value(value: dict[str, Any], depth: int, odd: Odd) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"an attribute is nested deeper than {MAX_DEPTH} levels")
    for kind, item in value.items():
        if item is None:
            continue  # as if it were not there
        match kind:
            case "stringValue":
                return text(value, kind)
            case "boolValue":
                return boolean(item)
            case "intValue":
                return integer(value, kind, INT64)
            case "doubleValue":
                found = double(item)
                if not math.isfinite(found):
                    odd.append(found)
                return found
            case "bytesValue":
                odd.append(base64_bytes(text(value, kind)))
                return odd[-1]
            case "arrayValue":
                return [_value(mapping(entry), depth + 1, odd) for entry in array(mapping(item), "values")]
            case "kvlistValue":
                return _pairs(mapping(item), "values", depth + 1, odd)
    return None


def _stand_in(span: Any, why: str) -> SpanRow | None:
    """What stands in for a span that cannot be read, from what of it can."""
    if not isinstance(span, dict):
        return None
    start, links = None, []
    attributes: dict[str, Any] = {}
    with contextlib.suppress(*_INVALID):
        start = integer(span, "startTimeUnixNano", UINT64)
    with contextlib.suppress(*_INVALID):
        links = [(link.get("traceId"), link.get("spanId")) for link in array(span, "links") if isinstance(link, dict)]
    with contextlib.suppress(*_INVALID):
        for pair in array(span, "attributes")[:MAX_ATTRIBUTES]:
            if isinstance(pair, dict) and (key := pair.get("key")) in SAID and isinstance(pair.get("value"), dict):
                attributes.setdefault(key, pair["value"].get("stringValue", pair["value"].get("boolValue")))
    return stand_in(
        why,
        trace_id=span.get("traceId"),
        span_id=span.get("spanId"),
        parent_span_id=span.get("parentSpanId"),
        name=span.get("name"),
        start_ns=start,
        attributes=attributes,
        links=links,
        content=span,
    )


def _checked(span: SpanRow) -> SpanRow:
    check_ids(span)
    check_times(span)
    return span
