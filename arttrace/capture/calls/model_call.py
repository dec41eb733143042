"""One model call while it happens: what was sent and received, in how many attempts; ended once, decoded later.

The user's thread only keeps references to bytes and headers that exist anyway. Whatever ends the call (the answer was
read, the stream was closed, dropped or cancelled, an error was raised) comes to `finish`, and the first one counts.
"""

from __future__ import annotations

import os
import re
import sys
import time
import weakref
from collections import Counter
from collections.abc import Mapping
from functools import lru_cache
from typing import Any
from urllib.parse import urlsplit

from opentelemetry.context import get_current, get_value
from opentelemetry.trace import SpanKind

from arttrace.capture.base.values import describe_error, is_cancellation
from arttrace.capture.calls.attempt import Attempt
from arttrace.capture.calls.followed_call import FollowedCall, SeenCall, see
from arttrace.capture.calls.genai_span import CALLS
from arttrace.capture.calls.routing import recorded_there_too
from arttrace.capture.calls.same_call import facts_of
from arttrace.capture.context import program
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.flow import calling_flow, claim_execution
from arttrace.capture.context.position import Position
from arttrace.capture.export import lifecycle
from arttrace.capture.export.open_span import OpenSpan, users_span
from arttrace.capture.export.recorder import Recorder
from arttrace.records import semconv
from arttrace.wire import Ending, api_of, decode, operation_of
from arttrace.wire.content import MAX_CONTENT_BYTES, ContentMode, Hidden, secrets
from arttrace.wire.span_attributes import json_or_none, named_trajectory

orphans: Counter[str] = Counter()
"""Calls outside any trajectory, recorded or not, by model provider."""

_STREAMS = re.compile("event-?stream|ndjson")
"""In the content type of an answer that comes in pieces: in events, in Amazon's too, or in lines."""
_ENDED_BY_A_MARK = ("chat_completions", "completions", "responses")
"""The APIs of which no event counts behind one of "[DONE]", as they are decoded too."""
_open_calls: dict[int, weakref.ref[ModelCall]] = {}  # by id(); who takes a call out of it ends it


def close_open_calls() -> None:
    """End the calls whose answers nobody has read to the end: the process is about to."""
    for known in list(_open_calls.values()):
        if (call := known()) is not None:
            call.finish("closed")


def is_wanted() -> bool:
    """Whether the user has not said, in whatever way, that what is called here is not to be recorded."""
    flow = calling_flow()
    settings = (lifecycle.recorder() if flow.scope is None else flow.scope.recorder).settings
    return not (flow.muted or settings.disabled or is_suppressed())


class UnrecordedCall:
    """Stands for a call that is not to be recorded, so that nothing below the client records it either."""

    http_client: Any = None

    def returned(self) -> None:
        """Do nothing."""

    def raised(self, error: BaseException) -> None:
        """Do nothing."""


UNRECORDED = UnrecordedCall()


def is_suppressed() -> bool:
    """Whether OpenTelemetry's instrumentation is switched off here: a judge's calls, say, are no agent's. While the
    interpreter ends it is off: what a span is made of cannot be imported any more."""
    return bool(get_value("suppress_instrumentation")) or sys.is_finalizing()


def begin_call(
    http_client: Any, *, path: str, provider: str, plain: bool = False, suppressed: bool | None = None
) -> ModelCall | UnrecordedCall | None:
    """The call that the caller's flow makes now, or None when capture is off here.

    `http_client` is the one that will send it, `path` that of its URL or the end of it. `plain` says that no model
    client is known to make the call, only an HTTP client: recorded where the settings say so. Nothing is
    recorded where instrumentation is `suppressed`; None looks that up.
    """
    flow = calling_flow()
    recorder = lifecycle.recorder() if flow.scope is None else flow.scope.recorder
    settings = recorder.settings
    muted = flow.muted or (is_suppressed() if suppressed is None else suppressed)
    if muted or settings.disabled or (plain and not settings.capture_http):
        return None
    scope = flow.scope or program.scope()
    seen = None
    if scope is None:
        orphans[provider] += 1
        if settings.orphans == "ignore":
            return UNRECORDED
    elif (scope.following or FollowedCall.in_other_runs) and operation_of(path) in CALLS:
        seen = see(scope)
    return ModelCall(
        http_client=http_client,
        scope=scope,
        execution=claim_execution(None if scope is None else scope.root.execution),
        recorder=recorder,
        provider=provider,
        path=path,
        seen=seen,
    )


def address(url: Any) -> tuple[str, str | None, int | None]:
    """Path, host and port of an HTTP client's URL: httpx's has them taken apart, and its text has to be made."""
    target = getattr(url, "raw_path", None)
    if isinstance(target, bytes):
        return target.partition(b"?")[0].decode(), url.raw_host.decode() or None, url.port
    return _parts(str(url))


