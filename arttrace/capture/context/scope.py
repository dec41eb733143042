"""A scope: one run of an agent or a tool while it happens, from its span's start to its one end.

The outermost agent is the trajectory's root; what it did is counted on its `RunState`, which all scopes below it share.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace
from opentelemetry import context as otel_context
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, set_span_in_context

from arttrace.capture.base.entry_point import EntryPoint
from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.base.ids import random_hex
from arttrace.capture.base.values import described, ended_by, json_object, json_text
from arttrace.capture.context import recorded_tools
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.flow import Flow, calling_flow, claim_execution, current_flow, out_of_blocks, set_flow
from arttrace.capture.context.position import Position, ScopeKind
from arttrace.capture.context.rewards import note_run
from arttrace.capture.context.run import RunState
from arttrace.capture.export import sampling
from arttrace.capture.export.lifecycle import recorder
from arttrace.capture.export.open_span import OpenSpan, users_span
from arttrace.records import semconv
from arttrace.records.rollout import RecordedTool
from arttrace.wire.content import MAX_CONTENT_BYTES, ContentMode, stricter

_INTERNAL = SpanKind.INTERNAL
_LIGHT = 1 << 10  # what is lighter is not weighed
_recording = Guard("recording what a run was given")
_answering = Guard("answering a tool from the record")


class Scope(Position):
    """One open span of an agent or a tool.

    `enter` and `leave` make it current around each step of the user's code; `close` ends it once.
    """

    function: Callable[..., Any] | None = None
    """In a rollout, the decorated one that this is a run of."""
    execution: Execution | None = None
    _pid: int
    _is_local_root: bool
    """Whether it is the root of what this process did: the trajectory's own, or what another process called."""
    _failure: tuple[str, str] | None = None
    _ended = False
    _weight = 0  # of its contents, in bytes
    _around: otel_context.Context  # inside of it Langfuse's SDK finds our span above its own
    _inside: otel_context.Context | None = None

    def __init__(
        self,
        kind: ScopeKind,
        name: str,
        *,
        run: RunState | None = None,
        parent: Position | None = None,
        left: Position | None = None,
        entry: EntryPoint | None = None,
        capture_content: ContentMode | None = None,
    ) -> None:
        self.kind = kind
        self.name = name
        self.parent = parent
        self.is_root = parent is None
        if isinstance(parent, Scope) and not parent.is_remote:
            self._is_local_root, self._pid = False, parent._pid
        else:
            self._is_local_root, self._pid = True, os.getpid()
        if run is None:
            assert parent is not None
            run = parent.run.part() if self._is_local_root else parent.run
        self.run = run
        self._entry = entry
        self.recorder = recorder()
        above = self.recorder.settings.capture_content if parent is None else parent.capture_content
        self.capture_content: ContentMode = stricter(above, capture_content)
        self._cut: list[str] = []
        self._described: list[str] = []
        self._attributes: dict[str, Any]
        if kind == "tool":
            operation = semconv.OPERATION_EXECUTE_TOOL
            self._attributes = {
                semconv.OPERATION_NAME: operation,
                semconv.TOOL_NAME: name,
                semconv.TOOL_TYPE: "function",
            }
        else:
            operation = semconv.OPERATION_INVOKE_AGENT
            self._attributes = {semconv.OPERATION_NAME: operation, semconv.AGENT_NAME: name}
        above_it = users_span(left.context.trace_id if left else None) if parent is None else parent.context
        self.span = OpenSpan(f"{operation} {name}", _INTERNAL, above_it, time.time_ns())
        if self._is_local_root:
            note_run(run.id, self._place() if self.recorder.settings.scores_live else "")
            if self.recorder.names_runs and run.name is None:
                run.name = name if entry is None else entry.name.rpartition(":")[2]
            if self.is_root:
                sample = 1 if run.is_rollout else self.recorder.settings.sample
                sampling.begin(
                    run.id, name if entry is None else entry.name, sample, tags=run.tags, metadata=run.metadata
                )
            self.recorder.started(self, joins=not self.is_root)
        run.open_scopes[id(self)] = self

    def _place(self) -> str:
        """The trace, with this span where it is a run's root and not the trace's; see records/reward.py."""
        span = self.span
        return f"{span.trace_id:032x}" + (f"/{span.span_id:016x}" if self.is_root and span.parent_id else "")

    @property
    def context(self) -> SpanContext:
        """The ids of its span."""
        return self.span.context

    @property
    def local_root(self) -> Position:
        """The outermost scope that this process opened for the trajectory; this one where it is right below another
        process's."""
        position: Position = self
        while (above := position.parent) is not None and not above.is_remote:
            position = above
        return position

    @property
    def is_remote(self) -> bool:
        """Whether another process records it: the one that this process was forked from."""
        return self._pid != os.getpid()

    @property
    def has_ended(self) -> bool:
        """Whether it was closed."""
        return self._ended

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Note what a library says of an agent beside its name; what was said first stays."""
        for name, value in attributes.items():
            self._attributes.setdefault(name, value)

    def set_arguments(self, /, **arguments: Any) -> None:
        """Record what this run was started with, as it is now."""
        self._content(semconv.TOOL_CALL_ARGUMENTS if self.kind == "tool" else semconv.ENTRY_ARGUMENTS, arguments, True)

    @property
    def arguments(self) -> str | None:
        """What was recorded by `set_arguments`, as JSON text; None where it is not whole."""
        name = semconv.TOOL_CALL_ARGUMENTS if self.kind == "tool" else semconv.ENTRY_ARGUMENTS
        return None if name in self._cut or name in self._described else self._attributes.get(name)

    def set_result(self, result: Any) -> None:
        """Record what this run returned, as it is now."""
        self._content(semconv.TOOL_CALL_RESULT if self.kind == "tool" else semconv.ENTRY_RESULT, result, False)

    def set_whole_result(self, whole: Any) -> None:
        """Record what a library's tool gave where that is more than its result says; None: no JSON gives it back."""
        if whole is None:
            self._described.append(semconv.TOOL_CALL_RESULT)
        else:
            self._content(semconv.TOOL_RESULT, whole, False)

    def failed(self, kind: str, message: str) -> None:
        """Record that the run failed though it raises nothing."""
        self._failure = kind, message

    def run_by(self, library: str | None, call_id: str | None) -> None:
        """Note the library that executes this tool, if one does, and the id that the model gave the call."""
        self.library = library
        if call_id is not None:
            self._attributes.setdefault(semconv.TOOL_CALL_ID, call_id)

    def is_same_tool_call(self, name: str, library: str | None, call_id: str | None) -> bool:
        """Whether a tool that starts right inside this one is this one, seen again at another place.

        A tool of the same library or, of two decorated ones, each is a call of its own, whatever its name.
        """
        known = self._attributes.get(semconv.TOOL_CALL_ID)
        if self.kind != "tool" or self.library == library:
            return False
        if known is not None and call_id is not None:
            return bool(known == call_id)
        # MCP servers' tools are often shown to the model under a name with the server's before it.
        return self.name == name or (library in ("mcp", "mcp server") and self.name.endswith(f"_{name}"))

    def update(self, *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Add metadata and tags to the trajectory. What another process says than the one that began it is recorded
        on that process's own root, or in a span of its own where none is open."""
        with _recording:
            local = self.local_root
            if local.is_root and local.has_ended:
                if not self.run.warned_of_late_update:
                    self.run.warned_of_late_update = True
                    logger.warning("arttrace: update after the end of trajectory %.100r is not recorded", self.run.id)
            elif local.has_ended or local.is_remote:
                super().update(metadata=metadata, tags=tags)
            else:
                self.run.update(metadata, tags)

    def enter(self) -> Flow:
        """Make this scope current in the caller's flow, and return the flow as it was, for `leave`."""
        flow = current_flow()
        try:  # a trajectory starts a history of executions of its own
            set_flow(replace(flow, scope=self, execution=None if self.is_root else flow.execution, overrides=None))
            self.belongs_to(claim_execution(self.root.execution))
            if self.recorder.names_runs:
                self._around = otel_context.get_current()
                shared = self.run.shared_with_langfuse(self._around)
                self._inside = set_span_in_context(NonRecordingSpan(self.context), shared)
                otel_context.attach(self._inside)
        except BaseException:  # nobody leaves what was not entered: all that comes later would be of this run
            set_flow(flow)
            raise
        return flow

    def belongs_to(self, execution: Execution) -> None:
        """Note the execution that this scope was first entered in."""
        if self.execution is None:
            self.execution = execution
            self._attributes.update(execution.attributes)

    def leave(self, before: Flow) -> Flow:
        """Make the flow as it was before `enter`; returns what it was. A claimed execution stays, but for a root's."""
        inside = current_flow()
        flow = inside if inside.scope is self else out_of_blocks(self, inside)
        if flow.scope is self:
            set_flow(before if self.is_root else replace(flow, scope=before.scope, overrides=before.overrides))
        if self._inside is not None and otel_context.get_current() is self._inside:
            otel_context.attach(self._around)  # without a token: a generator may be left in another context
        return inside

    def close(self, error: BaseException | None = None) -> None:
        """End the span now; the second time does nothing. `error` is what ended the run, None when it went well."""
        if self._ended or self.is_remote:
            return
        if self._is_local_root:
            for unended in list(self.run.open_library_scopes.values()):
                unended.close(GeneratorExit())
        self._ended = True
        self.run.open_scopes.pop(id(self), None)
        left_open = [*self.run.open_scopes.values()] if self._is_local_root else None
        end_ns = time.time_ns()
        attributes = self._attributes | self.run.attributes
        if self._is_local_root:
            self.run.has_ended = True  # before the count is read
            attributes.update(self._root_attributes())
        elif self.run.has_ended:
            attributes[semconv.TRAJECTORY_SPAN_COUNT] = 0
        else:
            self.run.ended_spans += 1
        if self._cut:
            attributes[semconv.TRUNCATED] = self._cut
        if self._described:
            attributes[semconv.DESCRIBED] = self._described
        failure, interrupted = (self._failure, None) if error is None else ended_by(error)
        if interrupted is not None:
            attributes[semconv.INTERRUPTED] = interrupted
        if self.is_root and failure is not None and self.run.unanswered is not None:
            attributes.setdefault(semconv.INTERRUPTED, f"the model did not answer ({self.run.unanswered})")
        if self.run.interrupted is not None and (self.is_root or self.run.has_ended):
            attributes[semconv.INTERRUPTED] = self.run.interrupted
        self.recorder.submit(
            lambda: self.recorder.ended(self, self._writable(attributes), end_ns, failure, left_open),
            self._weight if self._weight > _LIGHT else 0,
        )

    def so_far(self) -> dict[str, Any]:
        """What is known of a run that has not ended; how many spans it makes is not."""
        of_root = self._root_attributes() if self._is_local_root else {}
        of_root.pop(semconv.TRAJECTORY_SPAN_COUNT, None)
        return self._writable({**self._attributes, **self.run.attributes, **of_root})

    def _writable(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return self.run.writable(attributes, self.recorder.rules, self.capture_content)

    def _root_attributes(self) -> dict[str, Any]:
        run = self.run
        attributes: dict[str, Any] = {semconv.PROJECT: run.project, semconv.TRAJECTORY_SPAN_COUNT: run.ended_spans}
        if run.http_requests:
            attributes[semconv.HTTP_REQUEST_COUNT] = run.http_requests
        if self.is_root:  # an entry is the trajectory's own: another process began the one that this one joined
            attributes[semconv.ENTRY] = self._entry.source if self._entry else self.name
            if self._entry:
                attributes[semconv.ENTRY_NAME] = self._entry.name
        if run.scenario is not None:
            attributes[semconv.SCENARIO] = run.scenario
        if run.group is not None:
            attributes[semconv.GROUP] = run.group
        described_as, cut = run.tags_and_metadata()
        if cut and semconv.METADATA not in self._cut:
            self._cut.append(semconv.METADATA)
        return attributes | described_as

    def _content(self, attribute: str, value: Any, is_object: bool) -> None:
        if self.capture_content == "off":
            return
        try:
            before = described.count
            text, cut = (json_object if is_object else json_text)(value, MAX_CONTENT_BYTES)
            self._attributes[attribute] = text
            self._weight += len(text)
            if cut:
                self._cut.append(attribute)
            if described.count != before:
                self._described.append(attribute)
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            _recording.caught(error)


def open_scope(
    kind: ScopeKind,
    name: str,
    *,
    entry: EntryPoint | None = None,
    scenario: str | None = None,
    group: str | None = None,
    group_is_computed: bool = False,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    trajectory_id: str | None = None,
    capture_content: ContentMode | None = None,
    library: str | None = None,
    call_id: str | None = None,
    outside: Callable[[ScopeKind], Position | None] = lambda kind: None,
) -> Scope | None:
    """A new scope under the current one, or None when nothing is to be recorded here.

    Outside any scope it goes under `outside(kind)`; where that is nothing, only `trajectory` opens one. Inside, a
    further `trajectory` is a sub-agent of it, unless the run has ended: the thread or task that it began works for
    others now. `library` and `call_id` are those of a tool that a library executes; a tool call that is being recorded
    already opens none.
    """
    flow = calling_flow()
    settings = recorder().settings
    if flow.muted or settings.disabled:
        return None
    announced = kind == "trajectory" and flow.overrides is not None  # a rollout: a trajectory of its own
    left = flow.scope if kind == "trajectory" and flow.scope is not None and flow.scope.run_is_over else None
    parent = outside(kind) if flow.scope is left and not announced else flow.scope
    if parent is not None:
        if kind == "tool" and parent.is_same_tool_call(name, library, call_id):
            parent.run_by(parent.library, call_id)
            return None
        inner: ScopeKind = "agent" if kind == "trajectory" else kind
        scope = Scope(inner, name, parent=parent, capture_content=capture_content)
        if tags or metadata:
            scope.run.join(metadata, tags)
        return scope
    if kind != "trajectory":
        return None
    id = trajectory_id or random_hex(32)
    run = RunState(id, settings.project, scenario=scenario, group=group, group_is_computed=group_is_computed)
    run.update(metadata, tags)
    if flow.overrides is not None:
        flow.overrides.apply(run)
    return Scope(kind, name, run=run, parent=None, left=left, entry=entry, capture_content=capture_content)


def recorded_answer(
    scope: Scope | None, again: Callable[[RecordedTool], Any] | None = None, *, comparable: bool = True
) -> Callable[[], Any] | None:
    """What to call instead of the tool that `scope` is a run of; None where the tool is to run, as outside of rollouts.

    It returns what `again` makes of the recorded result (by default, what the decorated function is annotated to
    return, from JSON values), raises what the tool raised (built-in exceptions alone are in a record), or raises
    ToolNotRecorded; a run that met one of these is no evidence about its agent, and marked so. Not `comparable` is a
    call that no record answers, as its result cannot be identified.
    """
    if scope is None or scope.kind != "tool" or scope.run.tools is None:
        return None
    tools = scope.run.tools
    if scope.name in tools.agents:
        return None
    with _answering:
        found = tools.take(scope.name, scope.arguments if comparable else None)
        if found is not None:
            result = None
            if found.error is None:
                result = recorded_tools.as_returned(scope.function, found) if again is None else again(found)
            return partial(recorded_tools.replay, found, result)
    if tools.runs_missing:
        return None
    scope.run.interrupted = f"a tool call that is not in the record: {scope.name}"
    return partial(recorded_tools.refuse, f"{scope.name}({(scope.arguments or '')[:200]})")


def _current_id() -> str | None:
    scope = calling_flow().scope
    return None if scope is None else scope.id


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=partial(sampling.before_fork, _current_id))
