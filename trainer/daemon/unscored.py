"""Groups that the judge fails for in a way that may pass, as a timeout of a long one: they wait while others go on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping

from arttrace.records.values.units import duration_text
from arttrace.system.errors import ArttraceError, JudgeError
from trainer.daemon.pauses import MOST, pause_ns
from trainer.daemon.state import PlannedGroup, Unscored
from trainer.step import retry

FIRST_S = 60.0
"""Seconds for which a group waits after the first failure of its own; doubled with each further one, up to 7680."""
_RESTS = 4
"""How many times as long as the judge was waited for a group waits at least: a long one may time out for an hour."""


class UnscoredGroups:
    """What is known of them since the daemon started.

    A group waits by itself where others of its plan have their scores, or the judge answered about others meanwhile,
    which counts against it: it waits longer each time. Else the judge may be down for all: the daemon rests, for half a
    minute at most, and asks about another group first.
    `trouble` is called once per cause while the judge is down, and with None when it is over; `say` is told who waits.
    """

    def __init__(
        self, stop: threading.Event, trouble: Callable[[ArttraceError | None], None], say: Callable[[str], None]
    ) -> None:
        self._stop = stop
        self._trouble = trouble
        self._say = say
        self._answers = 0
        self._failures = 0
        self._failed: dict[str, tuple[int, int]] = {}  # by key: the failure's number, and the answers before it
        self._waiting: dict[str, tuple[float, Unscored]] = {}  # until when by the monotonic clock
        self._rest_s = 0.0
        self.judge_down = ""
        """Why the judge answers about no group, as long as it does not."""

    def take(
        self, errors: Mapping[str, JudgeError], scored: Collection[str], others_scored: bool, took_s: float = 0.0
    ) -> None:
        """Take the outcome of asking about a plan's groups: who failed, by key, the keys that were scored, whether
        any that did not fail had its scores before, and how long it took."""
        for key in scored:
            self._failed.pop(key, None)
            self._waiting.pop(key, None)
        if self.judge_down and (scored or not errors):
            self.judge_down = ""
            self._trouble(None)
        waits = self._count(errors, len(scored), others_scored, took_s)
        if alike := [error for key, error in errors.items() if key not in waits]:
            self._rest(alike[0])

    def waiting(self) -> tuple[Unscored, ...]:
        """Those whose time has not come."""
        return tuple(one for until_s, one in self._waiting.values() if time.monotonic() < until_s)

    def in_turn(self, ready: Iterable[PlannedGroup]) -> list[PlannedGroup]:
        """The groups in their order, but those that failed come last, the latest at the end."""
        return sorted(ready, key=lambda group: self._failed.get(group.key, (0, 0))[0])

    def _count(self, errors: Mapping[str, JudgeError], scored: int, others_scored: bool, took_s: float) -> set[str]:
        """The keys of those that wait by themselves now."""
        waits: set[str] = set()
        for key, error in errors.items():
            _, before = self._failed.pop(key, (0, self._answers))
            self._failures += 1
            self._failed[key] = (self._failures, self._answers + scored)
            answered = self._answers + scored > before
            if answered or others_scored:
                known = self._waiting.pop(key, None)
                times = max((known[1].times if known else 0) + answered, 1)
                pause_s = max(pause_ns(FIRST_S, times) / 1e9, _RESTS * took_s)
                until_ns = time.time_ns() + int(pause_s * 1e9)
                self._waiting[key] = time.monotonic() + pause_s, Unscored(key, times, until_ns, error.message)
                self._say(f"not scored for {duration_text(pause_s)}: {key}: {error.message}")
                waits.add(key)
        self._answers += scored
        for key in list(self._failed)[:-MOST]:
            del self._failed[key]
        for key in list(self._waiting)[:-MOST]:
            del self._waiting[key]
        return waits

    def _rest(self, error: JudgeError) -> None:
        if not self.judge_down:
            self._rest_s = retry.FIRST_PAUSE_S
        if error.message != self.judge_down:
            self.judge_down = error.message
            self._trouble(error)
        self._stop.wait(self._rest_s)
        self._rest_s = min(2 * self._rest_s, retry.LONGEST_PAUSE_S)
