"""Logfire's second span of a streamed call: a log that says, when the stream has ended, what was asked and what came.

It is started wherever the stream is read: in another thread or run, or long after the request's own span has ended.
What it is about is known by its words and by the span around both, of which Logfire keeps the ids. Where that request
was not followed, as within `no_capture`, its log is nobody's call either.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

from opentelemetry.trace import SpanContext

from arttrace.capture.calls.genai_span import Said
from arttrace.capture.context.position import Position
from arttrace.records import semconv

_LIBRARIES = frozenset(("logfire.openai", "logfire.anthropic"))
_MOST = 1000  # streams that nobody reads


class Request(NamedTuple):
    """What a request and the log of its stream have in common."""

    library: str
    trace_id: int
    above: int
    """The id of the span around both."""
    words: int
    """A hash of what was asked."""


class Waiting(Protocol):
    """The call of a request whose span has ended without an answer."""

    scope: Position
    request: Request | None
    ended_ns: int

    def reported(self, said: Said) -> None: ...


_waiting: dict[int, Waiting] = {}  # by id(), in order; whoever takes one out has it


def request_of(library: str, around: SpanContext, attributes: Mapping[str, Any]) -> Request | None:
    """What tells the log of this request, or the request of this log; None of other libraries' spans."""
    if library not in _LIBRARIES:
        return None
    words = hash(tuple(str(attributes.get(name)) for name in semconv.LOGFIRE_ASKED))
    return Request(library, around.trace_id, around.span_id, words)


def has_answer(attributes: Mapping[str, Any]) -> bool:
    """Whether a request's span says what came, so that no log follows."""
    return any(attributes.get(name) is not None for name in semconv.LOGFIRE_ANSWERED)


def is_report(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a span that starts is such a log."""
    return attributes.get(semconv.LOGFIRE_SPAN_TYPE) == "log" and name.startswith(semconv.LOGFIRE_REPORT)


def wait(call: Waiting) -> None:
    """From now on the log of this call's stream may come."""
    _waiting[id(call)] = call
    with contextlib.suppress(RuntimeError, StopIteration):  # other threads do so too
        while len(_waiting) > _MOST:
            _waiting.pop(next(iter(_waiting)), None)


class StreamReport:
    """Such a log, as a span that is followed."""

    def __init__(self, call: Waiting) -> None:
        self.scope = call.scope
        self.unsaid: Mapping[str, Any] = {}
        self._call = call

    @classmethod
    def of(cls, request: Request, attributes: Mapping[str, Any]) -> StreamReport | None:
        """The log of the request like it whose span had ended last when the stream began to be read."""
        took_s = attributes.get(semconv.LOGFIRE_DURATION)
        began_ns = time.time_ns() - round(took_s * 1e9) if isinstance(took_s, (int, float)) else time.time_ns()
        alike = [call for call in reversed(list(_waiting.values())) if call.request == request]
        before = [call for call in alike if call.ended_ns <= began_ns]
        for call in before or alike:
            if _waiting.pop(id(call), None) is not None:
                return cls(call)
        return None

    @property
    def is_awaited(self) -> bool:
        """Until it ends."""
        return True

    def end(self, said: Said) -> None:
        """Tell the call what came."""
        self._call.reported(said)
