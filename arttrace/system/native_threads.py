"""Threads, locks, events and queues of the operating system, also where gevent or eventlet has put its own in place.

What records in the background must get on whatever the user's program does, and the program must never wait for it by
a primitive that only its own greenlets can release. gevent and eventlet replace names in `threading`, `_thread`,
`queue` and `time`, at any moment: before arttrace is imported, or after its worker has started. The names here are
taken from what neither of them touches, so they stay what they are.

On the user's side a wait is the other way round: while one greenlet waits for us, the others must run (`Lock`,
`Event.wait_outside`, `pause`).
"""

from __future__ import annotations

import _thread
import inspect
import os
import sys
import time
from _queue import Empty as Empty
from _queue import SimpleQueue as SimpleQueue
from collections.abc import Callable
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import BuiltinFunctionType, ModuleType, TracebackType
from typing import Any

__all__ = [
    "Empty",
    "Event",
    "Lock",
    "SimpleQueue",
    "Thread",
    "allocate_lock",
    "get_ident",
    "is_ours",
    "is_patched",
    "never_switch",
    "pause",
    "sleep",
]

_SWITCH_S = 0.001  # how long other greenlets run before a waiting one looks again


def is_patched() -> bool:
    """Whether threads are greenlets in this process now; what only wraps Python's own starts threads."""
    return not isinstance(inspect.unwrap(_thread.start_new_thread), BuiltinFunctionType)


def _pristine() -> Any:
    """`_thread` as Python made it: a second one where somebody has replaced what is in the first."""
    if not is_patched():
        return _thread
    spec = BuiltinImporter.find_spec("_thread")
    assert spec is not None
    assert spec.loader is not None
    module: ModuleType = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_native = _pristine()
_start_new_thread: Callable[[Callable[[], None], tuple[()]], int] = _native.start_new_thread
get_ident: Callable[[], int] = _native.get_ident
allocate_lock: Callable[[], _thread.LockType] = _native.allocate_lock
"""A lock of the operating system. For what holds it so shortly that no greenlet can be switched meanwhile."""

_ours: set[int] = set()  # the idents of our threads that run
_switching = True

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_ours.clear)


def is_ours() -> bool:
    """Whether a `Thread` of this module calls."""
    return get_ident() in _ours


def never_switch() -> None:
    """From now on no greenlet of the user's runs while we wait: the program is at its end."""
    global _switching
    _switching = False


def _switches() -> bool:
    """Whether a wait of the caller's must let other greenlets run."""
    return _switching and is_patched() and not is_ours()


_never = allocate_lock()
_never.acquire()


def sleep(seconds: float) -> None:
    """Sleep with the whole thread."""
    _never.acquire(timeout=seconds)


def pause(seconds: float) -> None:
    """Sleep on a thread of the user's, whose other greenlets go on meanwhile."""
    if _switches():
        time.sleep(seconds)  # as patched
    else:
        sleep(seconds)


class Lock:
    """A lock that threads may share with greenlets, and that is held while something may be waited for."""

    def __init__(self) -> None:
        self._lock = allocate_lock()

    def __enter__(self) -> None:
        """Raises RuntimeError where it would be waited for in vain: other threads end with the interpreter as they are,
        and a lock stays with them."""
        while not self._lock.acquire(False):
            if sys.is_finalizing():
                raise RuntimeError("the interpreter ends, and a thread that ended before holds what is needed")
            if not _switches():
                self._lock.acquire()
                return
            pause(_SWITCH_S)  # the greenlet that holds it goes on

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._lock.release()

    def locked(self) -> bool:
        """Whether somebody holds it."""
        return self._lock.locked()


class Event:
    """As that of `threading`; to one who waits, `clear` at that very moment may come too late."""

    def __init__(self) -> None:
        self._unset = allocate_lock()
        self._unset.acquire()

    def is_set(self) -> bool:
        """Whether it is set."""
        return not self._unset.locked()

    def set(self) -> None:
        """Wake who waits."""
        if self._unset.locked():
            try:
                self._unset.release()
            except RuntimeError:  # somebody else did
                return

    def clear(self) -> None:
        """Let the next one wait."""
        self._unset.acquire(False)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait with the whole thread, for threads of ours; whether it is set."""
        if not self._unset.acquire(timeout=-1 if timeout_s is None else max(0.0, timeout_s)):
            return False
        self.set()
        return True

    def wait_outside(self, timeout_s: float | None = None) -> bool:
        """Wait on a thread of the user's, whose other greenlets go on meanwhile; whether it is set."""
        if not _switches():
            return self.wait(timeout_s)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while not self.is_set():
            if end is not None and time.monotonic() >= end:
                return False
            pause(_SWITCH_S)
        return True


class Thread:
    """A daemon thread of the operating system, in a context of its own; `threading` does not know of it."""

    def __init__(self, target: Callable[[], None]) -> None:
        self._target = target
        self._ended = False

    def start(self) -> None:
        """Raises RuntimeError where no thread can be started."""
        _start_new_thread(self._run, ())

    def _run(self) -> None:
        ident = get_ident()
        _ours.add(ident)
        try:
            self._target()
        finally:
            _ours.discard(ident)
            self._ended = True

    def is_alive(self) -> bool:
        """Whether it runs or is going to: not when the interpreter ends."""
        return not (self._ended or sys.is_finalizing())
