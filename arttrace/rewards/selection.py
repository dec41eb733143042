"""Which runs a judge may compare, which are worth imitating, and which pairs of runs show a preference. Pure; what is
left out is counted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from arttrace.records import semconv
from arttrace.records.group import Group
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.equal_rewards import are_equal
from arttrace.rewards.combine import Compared, rewards_on_one_scale, trajectory_reward


class JudgedRun(Protocol):
    """What is asked of a run: a Trajectory or a TrajectorySummary."""

    @property
    def incomplete(self) -> str: ...
    @property
    def unread(self) -> Mapping[str, int]: ...


def not_judged(run: JudgedRun) -> NotTrained | None:
    """Why a judge is not shown a run, None where it is: what it cannot see of a run, it cannot compare."""
    return NotTrained.INCOMPLETE if run.incomplete else NotTrained.UNREADABLE if run.unread else None


class TaggedRun(Protocol):
    """What is asked of a run: a Trajectory or a TrajectorySummary."""

    @property
    def incomplete(self) -> str: ...
    @property
    def tags(self) -> tuple[str, ...]: ...


def is_held_out(run: TaggedRun) -> bool:
    """Whether a run only measures a policy."""
    return semconv.HELD_OUT_TAG in run.tags


def never_trained_on(run: TaggedRun) -> NotTrained | None:
    """Why a run is never trained on whatever its reward, None where it may be."""
    if run.incomplete:
        return NotTrained.INCOMPLETE
    return next((why for tag, why in _NEVER.items() if tag in run.tags), None)


_NEVER = {semconv.HELD_OUT_TAG: NotTrained.HELD_OUT, semconv.NOT_TRAINABLE_TAG: NotTrained.NOT_TRAINABLE}


def trainable(runs: Iterable[Trajectory]) -> tuple[list[Trajectory], Counter[NotTrained]]:
    """The runs that may be trained on, and how many are left out by reason."""
    found: list[Trajectory] = []
    left_out: Counter[NotTrained] = Counter()
    for run in runs:
        if reason := never_trained_on(run):
            left_out[reason] += 1
        else:
            found.append(run)
    return found, left_out


def judgeable(group: Group) -> tuple[Group, Counter[NotTrained]]:
    """The group with the runs that a judge is shown, and how many are left out by reason."""
    reasons = [not_judged(run) for run in group.trajectories]
    shown = (run for run, reason in zip(group.trajectories, reasons, strict=True) if reason is None)
    return msgspec.structs.replace(group, trajectories=tuple(shown)), Counter(filter(None, reasons))


@dataclass(frozen=True, slots=True)
class GoodRuns:
    """Runs to learn by supervised fine-tuning; `left_out` counts the others by reason."""

    runs: tuple[Trajectory, ...]
    left_out: dict[NotTrained, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Preferences:
    """Pairs (better, worse) of one group each; `left_out` counts runs that are in no pair by reason."""

    pairs: tuple[tuple[Trajectory, Trajectory], ...]
    left_out: dict[NotTrained, int] = field(default_factory=dict)


def good_runs(
    groups: Sequence[Group], *, min_reward: float | None = None, used: Collection[str] = frozenset()
) -> GoodRuns:
    """All runs rewarded with at least `min_reward`; without it the best of each group, or of what one judgement scored
    of it, whose rewards differ (rejection sampling). The runs `used`, by id, were learned before: they are not taken
    again, and the second best is not the best because of that."""
    runs: list[Trajectory] = []
    left_out: Counter[NotTrained] = Counter()
    for rewarded in _parts(groups, left_out, compares=min_reward is None):
        values = [reward for _, reward in rewarded]
        new = [(run, reward) for run, reward in rewarded if run.id not in used]
        if min_reward is None and are_equal(values):
            left_out[NotTrained.ALONE if len(values) == 1 else NotTrained.EQUAL_REWARDS] += len(new)
            continue
        bound = max(values) if min_reward is None else min_reward
        good = [run for run, reward in new if reward >= bound]
        runs += good
        left_out[NotTrained.NOT_THE_BEST if min_reward is None else NotTrained.BELOW_MIN_REWARD] += len(new) - len(good)
    return GoodRuns(tuple(runs), dict(+left_out))


def preferences(groups: Sequence[Group], *, min_gap: float = 0.1) -> Preferences:
    """The best run of each group with the worst, the second best with the second worst, and so on, for as long as
    their rewards differ, and are at least `min_gap` apart; no run is in two pairs."""
    pairs: list[tuple[Trajectory, Trajectory]] = []
    left_out: Counter[NotTrained] = Counter()
    for part in _parts(groups, left_out):
        ranked = sorted(part, key=lambda one: (-one[1], one[0].start_ns, one[0].id))
        if len(ranked) == 1:
            left_out[NotTrained.ALONE] += 1
            continue
        found = 0
        while found < len(ranked) // 2 and _are_apart(ranked[found][1], ranked[-1 - found][1], min_gap):
            pairs.append((ranked[found][0], ranked[-1 - found][0]))
            found += 1
        left_out[NotTrained.REWARDS_TOO_CLOSE] += len(ranked) - 2 * found
    return Preferences(tuple(pairs), dict(+left_out))


def _are_apart(better: float, worse: float, min_gap: float) -> bool:
    """0.9 and 0.8 are 0.1 apart, though the difference of these floats is a little less."""
    return better > worse and (better - worse >= min_gap or math.isclose(better - worse, min_gap))


def equal_groups(groups: Sequence[Group]) -> int:
    """How many groups of several rewarded runs have equal rewards."""
    rewards = [[reward for _, reward in part] for part in _parts(groups, Counter())]
    return sum(1 for values in rewards if len(values) > 1 and are_equal(values))


def _parts(
    groups: Sequence[Group], left_out: Counter[NotTrained], *, compares: bool = True
) -> Iterator[Compared[Trajectory]]:
    """The rewarded runs of each group: in parts that can be compared, or together."""
    for group in groups:
        rewarded = _with_rewards(group, left_out)
        if compares:
            parts, others = rewards_on_one_scale(run for run, _ in rewarded)
            left_out[NotTrained.REWARDED_OTHERWISE] += others
            yield from parts
        elif rewarded:
            yield rewarded


def _with_rewards(group: Group, left_out: Counter[NotTrained]) -> Compared[Trajectory]:
    found, reasons = trainable(group.trajectories)
    rewarded = [(run, reward) for run in found if (reward := trajectory_reward(run)) is not None]
    left_out.update(reasons)
    left_out[NotTrained.NO_REWARD] += len(found) - len(rewarded)
    return rewarded
