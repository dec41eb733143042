"""SIGINT and SIGTERM end a training after the running step, a second one drops the step; where no step runs, the first
ends it at once."""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trainer.step.retry import StopRequested

_NO_STEP = "stopping: no step is running"


@contextmanager
def stop_on_signals(
    stop: threading.Event, say: Callable[[str], None], step_runs: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """SIGINT or SIGTERM sets `stop`; a second one raises KeyboardInterrupt where the program stands. `step_runs` is
    asked for what is said."""

    def handle(_number: int, _frame: types.FrameType | None) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        say("stopping when the running step is done; once more drops the step" if step_runs() else _NO_STEP)

    with _handled_by(handle):
        yield


@contextmanager
def ended_by_signals(stop: threading.Event, say: Callable[[str], None]) -> Iterator[None]:
    """The first SIGINT or SIGTERM sets `stop` and ends the body where it stands: for what takes long and leaves nothing
    behind. Raises StopRequested, also for any error after it: compiled packages make others of the interruption."""

    def handle(_number: int, _frame: types.FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            say(_NO_STEP)
            raise KeyboardInterrupt

    try:
        with _handled_by(handle):
            yield
    except BaseException as error:
        if not stop.is_set():
            raise
        raise StopRequested from error
    if stop.is_set():
        raise StopRequested


@contextmanager
def _handled_by(handle: Callable[[int, types.FrameType | None], None]) -> Iterator[None]:
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
