"""Spans out as OTLP/JSON trace requests. Pure; the inverse of otlp.parse_json."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from arttrace.records.span import SpanRow


def encode_json(spans: Iterable[SpanRow]) -> bytes:
    """One request, as one line of JSON. Ids are hex and 64-bit numbers text, as OTLP/JSON has them."""
    resources: dict[bytes, tuple[Any, dict[tuple[str, str], list[Any]]]] = {}
    for span in spans:
        key = msgspec.json.encode(span.resource, order="sorted")
        _, scopes = resources.setdefault(key, (span.resource, {}))
        scopes.setdefault((span.scope_name, span.scope_version), []).append(_span(span))
    return msgspec.json.encode(
        {
            "resourceSpans": [
                {
                    "resource": {"attributes": _attributes(resource)},
                    "scopeSpans": [
                        {"scope": {"name": name, "version": version}, "spans": members}
                        for (name, version), members in scopes.items()
                    ],
                }
                for resource, scopes in resources.values()
            ]
        }
    )


def _span(span: SpanRow) -> dict[str, Any]:
    return {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        **({"parentSpanId": span.parent_span_id} if span.parent_span_id else {}),
        **({"traceState": span.trace_state} if span.trace_state else {}),
        "name": span.name,
        "kind": span.kind,
        "startTimeUnixNano": str(span.start_ns),
        "endTimeUnixNano": str(span.end_ns),
        "attributes": _attributes(span.attributes),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.time_ns), "attributes": _attributes(event.attributes)}
            for event in span.events
        ],
        "links": [
            {"traceId": link.trace_id, "spanId": link.span_id, "attributes": _attributes(link.attributes)}
            for link in span.links
        ],
        "status": {"code": span.status_code, "message": span.status_message},
    }


def _attributes(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": name, "value": _value(value)} for name, value in attributes.items()]


def _value(value: Any) -> dict[str, Any]:
    match value:
        case None:
            return {}
        case bool():
            return {"boolValue": value}
        case int():
            return {"intValue": str(value)}
        case float():
            return {"doubleValue": value}
        case list() | tuple():
            return {"arrayValue": {"values": [_value(item) for item in value]}}
        case dict():
            return {"kvlistValue": {"values": _attributes(value)}}
    return {"stringValue": str(value)}
