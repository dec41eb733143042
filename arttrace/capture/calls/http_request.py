"""One HTTP request of a tool's while it happens: a CLIENT span with method, address, status, sizes and times.

Headers and bodies are not looked at, but for how long they are, unless the settings ask for them. No other span depends
on it: it names nothing to the server, no count of the run's agents, tools and calls has it, and a run from which one is
lost is still complete. How many were begun stands on the run's root, so that what is lost is known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import get_value
from opentelemetry.trace import SpanKind

from arttrace.capture.base.values import describe_error, is_cancellation
from arttrace.capture.calls.http_content import MAX_BYTES, Headers, body_json, headers_json, pairs, value_of
from arttrace.capture.calls.model_call import is_suppressed
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.context.position import Position
from arttrace.capture.export.open_span import OpenSpan
from arttrace.records import semconv
from arttrace.system.addresses import without_userinfo
from arttrace.wire import Ending
from arttrace.wire.content import ContentMode, Hidden
from arttrace.wire.content.secrets import SECRET

_MAX_METHOD = 20
_MAX_URL = 4096
_PART = re.compile(r"[^&;]+")


def requesting_position() -> Position | None:
    """Where the caller's requests are recorded; None where they are not."""
    flow = calling_flow()
    position = flow.scope or program.begun()
    if position is None or flow.muted:
        return None
    settings = position.recorder.settings
    if not settings.http_spans or settings.disabled:
        return None
    return None if is_suppressed() or get_value("suppress_http_instrumentation") else position


def shown_url(url: str) -> str:
    """A URL without user, password and fragment, and with the names of its query alone."""
    parts = urlsplit(url[:_MAX_URL])
    query = _PART.sub(lambda part: _shown_part(part[0]), parts.query)
    return parts._replace(netloc=without_userinfo(parts.netloc), query=query, fragment="").geturl()


def _shown_part(part: str) -> str:
    name, _, value = part.partition("=")
    return f"{name}={SECRET}" if value.strip("=") else SECRET  # a lone text may be a key, and end in base64's "=="


