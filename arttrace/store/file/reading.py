"""The progress of reading runs for the first time, or again after another version stored them. Summaries are made once
and stored; for many runs that takes minutes."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Tell = Callable[[int], object]
"""Called with the number of runs read so far."""

_telling: ContextVar[Callable[[int], Tell] | None] = ContextVar("arttrace_telling", default=None)


@contextlib.contextmanager
def reading_reported(telling: Callable[[int], Tell]) -> Iterator[None]:
    """Report what is read in the body: `telling` is called with the number of runs that have not been read before."""
    token = _telling.set(telling)
    try:
        yield
    finally:
        _telling.reset(token)


@contextlib.contextmanager
def also_reported(telling: Callable[[int], Tell]) -> Iterator[None]:
    """The same for one more: whoever is notified already still is."""
    tells = [one for one in (_telling.get(), telling) if one is not None]

    def telling_all(total: int) -> Tell:
        each = [one(total) for one in tells]

        def tell(done: int) -> None:
            for one in each:
                one(done)

        return tell

    with reading_reported(telling_all):
        yield


class Elsewhere:
    """Reports what another process reads, which this one waits for. `is_over` when that came no further for
    `patience_s`."""

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._deadline = clock() + patience_s
        self._tell: Tell | None = None
        self._total = 0
        self.seen: tuple[int, int] | None = None

    @property
    def is_over(self) -> bool:
        """Whether it is to be waited for no longer."""
        return self._clock() > self._deadline

    def at(self, read: tuple[int, int] | None) -> None:
        """It has read so many of so many runs; None if it does not say."""
        if read is None or read == self.seen:
            return
        self.seen, self._deadline = read, self._clock() + self._patience_s
        done, total = read
        if self._tell is None or total != self._total:
            self._tell, self._total = of_runs(total), total
        self._tell(done)

    def end(self) -> None:
        """It has read all."""
        if self._tell is not None:
            self._tell(self._total)


class InParts:
    """Reports `total` runs, which are read in several parts, as one total."""

    def __init__(self, total: int) -> None:
        self._tell = of_runs(total)
        self._before = 0

    @contextlib.contextmanager
    def next(self) -> Iterator[None]:
        """What is read in the body is the next part."""
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done = count
            self._tell(self._before + count)

        with reading_reported(lambda total: tell):
            yield
        self._before += done


def of_runs(total: int) -> Tell:
    """What to call while this many runs are read."""
    telling = _telling.get()
    return (lambda done: None) if telling is None or not total else telling(total)
