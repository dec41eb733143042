"""Follows the GenAI spans that libraries make by OpenTelemetry: agents, tools, and calls that no hook of ours sees.

Every tracer's `start_span` is hooked, that of the SDK (whichever provider the user has, or several) and the one that
does nothing while there is no provider. What such a span says becomes a scope of ours; the span itself goes where the
user's provider sends it, and nowhere where there is none.

Which scope a flow of control is in is read from OpenTelemetry's own context: each span that is started within a
followed one knows its scope. So nothing is entered or left here, and a context that a library leaks, or a generator
that is dropped, leaves no scope behind: one that has ended counts no more.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from msgspec.structs import replace
from opentelemetry.context import get_value
from opentelemetry.trace import NonRecordingSpan, SpanKind, Status, StatusCode, get_current_span

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.followed_call import FOLLOWED_CALL, FollowedCall
from arttrace.capture.calls.genai_span import CALLS, Followed, FollowedScope, Said, operation_of
from arttrace.capture.calls.stream_report import StreamReport, Unrecorded, is_report, request_of
from arttrace.capture.context import flow as flows
from arttrace.capture.context import program
from arttrace.capture.context.flow import current_flow, set_flow
from arttrace.capture.context.position import Position
from arttrace.capture.context.scope import Scope
from arttrace.capture.export import lifecycle
from arttrace.capture.patches.httpx import current_call
from arttrace.capture.patches.registry import patch
from arttrace.records import semconv

_SCOPE = "_arttrace_scope"
"""On a span: the innermost scope of what is done inside it."""
_FOLLOWED = "_arttrace_followed"
"""On a span that is being followed: what is recorded of it."""
_SAYS_SO = frozenset((semconv.OPERATION_NAME, semconv.REQUEST_MODEL))
"""What the conventions have a span of a call say from its start."""
_MCP_METHOD = "mcp.method.name"
"""What the conventions have a span of MCP say, a server's too, whose tool may have a longer name at the model."""

_beginning = Guard("following a library's span")
_ending = Guard("ending a library's span")


def install_api(module: ModuleType) -> None:
    """Hook `opentelemetry.trace`: the tracer of a program without a provider."""
    patch(module.NoOpTracer, "start_span", _start)


def install_sdk(module: ModuleType) -> None:
    """Hook `opentelemetry.sdk.trace`."""
    patch(module.Tracer, "start_span", _start)
    patch(module.Span, "end", _end)


def followed_by(span: Any) -> Followed | None:
    """What is recorded of a span that has not ended, where it is followed."""
    followed: Followed | None = getattr(span, _FOLLOWED, None)
    return followed


def innermost(own: Position | None) -> Position | None:
    """The inner one of the flow's own scope and that of the library's span that is current."""
    return _inner(own, getattr(get_current_span(), _SCOPE, None))


def _inner(own: Position | None, followed: Any) -> Position | None:
    if type(followed) is not Scope:
        return own
    scope: Position | None = followed
    while scope is not None and scope.has_ended and not scope.is_remote:
        scope = scope.parent
    inner = scope
    while scope is not None and own is not None:
        if scope is own:
            return inner
        scope = scope.parent
    return inner if own is None else own


class _AsStarted(NamedTuple):
    """What a library says of a span as it starts."""

    name: str
    context: Any = None
    kind: Any = SpanKind.INTERNAL
    attributes: Any = None


def _read(
    name: str, context: Any = None, kind: Any = SpanKind.INTERNAL, attributes: Any = None, *_: Any, **__: Any
) -> _AsStarted:
    return _AsStarted(name, context, kind, attributes or {})


