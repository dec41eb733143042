"""HTTP responses made without a framework."""

from __future__ import annotations

import msgspec

JSON = "application/json"
METRICS = "text/plain; version=0.0.4; charset=utf-8"
RETRY_AFTER_S = 2
"""The stock exporter gives up on a batch when the wait does not fit its 10 s."""


class HttpResponse(msgspec.Struct, frozen=True):
    """An HTTP response: status, content type and body."""

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


def json_failure(status: int, message: str, *, close: bool = False) -> HttpResponse:
    """An error with a google.rpc.Status body in JSON."""
    return HttpResponse(status, JSON, msgspec.json.encode({"message": message}), close)
