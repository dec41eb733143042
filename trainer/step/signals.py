"""SIGINT and SIGTERM end a training after the running step; a second one drops the step."""

from __future__ import annotations

import signal
import threading
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
