"""How a trajectory continues in another process: the context that this process sends, and the parent that it received.

A remote parent is a position to whatever goes under it, and has no span of this process to end. Scopes right below one
are this process's own roots: each says how many spans this process made under it.
"""

from __future__ import annotations

from opentelemetry import baggage
from opentelemetry.trace import SpanContext, TraceFlags

from arttrace.capture.base.remote_context import BAGGAGE, RemoteContext, parse
from arttrace.capture.base.settings import content_mode
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.context.position import Position
from arttrace.capture.context.run import RunState
from arttrace.capture.export import sampling
from arttrace.capture.export.lifecycle import recorder
from arttrace.wire.content import stricter


class RemoteParent(Position):
    """The position in a trajectory that another process has sent."""

    kind = "agent"
    name = ""

    def __init__(self, sent: RemoteContext) -> None:
        self.recorder = recorder()
        settings = self.recorder.settings
        self.run = RunState(id=sent.trajectory_id, project=sent.project or settings.project)
        self.capture_content = stricter(settings.capture_content, content_mode(sent.capture_content))
        self.execution = None if sent.execution_id is None else Execution.elsewhere(sent.execution_id)
        flags = TraceFlags(TraceFlags.SAMPLED)
        self._context = SpanContext(sent.trace_id, sent.span_id, is_remote=True, trace_flags=flags)

    @property
    def context(self) -> SpanContext:
        """The ids of the other process's span."""
        return self._context


def remote_parent(sent: RemoteContext) -> RemoteParent:
    """The position that another process has sent; says to that process, where it waits for it, that this one
    records."""
    if sent.mark is not None:
        sampling.set_mark(sent.mark)
    return RemoteParent(sent)


def remote_parent_by_baggage() -> RemoteParent | None:
    """The position that the current OpenTelemetry context brought here over HTTP."""
    text = baggage.get_baggage(BAGGAGE)
    sent = parse(text, of_this_machine=False) if isinstance(text, str) else None
    return None if sent is None else remote_parent(sent)


def outgoing_context(*, to_this_machine: bool = True, joins: bool = True) -> RemoteContext | None:
    """The context that the current flow sends to another process, None where it is in no trajectory.

    Args:
        to_this_machine: Whether the project and the data directory are of use there.
        joins: Whether the other process records its part for certain; else it creates a file when it does.
    """
    flow = calling_flow()
    scope = flow.scope
    if scope is None or flow.muted or not scope.id:
        return None
    context = scope.context
    settings = scope.recorder.settings
    if joins:
        sampling.join(scope.id)  # the other process stores its part, and so this one does
    return RemoteContext(
        trace_id=context.trace_id,
        span_id=context.span_id,
        trajectory_id=scope.id,
        execution_id=flow.execution.id if flow.execution is not None else None,
        capture_content=scope.capture_content,
        mark=None if joins else sampling.mark_for(scope.id, settings.data),
        project=settings.project if to_this_machine else None,
        dir=str(settings.data.root.absolute()) if to_this_machine else None,
    )
