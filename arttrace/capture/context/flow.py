"""Who is calling: the position and the execution of the current flow of control, carried by one context variable.

The variable is set and set back, never reset by a token: no token outlives its context.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context, ContextVar
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from arttrace.capture.base.guard import logger
from arttrace.capture.base.routes import Route
from arttrace.capture.context.execution import EnteredBlock, Execution
from arttrace.capture.context.position import Position
from arttrace.capture.context.run import RunOverrides
from arttrace.capture.export import lifecycle


class OpenRoute(EnteredBlock):
    """A `with` block of a route."""

    def __init__(self, opened_by: object, route: Route) -> None:
        super().__init__(opened_by)
        self.route = route


class Flow(msgspec.Struct, frozen=True, eq=False):
    """What a flow of control inherits: the innermost scope, the execution, its routes, and whether capture is off."""

    scope: Position | None = None
    execution: Execution | None = None
    muted: object = False
    overrides: RunOverrides | None = None
    routes: tuple[OpenRoute, ...] = ()
    is_whole: bool = False
    """Whether its scope counts whatever library's span is current."""


EMPTY_FLOW = Flow()
"""Outside any scope."""
OUTSIDE = Flow(is_whole=True)
"""The same inside a library's span: what is started now is for others too."""
_flow: ContextVar[Flow] = ContextVar("arttrace_flow", default=EMPTY_FLOW)


_MAX_OPEN = 1000  # of blocks of one object that nobody leaves
_warned = False

_innermost: Callable[[Position | None], Position | None] | None = None


def follow(innermost: Callable[[Position | None], Position | None]) -> None:
    """From now on ask `innermost` which scope the caller is in, given the flow's own."""
    global _innermost
    _innermost = innermost


def current_flow() -> Flow:
    """The flow of the caller as it was set, to be changed and set back."""
    return _flow.get()


def calling_flow() -> Flow:
    """The flow of the caller with the scope that it is in: the flow's own, or one inside it of a library's span.

    While capture is off that is none: whoever still holds a hook of ours is in no run there.
    """
    if lifecycle.is_off():
        return EMPTY_FLOW
    flow = _flow.get()
    if flow.scope is not None and flow.scope.is_left:
        flow = _come_out(flow)
    if flow.muted is not False and not flow.muted:  # the same of a block of no_capture
        flow = replace(flow, muted=False)
        _flow.set(flow)
    if _innermost is None or flow.is_whole:
        return flow
    scope = _innermost(flow.scope)
    return flow if scope is flow.scope else replace(flow, scope=scope)


def _come_out(flow: Flow) -> Flow:
    """The flow as it was before the blocks that this task or thread entered and another one has left: of a generator,
    say, that its consumer left early and the event loop has closed."""
    scope = flow.scope
    while scope is not None and scope.is_left and scope.before is not None:
        before: Flow = scope.before
        if scope.execution is None or not scope.execution.is_current:
            break
        execution = before.execution if scope.is_root else flow.execution
        flow = replace(flow, scope=before.scope, overrides=before.overrides, execution=execution)
        _flow.set(flow)
        scope.leave(before)
        scope = flow.scope
    return flow


def _blocks_inside(outer: Position | None, flow: Flow) -> list[Position] | None:
    """The `with` blocks that `flow` is in inside the position `outer`, the innermost first; None where it is not in
    `outer` at all."""
    found: list[Position] = []
    at = flow.scope
    while at is not outer:
        if at is None or at.before is None:
            return None
        found.append(at)
        at = at.before.scope
    return found


def out_of_blocks(outer: Position, flow: Flow) -> Flow:
    """The caller's flow, which is `flow`, when it has left the blocks that it is in inside `outer`."""
    for block in _blocks_inside(outer, flow) or ():
        block.leave(block.before)
    return _flow.get()


def opened_here(opened_by: object, flow: Flow) -> Position | None:
    """The innermost block of that object that `flow` is in and nobody has left, though others may be inside it: those
    of generators that were left early."""
    at = flow.scope
    while at is not None and at.before is not None:
        if at.opened_by is opened_by and not at.is_left:
            return at
        at = at.before.scope
    return None


