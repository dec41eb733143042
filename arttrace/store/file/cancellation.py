"""Readers of the store that are stopped from outside: whoever asked has left, or it took too long."""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Iterator
from typing import Protocol

import duckdb

from arttrace.system.errors import StoreError

QUERY_S = 300.0
"""For which a query of somebody's own may run."""
_AGAIN_S = 0.2

_current: contextvars.ContextVar[Stop | None] = contextvars.ContextVar("arttrace_stop", default=None)


class Interruptible(Protocol):
    """A connection on which something is read."""

    def interrupt(self) -> object:
        """Ends what is read on it now, with an exception where it is read. For any thread."""


class Stopped(StoreError):
    """What was asked was not answered to its end."""


class Stop:
    """Stops what is read in the contexts in which it is `current`. Threads may share it."""

    def __init__(self) -> None:
        self._why: StoreError | None = None
        self._lock = threading.Lock()
        self._connections: set[Interruptible] = set()

    def __call__(self, why: str, hint: str | None = None) -> None:
        """Stops it. What begins at this very moment may not notice: call it again while it goes on."""
        with self._lock:
            self._why = Stopped(why, hint)
            for connection in self._connections:
                connection.interrupt()

    def check(self) -> None:
        """Raises Stopped after it was called."""
        if self._why is not None:
            raise self._why

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """What this thread or task reads now may be stopped."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)

    @contextlib.contextmanager
    def _over(self, connection: Interruptible) -> Iterator[None]:
        self.check()
        with self._lock:
            self._connections.add(connection)
        try:
            yield
        except (duckdb.InterruptException, RuntimeError):
            self.check()
            raise
        finally:
            with self._lock:
                self._connections.discard(connection)


def took_too_long(limit_s: float) -> tuple[str, str]:
    """Why a query is stopped, and what to do about it."""
    return f"the query took longer than {limit_s:g} seconds", "Ask for less at a time."


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What is read meanwhile is stopped after QUERY_S, unless somebody watches over it who may stop it anyway."""
    if is_watched():
        yield
        return
    stop, over, limit_s = Stop(), threading.Event(), QUERY_S

    def watch() -> None:
        wait_s = limit_s
        while not over.wait(wait_s):
            stop(*took_too_long(limit_s))
            wait_s = _AGAIN_S

    threading.Thread(target=watch, name="arttrace-query-limit", daemon=True).start()
    try:
        with stop.current():
            yield
    finally:
        over.set()


def stoppable(connection: Interruptible) -> contextlib.AbstractContextManager[None]:
    """What runs on a connection meanwhile can be stopped by the current Stop, if there is one. Raises Stopped."""
    stop = _current.get()
    return contextlib.nullcontext() if stop is None else stop._over(connection)


def is_watched() -> bool:
    """Whether there is a current Stop."""
    return _current.get() is not None


def check() -> None:
    """Raises Stopped when the current Stop was called."""
    stop = _current.get()
    if stop is not None:
        stop.check()
