"""Logfire's second span of a streamed call: a log that says, when the stream has ended, what was asked and what came.

It is started wherever the stream is read: in another thread or run, or long after the request's own span has ended.
What it is about is known by its words, by the span around both, of which Logfire keeps the ids, and by the run: that
which reads the stream where it has asked so, else the only one that has. A request that is not recorded, as within
`no_capture`, waits for its log too, which is nobody's; so is one that may be of such a request or of another.
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
    run: str | None
    """The id of the run that makes it; None outside of any, and in the program's."""


class Waiting(Protocol):
    """A request whose span has ended without an answer."""

    request: Request | None
    ended_ns: int


class WaitingCall(Waiting, Protocol):
    """One that is recorded."""

    scope: Position

    def reported(self, said: Said) -> None: ...


_waiting: dict[int, WaitingCall | Unrecorded] = {}  # by id(), in order; whoever takes one out has it


def request_of(
    library: str, around: SpanContext, attributes: Mapping[str, Any], scope: Position | None
) -> Request | None:
    """What tells the log of this request, or the request of this log; None of other libraries' spans."""
    if library not in _LIBRARIES:
        return None
    words = hash(tuple(str(attributes.get(name)) for name in semconv.LOGFIRE_ASKED))
    return Request(library, around.trace_id, around.span_id, words, None if scope is None else scope.run.id)


def has_answer(attributes: Mapping[str, Any]) -> bool:
    """Whether a request's span says what came, so that no log follows."""
    return any(attributes.get(name) is not None for name in semconv.LOGFIRE_ANSWERED)


def is_report(name: str, attributes: Mapping[str, Any]) -> bool:
    """Whether a span that starts is such a log."""
    return attributes.get(semconv.LOGFIRE_SPAN_TYPE) == "log" and name.startswith(semconv.LOGFIRE_REPORT)


def wait(call: WaitingCall | Unrecorded) -> None:
    """From now on the log of this call's stream may come."""
    _waiting[id(call)] = call
    with contextlib.suppress(RuntimeError, StopIteration):  # other threads do so too
        while len(_waiting) > _MOST:
            _waiting.pop(next(iter(_waiting)), None)


class Unrecorded:
    """A request that is not to be recorded, as a span that is followed: its log is nobody's."""

    def __init__(self, request: Request, scope: Any) -> None:
        self.request: Request | None = request
        self.scope = scope
        self.ended_ns = 0
        self.unsaid: Mapping[str, Any] = {}

    @property
    def is_awaited(self) -> bool:
        """Until it ends: one with an answer has no log."""
        return True

    def end(self, said: Said) -> None:
        """From now on its log may come."""
        if said.failure is None and not has_answer(said.attributes):
            self.ended_ns = time.time_ns()
            wait(self)


class StreamReport:
    """Such a log, as a span that is followed."""

    def __init__(self, call: WaitingCall) -> None:
        self.scope = call.scope
        self.unsaid: Mapping[str, Any] = {}
        self._call = call

    @classmethod
    def of(cls, request: Request, attributes: Mapping[str, Any], *, is_wanted: bool) -> StreamReport | None:
        """The log of the request like it whose span had ended last when the stream began to be read. None where nobody
        knows of which it is, or where it is not to be recorded: the request, or what is done where the stream is read,
        of which `is_wanted` tells."""
        took_s = attributes.get(semconv.LOGFIRE_DURATION)
        began_ns = time.time_ns() - (took_s if isinstance(took_s, (int, float)) else 0) * 1e9
        alike = [call for call in reversed(list(_waiting.values())) if _is_alike(call, request)]
        alike = [call for call in alike if call.request == request] or alike
        may_be = [call for call in alike if call.ended_ns <= began_ns] or alike
        if len({call.request for call in may_be}) > 1:
            return None
        recorded = [call for call in may_be if not isinstance(call, Unrecorded)]
        if len(recorded) < len(may_be):  # nobody knows later either which log is whose
            for call in may_be if recorded else may_be[:1]:
                _waiting.pop(id(call), None)
            return None
        for one in recorded if is_wanted else ():
            if _waiting.pop(id(one), None) is not None:
                return cls(one)
        return None

    @property
    def is_awaited(self) -> bool:
        """Until it ends."""
        return True

    def end(self, said: Said) -> None:
        """Tell the call what came."""
        self._call.reported(said)


def _is_alike(waiting: Waiting, request: Request) -> bool:
    """Whether they are the same but for the run."""
    return waiting.request is not None and waiting.request._replace(run=request.run) == request
