"""A request with chat spans, in protobuf and in JSON, what the collector makes of them, and what it has on the disk."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
)

from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.formats.journal_entry import decode_payload
from arttrace.records.span import SpanRow
from arttrace.system.journal import list_segments, read_segment
from arttrace.system.paths import DataDir


def request(*span_ids: bytes) -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "svc"
    scope = resource.scope_spans.add()
    scope.scope.name = "lib"
    for span_id in span_ids:
        span = scope.spans.add(
            trace_id=b"\x01" * 16, span_id=span_id, name="chat m", kind=3, start_time_unix_nano=5, end_time_unix_nano=9
        )
        span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
        span.attributes.add(key="n").value.int_value = 2**53 + 1
        numbers = span.attributes.add(key="list").value.array_value
        numbers.values.add().double_value = 0.5
        numbers.values.add().bool_value = True
        span.attributes.add(key="map").value.kvlist_value.values.add(key="k").value.bytes_value = b"\xff"
    return message


EXPECTED = {"gen_ai.operation.name": "chat", "n": 2**53 + 1, "list": [0.5, True], "map": {"k": "/w=="}}


HEADERS = {"content-type": PROTOBUF}


def as_json(span_id: Any) -> dict[str, Any]:
    attributes = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "n", "value": {"intValue": str(2**53 + 1)}},
        {"key": "list", "value": {"arrayValue": {"values": [{"doubleValue": 0.5}, {"boolValue": True}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "/w=="}}]}}},
    ]
    span = {
        "traceId": "01" * 16,
        "spanId": span_id,
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": "5",
        "endTimeUnixNano": 9,
        "attributes": attributes,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "svc"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "lib"}, "spans": [span]}]}]}


def spooled(data: DataDir) -> list[SpanRow]:
    """What is durable now: in the spool, or already in the store."""
    payloads = [payload for segment in list_segments(data.spool) for _, payload in read_segment(segment.path)]
    return [record for payload in payloads for record in decode_payload(payload) if isinstance(record, SpanRow)]
