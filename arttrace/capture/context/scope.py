"""A scope: one run of an agent or a tool while it happens, from its span's start to its one end.

The outermost agent is the trajectory's root; what it did is counted on its `Run`, which all scopes below it share.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import msgspec
from msgspec.structs import replace
from opentelemetry.trace import SpanContext, SpanKind

from arttrace import semconv
from arttrace.capture.base.entry_point import EntryPoint
from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.base.ids import random_hex
from arttrace.capture.base.values import described, json_object, json_text, safe_text
from arttrace.capture.context import known_runs, remote_update, sampling
from arttrace.capture.context.flow import Execution, Flow, calling_flow, claim_execution, current_flow, set_flow
from arttrace.capture.export.lifecycle import recorder
from arttrace.capture.export.open_span import OpenSpan, users_span
from arttrace.content import MAX_CONTENT_BYTES, ContentMode, Hidden, stricter
from arttrace.records.reward import Reward

if TYPE_CHECKING:
    from arttrace.capture.export.recorder import Recorder
    from arttrace.capture.rollout.recorded_tools import RecordedTools

ScopeKind = Literal["trajectory", "agent", "tool"]
MAX_ERROR_TEXT = 4000

_recording = Guard("recording what a run was given")


class Run(msgspec.Struct, eq=False):
    """What the scopes of one trajectory in this process share."""

    id: str
    project: str
    scenario: str | None = None
    group: str | None = None
    tags: list[str] = []
    metadata: dict[str, msgspec.Raw] = {}
    metadata_was_cut: bool = False
    hidden: Hidden = msgspec.field(default_factory=Hidden)
    ended_spans: int = 0
    tools: RecordedTools | None = None
    """In a rollout, what its tools are answered with instead of being run."""
    unanswered: str | None = None
    """Why the last model call got no answer from its server: a run that then fails is no word about its agent."""
    followed: dict[int, Scope] = {}
    """The open scopes of libraries' spans, by id(): one whose span is never ended ends with the run."""
    is_rollout: bool = False
    """Whether somebody waits for what it records: sampling leaves none of these out."""
    interrupted: str | None = None
    """Why the run is none to be judged or learned from, however it ends."""
    warned_of_late_update: bool = False

    def part(self) -> Run:
        """What this process does in a run that another one began."""
        return Run(self.id, self.project, hidden=self.hidden, tools=self.tools, is_rollout=self.is_rollout)

    def update(self, metadata: Mapping[str, Any] | None, tags: Sequence[str]) -> None:
        """Add metadata and tags, as they are now."""
        with _recording:
            for name, value in (metadata or {}).items():
                text, cut = json_text(value, MAX_CONTENT_BYTES)
                self.metadata[safe_text(name)] = msgspec.Raw(text.encode())
                self.metadata_was_cut |= cut
            for tag in map(safe_text, (tags,) if isinstance(tags, str) else tags):
                if tag not in self.tags:
                    self.tags.append(tag)

    def join(self, metadata: Mapping[str, Any] | None, tags: Sequence[str]) -> None:
        """Add those of a further trajectory inside this one: what is said of the run already stays."""
        new = {name: value for name, value in (metadata or {}).items() if safe_text(name) not in self.metadata}
        self.update(new, tags)

    def said(self) -> tuple[dict[str, Any], bool]:
        """The tags and metadata as attributes of a span, and whether metadata was cut to a bound."""
        attributes: dict[str, Any] = {}
        was_cut = False
        if self.tags:
            attributes[semconv.TAGS] = list(self.tags)
        if self.metadata:
            attributes[semconv.METADATA], cut = json_object(dict(self.metadata), MAX_CONTENT_BYTES)
            was_cut = cut or self.metadata_was_cut
        return attributes, was_cut


