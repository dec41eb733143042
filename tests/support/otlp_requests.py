"""OTLP trace requests to send: chat spans with ids of one's choice."""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

PROTOBUF = "application/x-protobuf"


def chat_request(ids: Iterable[tuple[bytes, bytes]], *, padding: int = 0) -> bytes:
    """A protobuf request with one chat span per (trace id, span id)."""
    message = ExportTraceServiceRequest()
    batch = message.resource_spans.add()
    batch.resource.attributes.add(key="service.name").value.string_value = "service"
    scope = batch.scope_spans.add()
    scope.scope.name = "library"
    for trace_id, span_id in ids:
        span = scope.spans.add(
            trace_id=trace_id,
            span_id=span_id,
            name="chat m",
            kind=3,
            start_time_unix_nano=1_790_000_000_000_000_000,
            end_time_unix_nano=1_790_000_000_000_000_900,
        )
        span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
        span.attributes.add(key="n").value.int_value = 2**53 + 1
        values = span.attributes.add(key="list").value.array_value.values
        values.add().string_value = "x" * padding
        values.add().kvlist_value.values.add(key="k").value.bytes_value = b"\xff"
    return message.SerializeToString()
