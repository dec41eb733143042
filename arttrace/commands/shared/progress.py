"""Progress of long work: how much is done, at what rate, and how long the rest will take. A bar where standard error
is a terminal, elsewhere a line every few seconds."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from arttrace.commands.shared.bars import bars_of_command
from arttrace.records.values.units import duration_text

if TYPE_CHECKING:
    from rich.progress import TaskID

EVERY_S = 5.0
BESIDE_LINES_S = 30.0
"""Where each piece of the work has a line of its own."""
_SHORT_S = 1.0


class ShownWork:
    """Work that is shown on standard error, or by `say`, in lines: at most one in `every_s` seconds, and one for the
    end; without `tells_short`, one for the end only if something was shown before, and no bar in the first second."""

    def __init__(
        self,
        say: Callable[[str], None] | None = None,
        *,
        every_s: float = EVERY_S,
        tells_short: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say = say
        self._bars = bars_of_command() if say is None else None
        self._bar: TaskID | None = None
        self._wait_s = every_s
        if self._bars is not None:
            self._wait_s = 0.0 if tells_short else _SHORT_S
        self._tells_last = tells_short
        self._clock = clock
        self._began = self._shown_at = clock()

    def show(self, text: Callable[[float], str], done: int, total: int | None, *, is_last: bool = False) -> None:
        """`done` of `total`, which may not be known; `text` says so after so many seconds."""
        now = self._clock()
        is_due = now - self._shown_at >= self._wait_s
        if not is_due and not (is_last and self._tells_last):
            return
        self._shown_at, self._tells_last = now, not is_last
        line = text(now - self._began)
        if self._bars is None:
            (self._say or say)(line)
            return
        self._wait_s = 0.0
        if self._bar is None:
            self._bar = self._bars.begin()
        self._bars.show(self._bar, line, done, total)
        if is_last:
            self.end()

    def end(self) -> None:
        """No more of it comes: what is printed now stands below its bar. For work that does not come to its total."""
        if self._bars is not None and self._bar is not None:
            self._bars.end(self._bar)


class Progress(ShownWork):
    """Shows the `unit`s done out of `total`."""

    def __init__(
        self,
        total: int,
        unit: str,
        say: Callable[[str], None] | None = None,
        *,
        every_s: float = EVERY_S,
        tells_short: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(say, every_s=every_s, tells_short=tells_short, clock=clock)
        self._total = total
        self._unit = unit

    def __call__(self, done: int, note: str = "") -> None:
        """`done` of them are; `note` is added."""
        total = self._total

        def text(seconds: float) -> str:
            return f"{done} of {total} {self._unit}{_pace(done, total, seconds)}{note}"

        self.show(text, done, total, is_last=done >= total)


class CountedProgress(Progress):
    """Progress of work that says with each call of how many. Its time counts from the call that says that none is done,
    or else from before any was."""

    def of(self, done: int, total: int) -> None:
        """`done` of `total` are."""
        self._total = total
        if done:
            self(done)
        else:
            self._began = self._clock()


@contextlib.contextmanager
def watched(measure: Callable[[], int], progress: Progress, *, every_s: float = EVERY_S) -> Iterator[None]:
    """Shows the progress of work in the body that does not show its own: `measure` returns how much is done; its
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
        progress.end()


def say(line: str) -> None:
    """Print a line about the work, on standard error."""
    click.echo(line, err=True)


@contextlib.contextmanager
def reading_progress(say: Callable[[str], None] | None = None) -> Iterator[None]:
    """In the body, show progress while a store's runs are read for the first time, or again after another version
    stored them, if that takes long."""
    from arttrace.store.file.reading import reading_reported  # here: some commands with progress have no store

    with reading_reported(lambda total: Progress(total, "runs read", say, tells_short=False)):
        yield


def with_reading_progress(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command that shows that progress."""

    @functools.wraps(command)
    def wrapper(*given: Any, **named: Any) -> Any:
        with reading_progress():
            return command(*given, **named)

    return wrapper


def _pace(done: int, total: int, seconds: float) -> str:
    if not done or seconds <= 0:
        return ""
    rate = done / seconds
    pace = f"{rate:.1f} per second" if rate >= 1 else f"{1 / rate:.1f} s each"
    return f", {pace}" if done >= total else f", {pace}, {duration_text((total - done) / rate)} left"
