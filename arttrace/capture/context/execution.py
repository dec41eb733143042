"""An execution: one flow of control, an asyncio task or a thread, as seen by the calls it made.

It inherits the context of the flow that started it; the first call of another task or thread makes an execution of its
own, with the inherited one as parent. So two undecorated sub-agents that run in parallel are kept apart by fact.
"""

from __future__ import annotations

import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

import msgspec

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.ids import random_hex
from arttrace.records import semconv

_entering = Guard("noting where a block is entered and left")
_forks = 0
_asyncio: Any = None
_sniffio: Any = None


def _owner() -> Any:
    """The current task of asyncio or trio, else the current thread.

    Both are asked whether they run in this thread at all, which costs a tenth of the error that says so: trio, from
    0.23 on, by what it registers with sniffio.
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
    """One flow of control. The reference to its owner is weak: an id() would be reused."""

    id: str
    parent_id: str | None
    owner: weakref.ref[Any]
    forks: int = 0
    """How often this process was forked from another one by then: its thread is the other's, the flow is not."""

    @property
    def is_current(self) -> bool:
        """Whether it is the flow of the current task or thread."""
        return self.forks == _forks and self.owner() is _owner()

    @property
    def attributes(self) -> dict[str, Any]:
        """The attributes of a span that name its flow of control."""
        attributes = {semconv.EXECUTION_ID: self.id}
        if self.parent_id is not None:
            attributes[semconv.EXECUTION_PARENT_ID] = self.parent_id
        return attributes

    def going_on(self, owner: Any = None) -> Execution:
        """The same flow, which goes on in the task `owner`, or the current task or thread, and waits where it was."""
        return msgspec.structs.replace(self, owner=weakref.ref(owner or _owner()), forks=_forks)

    @property
    def is_waiting_here(self) -> bool:
        """Whether its task does nothing but wait for the current one: in Python 3.11 `asyncio.wait_for` makes a task of
        the coroutine that it waits for, later ones wait where they are."""
        waiter, task = getattr(self.owner(), "_fut_waiter", None), _owner()
        if sys.version_info >= (3, 12) or waiter is None or self.forks != _forks:
            return False
        release: Any = sys.modules["asyncio.tasks"]._release_waiter
        return any(
            getattr(ended, "func", None) is release and ended.args == (waiter,)
            for ended, _ in getattr(task, "_callbacks", None) or ()
        )

    @classmethod
    def start(cls, parent: Execution | None, owner: Any = None) -> Execution:
        """A new execution of `owner`, which is the current task or thread by default."""
        return cls(random_hex(16), parent.id if parent else None, weakref.ref(owner or _owner()), _forks)

    @classmethod
    def elsewhere(cls, id: str) -> Execution:
        """The execution of another process: no task or thread of this one is its owner."""
        return cls(id, None, weakref.ref(_Elsewhere()))


class _Elsewhere:
    """The owner of an execution in another process; gone as soon as it is made."""


class EnteredBlock:
    """A `with` block of the object `opened_by`, known to each flow that entered it or was started inside it.

    In the task or thread that entered it, it is over once it is left, wherever that is: an async generator that its
    consumer leaves early is closed in another task.
    """

    execution: Execution | None = None
    is_left = False

    def __init__(self, opened_by: object) -> None:
        self.opened_by = opened_by
        with _entering:
            self.execution = Execution("", None, weakref.ref(_owner()), _forks)

    @property
    def is_over(self) -> bool:
        """Whether the caller's flow has only kept it from before it was left."""
        with _entering:
            return self.is_left and self.execution is not None and self.execution.is_current
        return False


def _after_fork_in_child() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