def _start(start_span: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(start_span)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = None
        try:
            said = _read(*args, **kwargs)
            begun = _begin(self, said.name, said.context, said.attributes)
            around = get_current_span(said.context)
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            _beginning.caught(error)
        span = start_span(self, *args, **kwargs)
        return span if begun is None else _marked(span, said, around, *begun)

    return hooked


def _begin(
    tracer: Any, name: str, context: Any, attributes: Mapping[str, Any]
) -> tuple[Position | None, Followed | None] | None:
    """The scope inside a span that starts now, and what is recorded of it; None where it concerns nothing of ours."""
    flow = current_flow()
    inherited = getattr(get_current_span(context), _SCOPE, None)
    operation = operation_of(name, attributes)
    if operation is None:
        return None if inherited is None else (inherited, None)
    is_wanted = not (flow.muted or lifecycle.is_off() or get_value("suppress_instrumentation"))
    scope = _inner(flow.scope, inherited)
    followed: Followed | None = None
    library = getattr(getattr(tracer, "_instrumentation_scope", None), "name", "opentelemetry")
    request, is_log = None, is_report(name, attributes)
    if operation in CALLS:
        request = request_of(library, get_current_span(context).get_span_context(), attributes, scope)
    if request is not None and is_log:
        followed = StreamReport.of(request, attributes, is_wanted=is_wanted)
    elif is_wanted and operation in CALLS:
        called_in = None
        if current_call.get() is None:  # Anthropic's client makes a span of its own inside the call our hook has begun
            # A name may be anyone's: the program's run begins with a span that says by itself that it is a call.
            called_in = scope or (program.scope() if _SAYS_SO.intersection(attributes) else None)
        outer = getattr(get_current_span(context), FOLLOWED_CALL, None)
        followed = None if called_in is None else FollowedCall(called_in, name, outer, request)
    elif is_wanted:
        set_flow(replace(flow, scope=scope, is_whole=True))
        try:
            of = "mcp server" if _MCP_METHOD in attributes else library
            followed = FollowedScope.open(operation, name, attributes, library=of)
        finally:
            set_flow(replace(current_flow(), scope=flow.scope, is_whole=flow.is_whole))
    if followed is None and request is not None and not is_log:
        return inherited, Unrecorded(request, inherited)
    if followed is None:
        return None if inherited is None else (inherited, None)
    flows.follow(innermost)
    return followed.scope, followed


def _marked(span: Any, said: _AsStarted, around: Any, scope: Position | None, followed: Followed | None) -> Any:
    """The span that started with what is known of it: itself, or another in place of one that records nothing."""
    try:
        if isinstance(span, NonRecordingSpan):
            span = NonRecordingSpan(span.get_span_context()) if followed is None else _Ear(span, said, followed)
        setattr(span, _SCOPE, scope)
        inner = followed if isinstance(followed, FollowedCall) else getattr(around, FOLLOWED_CALL, None)
        setattr(span, FOLLOWED_CALL, inner)
        if followed is not None:
            setattr(span, _FOLLOWED, followed)
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _beginning.caught(error)
    return span


def _end(end: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(end)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> None:
        followed = self.__dict__.pop(_FOLLOWED, None)
        if followed is not None:
            try:
                failure = None
                if self.status.status_code is StatusCode.ERROR:
                    failure = self.status.description or ""
                events = [(event.name, event.attributes or {}) for event in self.events]
                followed.end(Said(self.attributes or {}, events, failure))
            except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
                _ending.caught(error)
        return end(self, *args, **kwargs)

    return hooked


class _Ear(NonRecordingSpan):
    """In place of a span that would record nothing, for want of a provider or not sampled: it keeps what is said of it
    until it ends. Its ids are those of the span that it stands for. As it says that it records, it can be read as the
    SDK's spans can."""

    def __init__(self, span: NonRecordingSpan, said: _AsStarted, followed: Followed) -> None:
        super().__init__(span.get_span_context())
        self._followed: Followed | None = followed
        self._name, self._kind, self._start_ns = said.name, said.kind, time.time_ns()
        self._attributes: dict[str, Any] = dict(said.attributes)
        self._events: list[tuple[str, Mapping[str, Any]]] = []
        self._failure: str | None = None

    def is_recording(self) -> bool:
        return self._followed is not None and self._followed.is_awaited

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        sdk = import_module("opentelemetry.sdk.trace")  # which not every program needs
        failure = None if self._failure is None else Status(StatusCode.ERROR, self._failure)
        readable = sdk.ReadableSpan(
            self._name,
            self.get_span_context(),
            attributes=self._attributes,
            events=[sdk.Event(name, attributes) for name, attributes in self._events],
            kind=self._kind,
            status=failure or Status(),
            start_time=self._start_ns,
        )
        return getattr(readable, name)

    def update_name(self, name: str) -> None:
        self._name = name

    def set_attribute(self, key: str, value: Any) -> None:
        self._attributes[key] = value

    def set_attributes(self, attributes: Mapping[str, Any]) -> None:
        self._attributes.update(attributes)

    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None:
        self._events.append((name, dict(attributes or {})))

    def set_status(self, status: Any, description: str | None = None) -> None:
        if getattr(status, "status_code", status) is StatusCode.ERROR:
            self._failure = getattr(status, "description", None) or description or ""

    def record_exception(
        self, exception: BaseException, attributes: Any = None, timestamp: int | None = None, escaped: bool = False
    ) -> None:
        said = {"exception.type": type(exception).__qualname__, "exception.message": str(exception)}
        self._events.append(("exception", said))

    def end(self, end_time: int | None = None) -> None:
        followed, self._followed = self._followed, None
        if followed is not None:
            with _ending:
                followed.end(Said(self._attributes, self._events, self._failure))