@lru_cache(maxsize=256)
def _parts(url: str) -> tuple[str, str | None, int | None]:
    """The same of a text, which most calls of an agent have in common."""
    parts = urlsplit(url)
    return parts.path, parts.hostname, parts.port


class ModelCall:
    """One call of a model client, from `request` to the last byte that the user read."""

    __slots__ = (
        "__weakref__", "_attempts", "_counts_itself", "_execution", "_path", "_pid", "_provider", "_recorder",
        "_returned", "_scope", "_seen", "_span", "_users_span", "http_client", "routed_from", "start_ns",
    )  # fmt: skip

    def __init__(
        self,
        *,
        http_client: Any,
        scope: Position | None,
        execution: Execution,
        recorder: Recorder,
        provider: str,
        path: str,
        seen: SeenCall | None,
    ) -> None:
        self._seen = seen
        self.http_client = http_client
        self._scope = scope
        self._recorder = recorder
        self._execution = execution
        self._provider = provider
        self._path = path
        self.routed_from: str | None = None
        self._attempts: list[Attempt] = []
        self._returned = False
        self._counts_itself = False
        self._pid = os.getpid()
        self.start_ns = time.time_ns()
        self._users_span = users_span() if scope is None else None
        self._span: OpenSpan | None = None
        if scope is not None and recorder.names_runs:
            scope.run.shared_with_langfuse(get_current())
        recorder.started(self)
        _open_calls[id(self)] = weakref.ref(self)

    @property
    def span(self) -> OpenSpan:
        """Its span, made in the background: nothing on the user's thread is under it."""
        if self._span is None:
            parent = self._users_span if self._scope is None else self._scope.context
            self._span = OpenSpan("chat", SpanKind.CLIENT, parent, self.start_ns)
        return self._span

    @property
    def capture_content(self) -> ContentMode:
        """What of its content is kept."""
        return self._recorder.rules.mode if self._scope is None else self._scope.capture_content

    @property
    def hidden(self) -> Hidden | None:
        """What was taken out of its run."""
        return None if self._scope is None else self._scope.run.hidden

    @property
    def awaits_answer(self) -> bool:
        """Whether a request of it is on its way."""
        last = self._attempts[-1] if self._attempts else None
        return last is not None and last.status is None and last.failed is None

    def set_apart(self) -> None:
        """More is asked within the same `request`: where that is no retry, what was answered is a call of its own. So
        middleware of the client asks another model after the first has refused."""
        last = self._attempts[-1] if self._attempts else None
        if last is None or last.status is None or last.status >= 300 or last.failed is not None:
            return
        last.moved = before = ModelCall(
            http_client=self.http_client,
            scope=self._scope,
            execution=self._execution,
            recorder=self._recorder,
            provider=self._provider,
            path=self._path,
            seen=None,
        )
        before.start_ns, before._span = self.start_ns, self._span
        before._attempts, before.routed_from = self._attempts, self.routed_from
        self._attempts, self._span, self.start_ns = [], None, time.time_ns()
        self._recorder.started(self)
        before.returned()

    def sending(self, body: bytes | None, url: Any, headers: Mapping[str, str]) -> Attempt:
        """An HTTP request goes out: the first attempt, or a retry. Its body is None where it is a stream."""
        if self._attempts:  # only its failure is kept of the one before
            self._attempts[-1].body, self._attempts[-1].request = [], b""
        attempt = Attempt(body, url, headers)
        self._attempts.append(attempt)
        return attempt

    def answered(self, status: int, headers: Mapping[str, str], body: bytes | None = None) -> Attempt:
        """Headers came; `body` too, with its encodings undone, unless it is to be streamed."""
        attempt = self._attempts[-1]
        attempt.status, attempt.headers = status, headers
        if status >= 400:
            attempt.fail(str(status), status)
        if body is None:
            attempt.streaming = True
            if api_of(self._path) in _ENDED_BY_A_MARK:
                attempt.may_end_by_mark()
        else:
            attempt.body_undone = True
            attempt.chunk(body)
        return attempt

    def not_answered(self, error: BaseException) -> None:
        """The HTTP client raised instead of answering; one that was cancelled has not failed."""
        if self._attempts and isinstance(error, Exception):
            self._attempts[-1].fail(describe_error(error)[0])

    def stream_ended(self, attempt: Attempt, ending: Ending, error: BaseException | None = None) -> None:
        """The stream of one attempt was read, closed, dropped or broken.

        Before `request` has returned that is the end of an attempt only: the client may try again.
        """
        if attempt.moved not in (None, self):
            attempt.moved.stream_ended(attempt, ending, error)
            return
        if attempt.ending is not None or attempt is not self._attempts[-1]:
            return
        attempt.ending = ending
        if ending == "error":
            attempt.error = error
            if error is not None:
                attempt.fail(describe_error(error)[0])
        if self._returned:
            self.finish(ending, error)

    def returned(self) -> None:
        """`request` has returned: a call that is not a stream, or whose stream was read meanwhile, is over."""
        self._returned = True
        attempt = self._attempts[-1] if self._attempts else None
        if attempt is None or not attempt.streaming:
            self.finish("complete")
        elif attempt.ending is not None:
            self.finish(attempt.ending, attempt.error)

    def raised(self, error: BaseException) -> None:
        """`request` has raised."""
        cancelled = isinstance(error, GeneratorExit) or is_cancellation(error)
        answered = bool(self._attempts) and self._attempts[-1].status is not None
        self.finish("cancelled" if cancelled else "complete" if answered else "error", error)

    def finish(self, ending: Ending, error: BaseException | None = None, *, end_ns: int | None = None) -> None:
        """End the call, now if `end_ns` is not said; the second time does nothing."""
        if self._pid != os.getpid():  # in a forked child the call is still the parent's
            return
        if _open_calls.pop(id(self), None) is None:
            return
        ended_ns = end_ns or time.time_ns()
        last = self._attempts[-1] if self._attempts else None
        if self._scope is not None:
            run = self._scope.run
            if last is None or not self._is_of_another_run(run.id, last.request):
                self._counts_itself = self._scope.is_remote or run.has_ended
                run.ended_spans += not self._counts_itself
            run.unanswered = self._unanswered(ending, error)
        failure = None
        if error is not None and not isinstance(error, GeneratorExit):
            failure = describe_error(error)
        weight = 0 if last is None else len(last.request) + last.body_size
        self._recorder.submit(lambda: self._decode(ending, failure, ended_ns), weight)

    def _unanswered(self, ending: Ending, error: BaseException | None) -> str | None:
        """Why the server gave no answer, whatever was asked; None when it gave one, or nobody waited for it."""
        if not self._attempts or ending not in ("complete", "error"):
            return None
        status = self._attempts[-1].status
        if status is None or (ending == "error" and not self._attempts[-1].is_done):
            return "no answer" if error is None else describe_error(error)[0]
        return f"status {status}" if status == 429 or status >= 500 else None

    @staticmethod
    def _is_of_another_run(run_id: str, request: bytes) -> bool:
        """Whether the request names a trajectory other than the one it was made in: it belongs to that one."""
        if b'"trajectory_id"' not in request:
            return False
        return named_trajectory(json_or_none(request)) not in (None, run_id)

    @property
    def run(self) -> object:
        """The run that it is a part of."""
        return None if self._scope is None else self._scope.run

    def so_far(self) -> dict[str, Any]:
        """What is known of a call that has not ended."""
        return {semconv.OPERATION_NAME: operation_of(self._path), **self._identity()}

    def _identity(self) -> dict[str, Any]:
        run = {} if self._scope is None else self._scope.run.attributes
        return {semconv.PROVIDER_NAME: self._provider, **run, **self._execution.attributes}

    def _decode(self, ending: Ending, failure: tuple[str, str] | None, end_ns: int) -> None:
        attributes = self._identity()
        if self._counts_itself:  # no scope of this process counts it
            attributes[semconv.TRAJECTORY_SPAN_COUNT] = 0
        last = self._attempts[-1] if self._attempts else Attempt(url=self._path)
        if len(self._attempts) != 1:
            attributes[semconv.ATTEMPTS] = len(self._attempts)
        if self.routed_from is not None:
            attributes[semconv.ROUTED_FROM] = self.routed_from
        if last.first_chunk_ns is not None and _STREAMS.search(last.headers.get("content-type") or ""):
            attributes[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] = max(last.first_chunk_ns - self.start_ns, 0) / 1e9
        try:
            for attempt in self._attempts:
                secrets.remember_query(str(attempt.url))
                if attempt.request_headers is not None:
                    secrets.remember_headers(attempt.request_headers)
                if attempt.failed is not None:
                    self.span.add_event(semconv.ATTEMPT_EVENT, *attempt.failed)
            path, host, port = address(last.url)
            if host is not None:
                attributes[semconv.SERVER_ADDRESS] = host
            if port is not None:
                attributes[semconv.SERVER_PORT] = port
            exchange = last.exchange(ending, path)
            content = self.capture_content != "off"
            decoded = decode(exchange, called=api_of(self._path), content=content, limit=MAX_CONTENT_BYTES)
            self.span.name = decoded.name
            attributes.update(decoded.attributes)
            if path.startswith("/r/") and semconv.POLICY_VERSION in attributes:
                recorded_there_too(path)
            # The openai client reads on for a moment, to keep the connection, and gives up in silence.
            failure = decoded.failure if decoded.is_done else failure or decoded.failure
            if self._seen is not None:
                self._seen.ended(facts_of(attributes))
                self._seen = None
        finally:  # whatever our decoder did, the call was made
            self._recorder.ended(self, attributes, end_ns, failure)
            self._scope = None  # a response that the user keeps holds this call
