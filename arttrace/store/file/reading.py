"""How far the first reading of runs is. Summaries are made once and kept; of many runs that takes minutes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

Tell = Callable[[int], object]
"""Called with how many of the runs are read."""

_telling: ContextVar[Callable[[int], Tell] | None] = ContextVar("arttrace_telling", default=None)


@contextlib.contextmanager
def told(telling: Callable[[int], Tell]) -> Iterator[None]:
    """What is read in the body is told: `telling` is called with the number of runs that were not read before."""
    token = _telling.set(telling)
    try:
        yield
    finally:
        _telling.reset(token)


class InParts:
    """Tells of `total` runs as of one thing, which are read in several parts."""

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

        with told(lambda total: tell):
            yield
        self._before += done


def of_runs(total: int) -> Tell:
    """What to call while so many runs are read."""
    telling = _telling.get()
    return (lambda done: None) if telling is None or not total else telling(total)
