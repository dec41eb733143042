"""Where things are recorded that no scope of this process is around: under a span of another process.

A place is a scope to whatever goes under it, and has no span of its own to end. Scopes right below one are this
process's own roots: each says how many spans this process made under it.
"""

from __future__ import annotations

import os
import weakref

from opentelemetry import baggage
from opentelemetry.trace import SpanContext, TraceFlags

from arttrace.capture.base.settings import content_mode
from arttrace.capture.context import propagation, sampling
from arttrace.capture.context.flow import Execution
from arttrace.capture.context.propagation import Carried
from arttrace.capture.context.scope import Run, Scope
from arttrace.capture.export.lifecycle import recorder
from arttrace.content import ContentMode, stricter


class Place(Scope):
    """A scope that is not open here."""

    def __init__(
        self, run: Run, context: SpanContext, execution: Execution | None, capture_content: ContentMode
    ) -> None:
        self.recorder = recorder()
        self.kind, self.name, self.library = "agent", "", None
        self.parent, self.is_root = None, False
        self.before = self.opened_by = None
        self.calls = 0
        self.run, self._context, self.execution = run, context, execution
        self.capture_content = stricter(self.recorder.settings.capture_content, capture_content)
        self._attributes, self._cut, self._failure = {}, [], None
        self.calls = 0
        self._ended, self._pid = True, os.getpid()

    @property
    def is_place(self) -> bool:
        """In whichever process."""
        return True

    @property
    def context(self) -> SpanContext:
        """The ids of the other process's span."""
        return self._context


class _Elsewhere:
    """The owner of an execution in another process: never a task or thread of this one."""


def place_of(carried: Carried) -> Place:
    """The place that another process has said."""
    if carried.mark is not None:
        sampling.set_mark(carried.mark)
    context = SpanContext(carried.trace_id, carried.span_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED))
    execution = None
    if carried.execution_id is not None:
        execution = Execution(carried.execution_id, None, weakref.ref(_Elsewhere()))
    run = Run(id=carried.trajectory_id, project=carried.project or recorder().settings.project)
    mode = content_mode(carried.capture_content, default="full")
    return Place(run, context, execution, mode)


def place_by_baggage() -> Place | None:
    """The place that the current OpenTelemetry context brought here over HTTP."""
    text = baggage.get_baggage(propagation.BAGGAGE)
    if not isinstance(text, str):
        return None
    carried = propagation.parse(text)
    return None if carried is None else place_of(carried)
