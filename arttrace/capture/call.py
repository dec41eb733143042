"""One model call while it happens: what was sent, what came, in how many attempts; ended once, decoded later.

The user's thread only keeps references to bytes that exist anyway. Whatever ends the call (the answer was read, the
stream was closed, dropped or cancelled, an error was raised) comes to `finish`, and the first one counts.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from typing import Any

from opentelemetry.trace import Span, SpanKind

from arttrace import semconv
from arttrace.capture import content, secrets
from arttrace.capture.config import MAX_BODY_BYTES, MAX_CONTENT_BYTES
from arttrace.capture.flow import Execution
from arttrace.capture.recorder import Recorder
from arttrace.capture.scope import Scope, describe_error, end_span, execution_attributes, run_attributes
from arttrace.wire import Ending, Exchange, decode
from arttrace.wire.span import named_trajectory, read_json

_KEPT_HEADERS = ("content-type", "content-encoding", semconv.POLICY_VERSION_HEADER)

_open_calls: weakref.WeakSet[ModelCall] = weakref.WeakSet()


def close_open_calls() -> None:
    """End the calls whose answers nobody has read to the end: the process is about to."""
    for call in list(_open_calls):
        call.finish("closed")


class ModelCall:
    """One call of a model client, from `request` to the last byte that the user read."""

    def __init__(
        self, *, http_client: Any, scope: Scope, execution: Execution, recorder: Recorder, provider: str
    ) -> None:
        self.http_client = http_client
        self._run = scope.run
        self._content_mode = scope.capture_content
        self._recorder = recorder
        self._execution = execution
        self._provider = provider
        self.routed_from: str | None = None
        self._attempts = 0
        self._request = b""
        self._server: tuple[str, int | None] | None = None
        self._status: int | None = None
        self._headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self._body_size = 0
        self._body_cut = False
        self._streaming = False
        self._stream_ending: Ending | None = None
        self._returned = False
        self._first_chunk_ns: int | None = None
        self._error: BaseException | None = None
        self._ended = False
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self.start_ns = time.time_ns()
        self._span: Span = recorder.start_span("chat", kind=SpanKind.CLIENT, parent=scope.span, start_ns=self.start_ns)
        _open_calls.add(self)
        recorder.started(self._span, self._so_far)

    def sending(self, request: Any) -> None:
        """An HTTP request goes out: the first attempt, or a retry that forgets the one before."""
        self._attempts += 1
        self._status, self._headers, self._streaming, self._stream_ending = None, {}, False, None
        self._body, self._body_size, self._body_cut, self._first_chunk_ns = [], 0, False, None
        self._request = request.content
        url, headers = request.url, request.headers
        self._server = (url.host, url.port)
        secrets.remember_headers(headers)

    def answered(self, response: Any, *, streaming: bool) -> None:
        """Headers came; without `streaming` the whole body too."""
        self._status = response.status_code
        self._headers = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        self._streaming = streaming
        if not streaming:
            self._headers.pop("content-encoding", None)  # the client has undone it
            self.chunk(response.content)

    def chunk(self, data: bytes) -> None:
        """Bytes of the body, as the transport gave them."""
        if self._streaming and self._first_chunk_ns is None:
            self._first_chunk_ns = time.time_ns()
        if self._body_size + len(data) > MAX_BODY_BYTES:
            self._body_cut = True
            return
        self._body.append(data)
        self._body_size += len(data)

    def stream_ended(self, attempt: int, ending: Ending, error: BaseException | None = None) -> None:
        """The stream of one attempt was read, closed, dropped or broken.

        Before `request` has returned that is the end of an attempt only: the client may try again.
        """
        if attempt != self._attempts:
            return
        self._error = error if ending == "error" else None
        self._stream_ending = ending
        if self._returned:
            self.finish(ending, error)

    def returned(self) -> None:
        """`request` has returned: a call that is not a stream, or whose stream was read meanwhile, is over."""
        self._returned = True
        ending = self._stream_ending
        if not self._streaming:
            self.finish("complete")
        elif ending is not None:
            self.finish(ending, self._error)

    def raised(self, error: BaseException) -> None:
        """`request` has raised."""
        cancelled = isinstance(error, (asyncio.CancelledError, KeyboardInterrupt, GeneratorExit))
        self.finish("cancelled" if cancelled else "complete" if self._status is not None else "error", error)

    def finish(self, ending: Ending, error: BaseException | None = None) -> None:
        """End the call now; the second time does nothing."""
        if self._pid != os.getpid():  # in a forked child the call is still the parent's
            return
        with self._lock:
            if self._ended:
                return
            self._ended = True
        end_ns = time.time_ns()
        if not self._is_of_another_run():
            self._run.ended_spans += 1
        _open_calls.discard(self)
        failure = None
        if error is not None and not isinstance(error, GeneratorExit):
            failure = describe_error(error)
        weight = len(self._request) + self._body_size
        self._recorder.submit(lambda: self._decode(ending, failure, end_ns), weight)

    @property
    def attempt(self) -> int:
        """The number of the attempt going on, from 1."""
        return self._attempts

    def _so_far(self) -> dict[str, Any]:
        """What is known of a call that has not ended."""
        attributes = {semconv.OPERATION_NAME: semconv.OPERATION_CHAT, semconv.PROVIDER_NAME: self._provider}
        return attributes | run_attributes(self._run) | execution_attributes(self._execution)

    def _is_of_another_run(self) -> bool:
        """Whether the request names a trajectory other than the one it was made in: it belongs to that one."""
        if b'"trajectory_id"' not in self._request:
            return False
        return named_trajectory(read_json(self._request)) not in (None, self._run.id)

    def _decode(self, ending: Ending, failure: tuple[str, str] | None, end_ns: int) -> None:
        attributes: dict[str, Any] = {semconv.PROVIDER_NAME: self._provider}
        attributes |= run_attributes(self._run) | execution_attributes(self._execution)
        if self._attempts > 1:
            attributes[semconv.ATTEMPTS] = self._attempts
        if self.routed_from is not None:
            attributes[semconv.ROUTED_FROM] = self.routed_from
        if self._server is not None:
            attributes[semconv.SERVER_ADDRESS] = self._server[0]
            if self._server[1] is not None:
                attributes[semconv.SERVER_PORT] = self._server[1]
        if self._first_chunk_ns is not None:
            attributes[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] = (self._first_chunk_ns - self.start_ns) / 1e9
        try:
            decoded = decode(
                Exchange(
                    request=self._request,
                    status=self._status,
                    headers=self._headers,
                    body=b"".join(self._body),
                    ending=ending,
                    body_cut=self._body_cut,
                ),
                content=self._content_mode != "off",
                limit=MAX_CONTENT_BYTES,
            )
            self._span.update_name(decoded.name)
            attributes.update(decoded.attributes)
            failure = failure or decoded.failure
        finally:  # whatever our decoder did, the call was made
            settings = self._recorder.settings
            if failure is not None:
                failure = failure[0], content.apply_to_error(settings, failure[1], self._content_mode)
            end_span(self._span, content.apply(settings, attributes, self._content_mode), end_ns, failure)