class RunOverrides:
    """Values that a rollout gives to the next trajectory that starts in its flow, whatever its decorator says."""

    def __init__(
        self,
        *,
        trajectory_id: str | None = None,
        scenario: str | None = None,
        group: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tools: RecordedTools | None = None,
    ) -> None:
        self._values = (trajectory_id, scenario, group, dict(metadata or {}))
        self._tools = tools
        self._taken = False

    def apply(self, run: Run) -> None:
        """Give the values to `run`, once: a second trajectory of the same flow keeps its own."""
        if self._taken:
            return
        self._taken = True
        trajectory_id, scenario, group, metadata = self._values
        run.id = trajectory_id or run.id
        run.scenario = scenario if scenario is not None else run.scenario
        run.group = group if group is not None else run.group
        run.update(metadata, ())
        run.is_rollout = True
        run.tools = self._tools


class Scope:
    """One open span of an agent or a tool. `enter` and `leave` make it current around each step; `close` ends it once.

    This is also what `with arttrace.trajectory(...) as run` gives to the user: `id` is the trajectory's.
    """

    def __init__(
        self,
        kind: ScopeKind,
        name: str,
        *,
        run: Run,
        parent: Scope | None,
        entry: EntryPoint | None = None,
        capture_content: ContentMode | None = None,
    ) -> None:
        self.kind = kind
        self.before: Flow | None = None
        self.opened_by: object = None
        self.name = name
        self.run = run
        self.parent = parent
        self.is_root = parent is None
        self._entry = entry
        self.recorder: Recorder = recorder()
        above = self.recorder.settings.capture_content if parent is None else parent.capture_content
        self.capture_content: ContentMode = stricter(above, capture_content)
        self.library: str | None = None
        self.function: Callable[..., Any] | None = None  # in a rollout, the decorated one that this is a run of
        self._failure: tuple[str, str] | None = None
        self._attributes: dict[str, Any] = {}
        self._cut: list[str] = []
        self._described: list[str] = []
        self.execution: Execution | None = None
        self.calls = 0
        """Model calls begun right inside it."""
        self._ended = False
        self._pid = os.getpid()
        operation = semconv.OPERATION_EXECUTE_TOOL if kind == "tool" else semconv.OPERATION_INVOKE_AGENT
        self._attributes[semconv.OPERATION_NAME] = operation
        self._attributes[semconv.TOOL_NAME if kind == "tool" else semconv.AGENT_NAME] = name
        if kind == "tool":
            self._attributes[semconv.TOOL_TYPE] = "function"
        above_it = users_span() if parent is None else parent.context
        self.span = OpenSpan(f"{operation} {name}", SpanKind.INTERNAL, above_it, time.time_ns())
        # The root of what this process did in the trajectory: the trajectory's own, or what another process called.
        self._is_local_root = parent is None or parent.is_place
        if self._is_local_root:
            known_runs.note(run.id)
            sample = self.recorder.settings.sample
            if self.is_root and sample != 1 and not run.is_rollout:
                sampling.begin(run, name if entry is None else entry.name, sample)
            self.recorder.started(self)

    @property
    def id(self) -> str:
        """The trajectory's id."""
        return self.run.id

    @property
    def context(self) -> SpanContext:
        """The ids of its span."""
        return self.span.context

    @property
    def hidden(self) -> Hidden:
        """What masks and the search for secrets took out of the run."""
        return self.run.hidden

    @property
    def root(self) -> Scope:
        """The outermost scope of the trajectory in this process."""
        return self if self.parent is None else self.parent.root

    @property
    def _local_root(self) -> Scope:
        """The outermost scope that this process opened for the trajectory; a place, where it is right at one."""
        above = self.parent
        return self if above is None or above.is_place else above._local_root

    @property
    def is_place(self) -> bool:
        """Whether another process records it, as one does that this one was forked from, or that
        passed it on.

        What goes right below it is uppermost here: this process counts it by itself.
        """
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
        return self.name == name or (library == "mcp" and self.name.endswith(f"_{name}"))

    def update(self, *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Add metadata and tags to the trajectory. What another process says than the one that began it is recorded
        on that process's own root, or in a span of its own (updates.py) where none is open."""
        with _recording:
            local = self._local_root
            if local.is_root and local.has_ended:
                if not self.run.warned_of_late_update:
                    self.run.warned_of_late_update = True
                    logger.warning("arttrace: update after the end of trajectory %.100r is not recorded", self.run.id)
            elif local.has_ended or local.is_place:
                run = Run(self.run.id, self.run.project)
                run.update(metadata, tags)
                said, cut = run.said()
                if said:
                    said |= {semconv.TRUNCATED: [semconv.METADATA]} if cut else {}
                    remote_update.record(self.context, self.capture_content, run.id, said)
            else:
                self.run.update(metadata, tags)

    def reward(self, value: float, name: str = "reward") -> None:
        """Give the trajectory a reward. Each call adds one."""
        with _recording:
            record_reward(self.run.id, value, name)

    def enter(self) -> Flow:
        """Make this scope current in the caller's flow, and return the flow as it was, for `leave`."""
        flow = current_flow()
        # A trajectory starts a history of executions of its own.
        set_flow(replace(flow, scope=self, execution=None if self.is_root else flow.execution, overrides=None))
        self.belongs_to(claim_execution(self.root.execution))
        return flow

    def belongs_to(self, execution: Execution) -> None:
        """Note the execution that this scope was first entered in."""
        if self.execution is None:
            self.execution = execution
            self._attributes.update(execution_attributes(execution))

    def leave(self, before: Flow) -> None:
        """Make the flow as it was before `enter`. An execution claimed inside stays claimed, but for a root's."""
        flow = current_flow()
        if flow.scope is self:
            set_flow(before if self.is_root else replace(flow, scope=before.scope, overrides=before.overrides))

    def close(self, error: BaseException | None = None) -> None:
        """End the span now; the second time does nothing. `error` is what ended the run, None when it went well."""
        if self._ended or self.is_place:
            return
        if self._is_local_root:
            for unended in list(self.run.followed.values()):
                unended.close(GeneratorExit())
        self._ended = True
        end_ns = time.time_ns()
        attributes = self._attributes
        attributes.update(run_attributes(self.run))
        if self._is_local_root:
            attributes.update(self._root_attributes())
        if self._cut:
            attributes[semconv.TRUNCATED] = self._cut
        if self._described:
            attributes[semconv.DESCRIBED] = self._described
        failure = self._failure if error is None else describe_error(error)
        if isinstance(error, GeneratorExit):
            attributes[semconv.INTERRUPTED], failure = "closed", None
        elif isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)):
            attributes[semconv.INTERRUPTED] = "cancelled"
        elif isinstance(error, SystemExit) and error.code in (None, 0):
            failure = None
        elif self.is_root and failure is not None and self.run.unanswered is not None:
            attributes[semconv.INTERRUPTED] = f"the model did not answer ({self.run.unanswered})"
        if self.is_root and self.run.interrupted is not None:
            attributes[semconv.INTERRUPTED] = self.run.interrupted
        self.run.ended_spans += 1
        self.recorder.submit(lambda: self.recorder.ended(self, attributes, end_ns, failure))

    def so_far(self) -> dict[str, Any]:
        """What is known of a run that has not ended; how many spans it makes is not."""
        attributes = {**self._attributes, **run_attributes(self.run), **self._root_attributes()}
        del attributes[semconv.TRAJECTORY_SPAN_COUNT]
        return attributes

    def _root_attributes(self) -> dict[str, Any]:
        run = self.run
        attributes: dict[str, Any] = {semconv.PROJECT: run.project, semconv.TRAJECTORY_SPAN_COUNT: run.ended_spans}
        if self.is_root:  # an entry is the trajectory's own: another process began the one that this one joined
            attributes[semconv.ENTRY] = self._entry.source if self._entry else self.name
            if self._entry:
                attributes[semconv.ENTRY_NAME] = self._entry.name
        if run.scenario is not None:
            attributes[semconv.SCENARIO] = run.scenario
        if run.group is not None:
            attributes[semconv.GROUP] = run.group
        said, cut = run.said()
        if cut and semconv.METADATA not in self._cut:
            self._cut.append(semconv.METADATA)
        return attributes | said

    def _content(self, attribute: str, value: Any, is_object: bool) -> None:
        if self.capture_content == "off":
            return
        with _recording:
            before = described()
            text, cut = (json_object if is_object else json_text)(value, MAX_CONTENT_BYTES)
            self._attributes[attribute] = text
            if cut:
                self._cut.append(attribute)
            if described() != before:
                self._described.append(attribute)


