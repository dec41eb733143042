"""Reward and Judgement: what a run was worth, by whom, and why."""

from __future__ import annotations

import threading
import time
from typing import Final

import msgspec

from arttrace.records.values.integers import Int64

JUDGE: Final = "judge"
"""The source of a judge's score. Of a run's scores of one name from judges, the latest counts."""
PERSON: Final = "person"
"""The source of what a person says."""


class Reward(msgspec.Struct, frozen=True, tag="reward", omit_defaults=True):
    """One number for a trajectory, or for one agent of it.

    `source` is "code" for a reward from the user's code or "judge" for a judge's score; `id` makes it idempotent:
    the same id twice is one reward, the later `time_ns` wins. `version` is the version of the function that rewarded a
    stored run, and the run's revision. `given_to` is the run's trace, if known, and after a `/` its root's span if that
    is not the trace's root. If `counts` is False this is a note, with an explanation and no number, or a reward that
    was taken back, with neither. With `of_span` its `agent_id` is that of any span: what counts is the agent that did
    it, or the whole run where nothing stands above that span.
    """

    id: str
    trajectory_id: str
    value: float
    name: str = "reward"
    source: str = "code"
    agent_id: str | None = None
    explanation: str = ""
    judgement_id: str | None = None
    time_ns: Int64 = 0
    version: str = ""
    given_to: str = ""
    counts: bool = True
    of_span: bool = False


class _Clock:
    """Times for this process's rewards, each later than the one before, even if the clock is set back."""

    def __init__(self) -> None:
        self._last = 0
        self._lock = threading.Lock()

    def now_ns(self, after: int = 0) -> int:
        """A time for a reward made now, later than `after`, the time of the reward with the same id that it
        corrects."""
        with self._lock:
            self._last = max(time.time_ns(), self._last + 1, after + 1)
            return self._last

    def resume(self, last_ns: int) -> None:
        """Continue after the last time of an earlier process."""
        with self._lock:
            self._last = max(self._last, last_ns)


reward_clock: Final = _Clock()


class Judgement(msgspec.Struct, frozen=True, tag="judgement", omit_defaults=True):
    """One judge call over one group, stored so that the same group is never paid for twice.

    `key` hashes judge, rubric and the judged trajectories (id, revision), whatever their order. `scores` maps
    trajectory id to a score in 0..1. Cost is in US dollars, None when the judge's price is not known.
    """

    id: str
    key: str
    group: str
    judge: str
    rubric_hash: str
    scores: dict[str, float]
    explanations: dict[str, str] = {}
    input_tokens: Int64 = 0
    output_tokens: Int64 = 0
    cost: float | None = None
    time_ns: Int64 = 0
