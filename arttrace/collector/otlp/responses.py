"""Success of an OTLP request, whole or partial, in the encoding of the sender."""

from __future__ import annotations

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from arttrace.store.server.responses import JSON, PROTOBUF, HttpResponse


def partial_success(refused: int, reason: str) -> bytes:
    """ExportTraceServiceResponse in protobuf."""
    answer = ExportTraceServiceResponse()
    if refused:
        answer.partial_success.rejected_spans = refused
        answer.partial_success.error_message = reason
    return answer.SerializeToString()


def success(kind: str, refused: int, reason: str) -> HttpResponse:
    """200, with the count of the spans that were refused, if any."""
    if kind != JSON:
        return HttpResponse(200, PROTOBUF, partial_success(refused, reason))
    partial = {"rejectedSpans": str(refused), "errorMessage": reason}
    return HttpResponse(200, JSON, msgspec.json.encode({"partialSuccess": partial} if refused else {}))
