"""A span of ours while it is open: ids, times and attributes; all other work is left for later.

The user's thread makes one for each call, agent and tool; in the background it is filled, and becomes a `SpanRow`. The
SDK's own span has locks, limits, copies and processors, all of which arttrace has no use for, and costs ten times as
much to start.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from opentelemetry.trace import INVALID_SPAN_ID, SpanContext, SpanKind, TraceFlags, get_current_span
from opentelemetry.trace.span import TraceState

from arttrace.capture.base.ids import new_span_id, new_trace_id
from arttrace.records.span import SpanEvent
from arttrace.wire.content import ContentMode, Hidden

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)  # no sampler applies to what is recorded


def users_span(beside: int | None = None) -> SpanContext | None:
    """The user's own current span, above what has no scope of ours around it, so that the traces join; None where it is
    in the trace `beside`."""
    span = get_current_span().get_span_context()
    return None if span.trace_id == beside else span


class OpenSpan:
    """One span from its start to its end; `parent` is the context of the span above it, None or invalid for a root."""

    __slots__ = (
        "_context", "attributes", "end_ns", "events", "failure", "kind", "name", "parent_id", "span_id", "start_ns",
        "trace_id", "trace_state",
    )  # fmt: skip

    def __init__(self, name: str, kind: SpanKind, parent: SpanContext | None, start_ns: int) -> None:
        self.name = name
        self.kind = kind
        self.start_ns = start_ns
        self.end_ns = 0
        self.span_id = new_span_id()
        self.parent_id = INVALID_SPAN_ID
        self.trace_state: TraceState | None = None
        if parent is None or not parent.is_valid:
            self.trace_id = new_trace_id()
        else:
            self.trace_id, self.parent_id, self.trace_state = parent.trace_id, parent.span_id, parent.trace_state
        self.attributes: dict[str, Any] = {}
        self.events: list[SpanEvent] = []
        self.failure: tuple[str, str] | None = None
        self._context: SpanContext | None = None

    @property
    def context(self) -> SpanContext:
        """Its ids, as OpenTelemetry has them."""
        if self._context is None:
            self._context = SpanContext(self.trace_id, self.span_id, False, _SAMPLED, self.trace_state)
        return self._context

    def add_event(self, name: str, time_ns: int, attributes: Mapping[str, Any]) -> None:
        """Note what happened at a time."""
        self.events.append(SpanEvent(name, time_ns, dict(attributes)))


class Opened(Protocol):
    """A call or scope that has begun."""

    @property
    def span(self) -> OpenSpan: ...

    @property
    def capture_content(self) -> ContentMode: ...

    @property
    def hidden(self) -> Hidden | None: ...

    def so_far(self) -> Mapping[str, Any]: ...


class Lasting(Opened, Protocol):
    """A call or scope that is shown before its end where it lasts."""

    @property
    def run(self) -> object:
        """What it shares with all that this process does in its run; None outside of one."""
