"""Progress of long work on the terminal: how much is done, at what rate, and how long the rest will take."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import click

from arttrace.records.values.units import duration_text

EVERY_S = 5.0
BESIDE_LINES_S = 30.0
"""Where each piece of the work has a line of its own."""


class Progress:
    """Calls `say` with the `unit`s done out of `total`: at most once in `every_s` seconds, and for the last one;
    without `tells_short`, for the last one only if something was printed before."""

    def __init__(
        self,
        total: int,
        unit: str,
        say: Callable[[str], None],
        *,
        every_s: float = EVERY_S,
        tells_short: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._unit = unit
        self._say = say
        self._every_s = every_s
        self._tells_last = tells_short
        self._clock = clock
        self._began = self._shown_at = clock()

    def __call__(self, done: int, note: str = "") -> None:
        """`done` of them are; `note` is added."""
        now = self._clock()
        is_due = now - self._shown_at >= self._every_s
        if not is_due and (done < self._total or not self._tells_last):
            return
        self._shown_at, self._tells_last = now, True
        self._say(f"{done} of {self._total} {self._unit}{_pace(done, self._total, now - self._began)}{note}")


class CountedProgress(Progress):
    """Progress of work that says with each call of how many: its time counts from before any was done."""

    def of(self, done: int, total: int) -> None:
        """`done` of `total` are."""
        self._total = total
        self(done)


@contextlib.contextmanager
def watched(measure: Callable[[], int], progress: Progress, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Prints the progress of work in the body that does not print its own: `measure` returns how much is done; its
    OSErrors are ignored."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(every_s):
            with contextlib.suppress(OSError):
                progress(measure())

    watcher = threading.Thread(target=look, name="arttrace-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def say(line: str) -> None:
    """Print a line about the work, on standard error."""
    click.echo(line, err=True)


@contextlib.contextmanager
def reading_progress(say: Callable[[str], None] = say) -> Iterator[None]:
    """In the body, tell progress while a store's runs are read for the first time, or again after another version
    stored them, if that takes long."""
    from arttrace.store.file.reading import reading_reported  # here: some commands with progress have no store

    with reading_reported(lambda total: Progress(total, "runs read", say, tells_short=False)):
        yield


def telling_of_reading(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that prints that progress on standard error."""

    @functools.wraps(command)
    def telling(*given: Any, **named: Any) -> Any:
        with reading_progress():
            return command(*given, **named)

    return telling


def _pace(done: int, total: int, seconds: float) -> str:
    if not done or seconds <= 0:
        return ""
    rate = done / seconds
    pace = f"{rate:.1f} per second" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f", {pace}" if done >= total else f", {pace}, {duration_text((total - done) / rate)} left"
