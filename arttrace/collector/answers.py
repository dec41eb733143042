"""What an OTLP receiver answers: (partial) success, and errors as google.rpc.Status, in the encoding of the sender."""

from __future__ import annotations

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from arttrace.formats.otlp.check_protobuf import encode_varint

PROTOBUF, JSON = "application/x-protobuf", "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
RETRY_AFTER_S = 2
"""The stock exporter gives up on a batch when the wait does not fit its 10 s."""

_MESSAGE_BYTES = 1000


class Answer(msgspec.Struct, frozen=True):
    """An HTTP answer: status, content type and body."""

    status: int
    kind: str
    body: bytes
    close: bool = False
    """Whether the connection ends with it."""


class Refused(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close


def partial_success(refused: int, reason: str) -> bytes:
    """ExportTraceServiceResponse in protobuf."""
    answer = ExportTraceServiceResponse()
    if refused:
        answer.partial_success.rejected_spans = refused
        answer.partial_success.error_message = reason
    return answer.SerializeToString()


def success(kind: str, refused: int, reason: str) -> Answer:
    """200, with the count of the spans that were refused, if any."""
    if kind != JSON:
        return Answer(200, PROTOBUF, partial_success(refused, reason))
    partial = {"rejectedSpans": str(refused), "errorMessage": reason}
    return Answer(200, JSON, msgspec.json.encode({"partialSuccess": partial} if refused else {}))


def failure(kind: str, status: int, message: str, *, close: bool = False) -> Answer:
    """An error with a google.rpc.Status body, of which the specification asks for field 2, `message`."""
    if kind == PROTOBUF:
        text = message.encode()[:_MESSAGE_BYTES].decode(errors="ignore").encode()
        return Answer(status, PROTOBUF, b"\x12" + encode_varint(len(text)) + text, close)
    return Answer(status, JSON, msgspec.json.encode({"message": message}), close)
