"""HTTP responses made without a framework; an error is a google.rpc.Status in the encoding of the sender."""

from __future__ import annotations

import msgspec

from arttrace.formats.otlp.protobuf_fields import encode_bytes

PROTOBUF, JSON = "application/x-protobuf", "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
RETRY_AFTER_S = 2
"""The stock exporter gives up on a batch when the wait does not fit its 10 s."""

_MESSAGE_BYTES = 1000


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP answer: status, content type and body."""

    status: int
    kind: str
    body: bytes
    close: bool = False
    """Whether the connection ends with it."""


class RequestRefused(Exception):
    """A request that is answered with an error status."""

    def __init__(self, status: int, message: str, *, close: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.close = close


def failure(kind: str, status: int, message: str, *, close: bool = False) -> HttpResponse:
    """An error with a google.rpc.Status body, of which the specification asks for field 2, `message`."""
    if kind == PROTOBUF:
        text = message.encode()[:_MESSAGE_BYTES].decode(errors="ignore").encode()
        return HttpResponse(status, PROTOBUF, encode_bytes(text, 2), close)
    return HttpResponse(status, JSON, msgspec.json.encode({"message": message}), close)
