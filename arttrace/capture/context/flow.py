"""Who is calling: the agent scope and the execution of the current flow of control, carried by one context variable.

An execution is one flow of control, an asyncio task or a thread, as seen by the calls it made. It inherits the context
of the flow that started it; the first call of another task or thread makes an execution of its own, with the inherited
one as parent. So two undecorated sub-agents that run in parallel are distinguished by fact.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from arttrace.capture.base.ids import random_hex

if TYPE_CHECKING:
    from arttrace.capture.calls.routing import Route
    from arttrace.capture.context.scope import RunOverrides, Scope


_forks = 0
_asyncio: Any = None
_sniffio: Any = None


def _owner() -> Any:
    """The current task of asyncio or trio, else the current thread.

    Both are asked whether they run in this thread at all, which costs a tenth of the error that says so: trio, from
    0.23 on, by what it tells sniffio.
    """
    global _asyncio, _sniffio
    if _asyncio is None:
        _asyncio = sys.modules.get("asyncio.events")
    if _sniffio is None:
        _sniffio = getattr(sys.modules.get("sniffio"), "thread_local", None)
    task = None
    if _asyncio is not None and _asyncio._get_running_loop() is not None:
        task = sys.modules["asyncio"].current_task()
    if task is None and _sniffio is not None and _sniffio.name == "trio":
        with suppress(RuntimeError):
            task = sys.modules["trio"].lowlevel.current_task()
    return threading.current_thread() if task is None else task


class Execution(msgspec.Struct, frozen=True, eq=False):
    """One flow of control. The owner is held weakly: an id() would be reused."""

    id: str
    parent_id: str | None
    owner: weakref.ref[Any]
    forks: int = 0
    """How often this process was forked from another one by then: its thread is the other's, the flow is not."""

    @property
    def is_current(self) -> bool:
        """Whether it is the flow of the current task or thread."""
        return self.forks == _forks and self.owner() is _owner()

    @classmethod
    def start(cls, parent: Execution | None, owner: Any = None) -> Execution:
        """A new execution of `owner`, which is the current task or thread by default."""
        return cls(random_hex(16), parent.id if parent else None, weakref.ref(owner or _owner()), _forks)


class Flow(msgspec.Struct, frozen=True, eq=False):
    """What a flow of control inherits: the innermost scope, the execution, its routes, and whether capture is off."""

    scope: Scope | None = None
    execution: Execution | None = None
    muted: bool = False
    overrides: RunOverrides | None = None
    routes: tuple[Route, ...] = ()
    is_whole: bool = False
    """Whether its scope counts whatever library's span is current."""


EMPTY_FLOW = Flow()
"""Outside any scope."""
OUTSIDE = Flow(is_whole=True)
"""The same inside a library's span: what is started now is for others too."""
_flow: ContextVar[Flow] = ContextVar("arttrace_flow", default=EMPTY_FLOW)


_innermost: Callable[[Scope | None], Scope | None] | None = None


def follow(innermost: Callable[[Scope | None], Scope | None]) -> None:
    """From now on ask `innermost` which scope the caller is in, given the flow's own."""
    global _innermost
    _innermost = innermost


def current_flow() -> Flow:
    """The flow of the caller as it was set, to be changed and set back."""
    return _flow.get()


def calling_flow() -> Flow:
    """The flow of the caller with the scope that it is in: the flow's own, or one inside it of a library's span."""
    flow = _flow.get()
    if _innermost is None or flow.is_whole:
        return flow
    scope = _innermost(flow.scope)
    return flow if scope is flow.scope else replace(flow, scope=scope)


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
        execution = Execution.start(inherited)
    assert execution is not None
    if execution is not flow.execution:
        _flow.set(replace(flow, execution=execution))
    return execution


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
