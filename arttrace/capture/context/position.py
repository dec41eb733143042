"""A position in the tree of a trajectory: what calls and scopes are recorded under.

There are two kinds, and nothing else is one: a `Scope` (scope.py), whose span this process makes, and a `RemoteParent`
(propagation.py), whose span is another process's. Whatever is asked of the position that a caller is at holds for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal
from weakref import ReferenceType

from opentelemetry.trace import SpanContext

from arttrace.capture.base.guard import Guard
from arttrace.capture.context import remote_update
from arttrace.capture.context.execution import Execution
from arttrace.capture.context.rewards import record_reward
from arttrace.capture.context.run import RunState
from arttrace.records import semconv
from arttrace.wire.content import ContentMode, Hidden

if TYPE_CHECKING:
    from arttrace.capture.export.recorder import Recorder  # loaded on first use: importing arttrace stays quick

ScopeKind = Literal["trajectory", "agent", "tool"]

_recording = Guard("recording what a run was given")


class Position:
    """What all positions share; whoever makes one sets the fields."""

    kind: ScopeKind
    name: str
    run: RunState
    parent: Position | None = None
    recorder: Recorder
    capture_content: ContentMode
    execution: Execution | None
    """The one that it was first entered in."""
    library: str | None = None
    """The library that executes this tool, if one does."""
    is_root = False
    """Whether it is the outermost of its trajectory, in whichever process."""
    following: dict[int, ReferenceType[Any]] | None = None
    """Libraries' spans of model calls right inside it that have not ended, by id(); None before the first."""
    passed: Mapping[str, int] = {}
    """Requests made right inside it that were to a model and are no call so far, as the end of `arttrace run` names
    them."""
    covered: Mapping[str, int] = {}
    """Those of them that a library's span has recorded."""
    handle: ReferenceType[Any] | None = None
    """The one that the user has, as long as the user has it."""
    opened_by: object = None
    before: Any = None
    """The flow as it was before the block that opened it, and None without one."""
    is_left = False
    """Whether that block was left in another task or thread than it was entered in: there it is still the flow's."""

    @property
    def id(self) -> str:
        """The trajectory's id."""
        return self.run.id

    @property
    def context(self) -> SpanContext:
        """The ids of its span."""
        raise NotImplementedError

    @property
    def hidden(self) -> Hidden:
        """What masks and the search for secrets took out of the run."""
        return self.run.hidden

    @property
    def root(self) -> Position:
        """The outermost position of the trajectory in this process."""
        position = self
        while position.parent is not None:
            position = position.parent
        return position

    @property
    def local_root(self) -> Position:
        """The outermost scope that this process opened for the trajectory; a remote position is its own."""
        return self

    @property
    def is_remote(self) -> bool:
        """Whether another process records its span. What goes right below it is uppermost here: this process counts it
        by itself."""
        return True

    def enter(self) -> Any:
        """Make this position current in the caller's flow, and return the flow as it was, for `leave`."""
        raise NotImplementedError

    def leave(self, before: Any) -> Any:
        """Make the flow as it was before this position was entered, and return it as it was inside."""
        raise NotImplementedError

    def note_passed(self, what: str) -> None:
        """One more such request."""
        self.passed = {**self.passed, what: self.passed.get(what, 0) + 1}

    @property
    def has_ended(self) -> bool:
        """Whether this process records nothing more on its span."""
        return True

    @property
    def run_is_over(self) -> bool:
        """Whether the run has ended that this process began, or the one that it was forked from."""
        root = self.root
        return root.is_root and root.has_ended

    def is_same_agent(self, name: str) -> bool:
        """Whether an agent that starts right inside this position is this one, seen again at another place."""
        return self.kind != "tool" and self.name == name

    def is_same_tool_call(self, name: str, library: str | None, call_id: str | None) -> bool:
        """Whether a tool that starts right inside this position is this one, seen again at another place."""
        return False

    def run_by(self, library: str | None, call_id: str | None) -> None:
        """Note the library that executes this tool, and the id that the model gave the call."""

    def describe(self, attributes: Mapping[str, Any]) -> None:
        """Note what a library says of an agent beside its name."""

    def set_arguments(self, /, **arguments: Any) -> None:
        """Record what this run was started with, as it is now."""

    def set_result(self, result: Any) -> None:
        """Record what this run returned, as it is now."""

    def update(self, *, metadata: Mapping[str, Any] | None = None, tags: Sequence[str] = ()) -> None:
        """Add metadata and tags to the trajectory, in a span of their own below this position."""
        with _recording:
            run = RunState(self.run.id, self.run.project)
            run.update(metadata, tags)
            attributes, cut = run.tags_and_metadata()
            if attributes:
                attributes |= {semconv.TRUNCATED: [semconv.METADATA]} if cut else {}
                remote_update.record(self.context, self.capture_content, run.id, attributes)

    def reward(self, value: float, name: str = "reward") -> None:
        """Give the trajectory a reward. Each call adds one."""
        with _recording:
            record_reward(self.run.id, value, name)
