"""The progress of `gather`: one bar with running means on stderr, and the bound on how many rollouts may raise."""

from __future__ import annotations

import statistics
from typing import Any, Self

from tqdm.auto import tqdm

from arttrace.loop.trajectory import Trajectory
from arttrace.records.values.users_text import error_line
from arttrace.system.errors import ArttraceError


class GatherProgress:
    """Counts rollouts as they end, and shows a bar if it has a `description`. `total` is None where it is not known."""

    def __init__(self, total: int | None, description: str | None, max_exceptions: int | float | None) -> None:
        self._total = total
        self._bound = max_exceptions
        self._exceptions = 0
        self._numbers: dict[str, list[float]] = {}
        self._bar = None if description is None else tqdm(total=total, desc=description, unit="run")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def ended(self, result: Any) -> None:
        """Count a rollout that returned. A reward or metric that is not a finite number raises here."""
        if isinstance(result, Trajectory):
            for name, number in result.finite_numbers().items():
                self._numbers.setdefault(name, []).append(number)
        self._show()

    def raised(self, error: Exception) -> None:
        """Count a rollout that raised. Raises ArttraceError when there are more than allowed."""
        self._exceptions += 1
        self._show()
        require_bound(error, self._exceptions, self._total or 0, "max_exceptions", self._bound)

    def _show(self) -> None:
        if self._bar is None:
            return
        means = {name: f"{statistics.fmean(numbers):.3g}" for name, numbers in self._numbers.items()}
        failed = {"exceptions": str(self._exceptions)} if self._exceptions else {}
        self._bar.set_postfix({**means, **failed}, refresh=False)
        self._bar.update()


def require_bound(last: Exception, raised: int, rollouts: int, name: str, bound: int | float | None) -> None:
    """Raise ArttraceError when more of the rollouts raised than the bound allows, a share of them below 1."""
    if bound is None or raised <= (bound * rollouts if 0 < bound < 1 else bound):
        return
    raise ArttraceError(
        f"{raised} of {rollouts} rollouts raised, more than {name}={bound}; the last: {error_line(last)}",
        "Run the rollout once by itself and fix it, or allow more.",
    ) from last