class OpenHttpRequest:
    """From its beginning to its one end: the answer was read, closed, dropped or cancelled, or an error was raised.

    It takes what a stream's tap hands on (patches/httpx.py), as a model call and its attempt do.
    """

    __slots__ = (
        "_asked", "_asks_for_content", "_body", "_ended", "_headers", "_method", "_received", "_request_body",
        "_request_headers", "_request_size", "_scope", "_status", "_url", "_wants_bodies", "body_undone",
        "response_size", "span",
    )  # fmt: skip

    def __init__(self, scope: Position, method: str) -> None:
        self.span = OpenSpan("HTTP", SpanKind.CLIENT, scope.context, time.time_ns())
        self._scope = scope
        self._method = method
        self._url: Any = ""  # of the client's own type: text is made of it later
        self._request_size: int | None = None
        self.response_size: Callable[[], Any] | None = None
        """Tells how many bytes of the answer came, where that is not what is read."""
        self._received = 0
        self._asked = scope.recorder.settings.http_spans
        self._wants_bodies = "bodies" in self._asked
        self._asks_for_content = len(self._asked) > 1
        self._request_headers: Headers = ()
        self._headers: Headers = ()
        self._request_body = b""
        self._body = bytearray()
        self._status: int | None = None
        self._ended = False
        self.body_undone = False
        scope.run.http_requests += 1

    @property
    def capture_content(self) -> ContentMode:
        """What of its content is kept."""
        return self._scope.capture_content

    @property
    def hidden(self) -> Hidden:
        """What was taken out of its run."""
        return self._scope.run.hidden

    def so_far(self) -> dict[str, Any]:
        """Nothing: it is written when it has ended."""
        return {}

    def sent(self, url: Any, headers: Mapping[str, Any], body: Any = None) -> None:
        """What is sent, and where to; the body where it is bytes or text, and recorded."""
        self._url, self._request_size = url, _size(headers)
        if self._asks_for_content:
            self._request_headers = pairs(headers)
        if self._wants_bodies and isinstance(body, (bytes, bytearray, str)):
            begun = body[: MAX_BYTES + 1]
            self._request_body = begun.encode(errors="replace") if isinstance(begun, str) else bytes(begun)

    def answered(self, status: int, headers: Any = None, body: bytes | None = None) -> OpenHttpRequest:
        """Its status has come, and with a `body` all of it."""
        self._status = status
        if self._asks_for_content:
            self._headers = pairs(headers)
        if body is not None:
            self.body_undone = True  # by the client
            self.chunk(body)
            self._end("complete")
        return self

    def chunk(self, data: bytes) -> None:
        """A part of the body was read."""
        self._received += len(data)
        if self._wants_bodies and len(self._body) <= MAX_BYTES:
            self._body += data[: MAX_BYTES + 1 - len(self._body)]

    def not_answered(self, error: BaseException) -> None:
        """The client raised."""
        self._end("cancelled" if is_cancellation(error) else "error", error)

    def stream_ended(self, attempt: Any, ending: Ending, error: BaseException | None = None) -> None:
        """The body was read, or will not be."""
        self._end(ending, error)

    def _end(self, ending: Ending, error: BaseException | None = None) -> None:
        if self._ended:
            return
        self._ended = True
        end_ns = time.time_ns()
        size = None if self.response_size is None else self.response_size()
        received = size if isinstance(size, int) else self._received
        self.response_size = None
        kind = None if error is None or ending in ("closed", "cancelled") else describe_error(error)[0]
        weight = len(self._request_body) + len(self._body)
        self._scope.recorder.submit(lambda: self._record(end_ns, ending, received, kind), weight)

    def _record(self, end_ns: int, ending: Ending, received: int, error: str | None) -> None:
        scope, url = self._scope, str(self._url)
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:  # no address, and its error, which is the user's, quotes the password in it
            url, parts, port = "", urlsplit(""), None
        method = self._method.upper()[:_MAX_METHOD]
        self.span.name = f"{method} {parts.hostname or ''}".strip()
        attributes: dict[str, Any] = {semconv.HTTP_METHOD: method}
        if parts.hostname:
            attributes[semconv.SERVER_ADDRESS] = parts.hostname
        if port is not None:
            attributes[semconv.SERVER_PORT] = port
        shown = scope.recorder.rules.url(shown_url(url), scope.capture_content, scope.run.hidden)
        if shown:
            attributes[semconv.URL_FULL] = shown
        if self._request_size is not None:
            attributes[semconv.HTTP_REQUEST_SIZE] = self._request_size
        if self._status is not None:
            attributes[semconv.HTTP_STATUS_CODE] = self._status
            attributes[semconv.HTTP_RESPONSE_SIZE] = received
        attributes |= self._asked_for()
        if ending in ("closed", "cancelled"):
            attributes[semconv.INTERRUPTED] = ending
        attributes |= scope.run.attributes
        attributes[semconv.TRAJECTORY_SPAN_COUNT] = 0  # it counts for itself: none is missing where it is lost
        if error is None and self._status is not None and self._status >= 400:
            error = str(self._status)
        # An error's message quotes the address, and its type says what happened.
        scope.recorder.ended(self, attributes, end_ns, None if error is None else (error, ""))

    def _asked_for(self) -> dict[str, Any]:
        """Headers and bodies, as JSON texts, and the names of those that were cut."""
        found: dict[str, tuple[str | None, bool]] = {}
        if "headers" in self._asked:
            found[semconv.HTTP_REQUEST_HEADERS] = headers_json(self._request_headers)
            found[semconv.HTTP_RESPONSE_HEADERS] = headers_json(self._headers)
        if self._wants_bodies:
            kind = value_of(self._request_headers, "content-type")
            found[semconv.HTTP_REQUEST_BODY] = body_json(self._request_body, kind)
            kind = value_of(self._headers, "content-type")
            encoding = "" if self.body_undone else value_of(self._headers, "content-encoding")
            found[semconv.HTTP_RESPONSE_BODY] = body_json(bytes(self._body), kind, encoding)
        kept = {name: text for name, (text, _) in found.items() if text is not None}
        cut = [name for name, (_, was_cut) in found.items() if was_cut]
        return kept | ({semconv.TRUNCATED: cut} if cut else {})


def _size(headers: Mapping[str, Any]) -> int | None:
    said = str(headers.get("content-length"))
    return int(said) if said.isdecimal() and len(said) < 16 else None
