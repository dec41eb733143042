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
        self._waiting: dict[str, Unscored] = {}
        self._rest_s = 0.0
        self.judge_down = ""
        """Why the judge answers about no group, as long as it does not."""

    def take(self, errors: Mapping[str, JudgeError], scored: Collection[str], others_scored: bool) -> None:
        """Take the outcome of asking about a plan's groups: who failed, by key, the keys that were scored, and whether
        any that did not fail had its scores before."""
        for key in scored:
            self._failed.pop(key, None)
            self._waiting.pop(key, None)
        if self.judge_down and (scored or not errors):
            self.judge_down = ""
            self._trouble(None)
        waits = self._count(errors, len(scored), others_scored)
        if alike := [error for key, error in errors.items() if key not in waits]:
            self._rest(alike[0])

    def waiting(self, now_ns: int) -> tuple[Unscored, ...]:
        """Those whose time has not come, as far as the clock was not set back since."""
        return tuple(
            one for one in self._waiting.values() if now_ns < one.until_ns <= now_ns + pause_ns(FIRST_S, one.times)
        )

    def in_turn(self, ready: Iterable[PlannedGroup]) -> list[PlannedGroup]:
        """The groups in their order, but those that failed come last, the latest at the end."""
        return sorted(ready, key=lambda group: self._failed.get(group.key, (0, 0))[0])

    def _count(self, errors: Mapping[str, JudgeError], scored: int, others_scored: bool) -> set[str]:
        """The keys of those that wait by themselves now."""
        now, waits = time.time_ns(), set()
        for key, error in errors.items():
            _, before = self._failed.pop(key, (0, self._answers))
            self._failures += 1
            self._failed[key] = (self._failures, self._answers + scored)
            answered = self._answers + scored > before
            if answered or others_scored:
                known = self._waiting.pop(key, None)
                times = max((known.times if known else 0) + answered, 1)
                pause = pause_ns(FIRST_S, times)
                self._waiting[key] = Unscored(key, times, now + pause, error.message)
                self._say(f"not scored for {duration_text(pause / 1e9)}: {key}: {error.message}")
                waits.add(key)
        self._answers += scored
        for known_keys in (self._failed, self._waiting):
            for key in list(known_keys)[:-MOST]:
                del known_keys[key]
        return waits

    def _rest(self, error: JudgeError) -> None:
        if not self.judge_down:
            self._rest_s = retry.FIRST_PAUSE_S
        if error.message != self.judge_down:
            self.judge_down = error.message
            self._trouble(error)
        self._stop.wait(self._rest_s)
        self._rest_s = min(2 * self._rest_s, retry.LONGEST_PAUSE_S)