class NoScope:
    """What a `with` block gets where nothing is recorded: the same methods, doing nothing."""

    id = ""

    def set_arguments(self, /, **arguments: Any) -> None:
        """Record nothing."""

    def set_result(self, result: Any) -> None:
        """Record nothing."""

    def update(self, *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Record nothing."""

    def reward(self, value: float, name: str = "reward") -> None:
        """Record nothing."""


def open_scope(
    kind: ScopeKind,
    name: str,
    *,
    entry: EntryPoint | None = None,
    scenario: str | None = None,
    group: str | None = None,
    tags: Sequence[str] = (),
    metadata: Mapping[str, Any] | None = None,
    trajectory_id: str | None = None,
    capture_content: ContentMode | None = None,
    library: str | None = None,
    call_id: str | None = None,
    outside: Callable[[ScopeKind], Scope | None] = lambda kind: None,
) -> Scope | None:
    """A new scope under the current one, or None when nothing is to be recorded here.

    Outside any scope it goes under `outside(kind)`; where that is nothing, only `trajectory` opens one. Inside, a
    further `trajectory` is a sub-agent of it. `library` and `call_id` are those of a tool that a library executes; a
    tool call that is being recorded already opens none.
    """
    flow = calling_flow()
    settings = recorder().settings
    if flow.muted or settings.disabled:
        return None
    announced = kind == "trajectory" and flow.overrides is not None  # a rollout: a trajectory of its own
    parent = outside(kind) if flow.scope is None and not announced else flow.scope
    if parent is not None:
        if kind == "tool" and parent.is_same_tool_call(name, library, call_id):
            parent.run_by(parent.library, call_id)
            return None
        inner: ScopeKind = "agent" if kind == "trajectory" else kind
        run = parent.run.part() if parent.is_place else parent.run
        if tags or metadata:
            run.join(metadata, tags)
        return Scope(inner, name, run=run, parent=parent, capture_content=capture_content)
    if kind != "trajectory":
        return None
    run = Run(
        id=trajectory_id or random_hex(32),
        project=settings.project,
        scenario=scenario,
        group=group,
    )
    run.update(metadata, tags)
    if flow.overrides is not None:
        flow.overrides.apply(run)
    return Scope(kind, name, run=run, parent=None, entry=entry, capture_content=capture_content)


def run_attributes(run: Run) -> dict[str, Any]:
    """What every span of a run carries."""
    return {semconv.TRAJECTORY_ID: run.id} if run.id else {}


def execution_attributes(execution: Execution) -> dict[str, Any]:
    """What tells a span's flow of control."""
    attributes = {semconv.EXECUTION_ID: execution.id}
    if execution.parent_id is not None:
        attributes[semconv.EXECUTION_PARENT_ID] = execution.parent_id
    return attributes


def describe_error(error: BaseException) -> tuple[str, str]:
    """(type, message) of an exception, the message bounded."""
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return name, safe_text(error)[:MAX_ERROR_TEXT]


def record_reward(trajectory_id: str, value: float, name: str) -> None:
    """Append one reward to the spool. A value that is no finite number is logged and not recorded."""
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        logger.warning("arttrace: the reward %r is no finite number and was not recorded", name)
        return
    if sampling.was_left_out(trajectory_id):
        sampling.tell_left_out(trajectory_id)
        return
    sampling.keep(trajectory_id)
    recorder().record(
        Reward(id=random_hex(32), trajectory_id=trajectory_id, value=number, name=name, time_ns=time.time_ns())
    )
