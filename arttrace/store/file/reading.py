"""The progress of reading runs for the first time, or again after another version stored them. Summaries are made once
and stored; for many runs that takes minutes."""

from __future__ import annotations

import contextlib
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
