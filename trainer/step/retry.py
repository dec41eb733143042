"""Retrying what may pass, with growing pauses, until it succeeds, fails for good, or the training is asked to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Protocol, TypeVar

from arttrace.system.errors import ArttraceError, MayPass

T = TypeVar("T")

FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 30.0
_LOOK_EVERY_S = 0.1


class Retry(Protocol):
    """Performs an action, and may repeat it if it fails: every such action is idempotent.

    An action with an `undo` holds others up while it tries. They get as much time before it tries again, and a stop
    does not wait for it: what it still brings is undone.
    """

    def __call__(self, action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T: ...


def no_retry(action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """No retry: a failure is raised."""
    return action()


class StopRequested(Exception):
    """The daemon was asked to stop while it waited."""


class RetryUntilStopped:
    """Repeats an action until it succeeds or fails for good.

    `on_trouble` is called with the error once per cause, and with None when it is over. `stop` ends every wait with
    StopRequested.
    """

    def __init__(self, stop: threading.Event, on_trouble: Callable[[ArttraceError | None], None]) -> None:
        self._stop = stop
        self._on_trouble = on_trouble

    def __call__(self, action: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
        shown: str | None = None
        pause = FIRST_PAUSE_S
        while True:
            began = time.monotonic()
            try:
                result = action() if undo is None else self._aside(action, undo)
            except ArttraceError as error:
                if not isinstance(error, MayPass):
                    raise
                if error.message != shown:
                    shown = error.message
                    self._on_trouble(error)
                held_up = 0.0 if undo is None else time.monotonic() - began
                if self._stop.wait(max(pause, held_up)):
                    raise StopRequested from error
                pause = min(2 * pause, LONGEST_PAUSE_S)
            else:
                if shown is not None:
                    self._on_trouble(None)
                return result

    def _aside(self, action: Callable[[], T], undo: Callable[[T], None]) -> T:
        """Do it in a thread, which is left to itself, with what it still brings, when `stop` comes first."""
        doing: Future[T] = Future()

        def do() -> None:
            try:
                doing.set_result(action())
            except BaseException as error:  # noqa: BLE001  raised by who waits
                doing.set_exception(error)

        threading.Thread(target=do, name="arttrace-train-waiting", daemon=True).start()
        try:
            while not wait([doing], _LOOK_EVERY_S).done:
                if self._stop.is_set():
                    raise StopRequested
        except BaseException:
            doing.add_done_callback(lambda late: None if late.exception() else undo(late.result()))
            raise
        return doing.result()
