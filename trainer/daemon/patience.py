"""Waiting: for what may pass, with growing pauses, and for a person who asks the daemon to stop."""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from arttrace.errors import ArttraceError, MayPass

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0


class Stopped(Exception):
    """The daemon was asked to stop while it waited."""


class Waiting:
    """Does an action until it succeeds or fails for good. `tell` gets the trouble once per cause, and None when it is
    over; `stop` ends every wait with Stopped."""

    def __init__(self, stop: threading.Event, tell: Callable[[ArttraceError | None], None]) -> None:
        self._stop = stop
        self._tell = tell

    def __call__(self, action: Callable[[], T]) -> T:
        told: str | None = None
        pause = FIRST_PAUSE_S
        while True:
            try:
                result = action()
            except ArttraceError as error:
                if not isinstance(error, MayPass):
                    raise
                if error.message != told:
                    told = error.message
                    self._tell(error)
                if self._stop.wait(pause):
                    raise Stopped from error
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                if told is not None:
                    self._tell(None)
                return result


@contextmanager
def stop_on_signals(stop: threading.Event, say: Callable[[str], None]) -> Iterator[None]:
    """SIGINT or SIGTERM sets `stop`; a second one raises KeyboardInterrupt where the program stands."""

    def handle(_number: int, _frame: types.FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("stopping when the running step is done; once more drops the step")

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