class LeftOpen(msgspec.Struct, frozen=True):
    """The `with` blocks that a generator is in where it yields: its next step goes on in them, its consumer is in none.

    `scopes` are the outermost first.
    """

    scopes: list[Position]
    muted: object
    routes: tuple[OpenRoute, ...]

    @classmethod
    def of(cls, inside: Flow, outer: Flow) -> LeftOpen | None:
        """What is open `inside` and was not in the flow `outer`; None where that is nothing. Of another flow, in which
        a coroutine is closed that nobody awaits any more, it is nothing."""
        scopes = _blocks_inside(outer.scope, inside)
        if scopes is None:
            return None
        muted = inside.muted if inside.muted is not outer.muted and inside.muted else None
        routes = tuple(each for each in inside.routes if each not in outer.routes)
        return cls(scopes[::-1], muted, routes) if scopes or routes or muted is not None else None

    def enter(self) -> None:
        """Enter them again."""
        for scope in self.scopes:
            if not scope.has_ended:
                scope.enter()
        flow = _flow.get()
        muted = flow.muted if self.muted is None else self.muted
        _flow.set(replace(flow, muted=muted, routes=(*flow.routes, *self.routes)))


def routes_in_force() -> list[Route]:
    """The routes of the blocks that the caller is in, the innermost last."""
    return [block.route for block in _flow.get().routes if not block.is_over]


class Enterable(Protocol):
    """What a `with` block has entered."""

    execution: Execution | None
    is_left: bool


EnterableT = TypeVar("EnterableT", bound=Enterable)


class Blocks(Generic[EnterableT]):
    """The `with` blocks of one object that are open, by what each has entered: None where nothing is recorded. Several
    tasks may enter the object."""

    def __init__(self) -> None:
        self._open: deque[EnterableT | None] = deque(maxlen=_MAX_OPEN)

    def __reduce__(self) -> Any:
        return Blocks, ()  # what is open stays in its process

    @property
    def hold_none(self) -> bool:
        """Whether one of them is open of which nothing is recorded."""
        return None in self._open

    def enter(self, entered: EnterableT | None) -> None:
        """A block has entered that."""
        self._open.append(entered)

    def leave(self, here: EnterableT | None) -> EnterableT | None:
        """What the block had entered that is left now: what the object opened in this flow, `here`, or the only one
        that is open."""
        block = self._open[0] if here is None and len(self._open) == 1 else here
        with suppress(ValueError):
            self._open.remove(block)
        if block is not None:
            block.is_left = here is None or block.execution is None or not block.execution.is_current
        return block


def left_elsewhere(position: Position) -> None:
    """The block of that position is left where another flow is: the run may lack calls that were made in between."""
    global _warned
    position.run.interrupted = "left in another task or thread than it was entered in"
    if not _warned:
        _warned = True
        logger.warning(
            "arttrace: a `with` block of a run was left in another task or thread than it was entered in: calls in "
            "between may be outside of the run, which is incomplete. Decorate a function, or enter and leave it in one "
            "task (logged once)"
        )


def set_flow(flow: Flow) -> None:
    """Make `flow` the caller's; undone by setting the one before, so that no context token outlives its context."""
    _flow.set(flow)


def claim_execution(base: Execution | None = None) -> Execution:
    """The execution of the current task or thread, made now when it has none of its own yet.

    A flow that inherited none descends from `base`.
    """
    flow = _flow.get()
    inherited = flow.execution or base
    execution = inherited
    if inherited is None or not inherited.is_current:
        waits = inherited is not None and inherited.is_waiting_here
        execution = inherited.going_on() if inherited is not None and waits else Execution.start(inherited)
    assert execution is not None
    if execution is not flow.execution:
        _flow.set(replace(flow, execution=execution))
    return execution


def go_on(execution: Execution | None) -> None:
    """Let this flow of control, which waits where it was, go on in the current task or thread."""
    if execution is not None and not execution.is_current:
        _flow.set(replace(_flow.get(), execution=execution.going_on()))


def go_on_in(task: Any, context: Context) -> None:
    """Let the caller's flow of control go on in `task`, which has not begun, runs in `context`, and which the caller
    waits for."""
    execution = waiting_execution()
    if execution is not None:
        inside = replace(context.run(_flow.get), execution=execution.going_on(task))
        context.run(_flow.set, inside)


def waiting_execution() -> Execution | None:
    """The execution of the caller, to go on elsewhere while the caller waits; None outside a run."""
    scope = calling_flow().scope
    return None if scope is None else claim_execution(scope.root.execution)
