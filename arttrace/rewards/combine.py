"""The one number that a trajectory is trained on, from all of its rewards, and which of these can be compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol, TypeVar

from arttrace.records.reward import JUDGE, Reward
from arttrace.records.values.equal_rewards import exact_mean

MOST_REWARD = 1e12
"""The largest reward that is compared, above or below 0: the square of a gradient by it is a number of float32."""


class Rewarded(Protocol):
    """A Trajectory, or the summary of one."""

    @property
    def rewards(self) -> tuple[Reward, ...]: ...


def trajectory_reward(trajectory: Rewarded, *, judge_weight: float = 0.5) -> float | None:
    """The reward of the whole trajectory.

    Args:
        trajectory: A trajectory or its summary.
        judge_weight: The weight of the judge's score, 0 to 1, where there are rewards from code too.

    Returns:
        One number; None if the trajectory has no reward.

    Raises:
        ValueError: `judge_weight` is outside 0..1.

    Rewards that the user's code gave are added up; of the judge's scores the latest counts. Where there are both, the
    reward is (1 - judge_weight) * code + judge_weight * judge; where there is one kind only, that kind counts whole.
    A judge's score therefore never replaces a reward from code. Rewards of one agent (`agent_id`) are that agent's and
    stay out of the trajectory's.
    """
    if not 0 <= judge_weight <= 1:
        raise ValueError(f"judge_weight is {judge_weight}, outside 0..1")
    code, judged = reward_from_code(trajectory), _judged(trajectory)
    if judged is None:
        return code
    return judged.value if code is None else (1 - judge_weight) * code + judge_weight * judged.value


def reward_from_code(trajectory: Rewarded) -> float | None:
    """The sum of the rewards that the user's code gave the whole trajectory; None if it gave none."""
    given = [reward.value for reward in trajectory.rewards if reward.agent_id is None and reward.source != JUDGE]
    return _sum(given) if given else None


AnyRewarded = TypeVar("AnyRewarded", bound=Rewarded)


Compared = list[tuple[AnyRewarded, float]]
"""Runs with their rewards, which say which of them is better."""


def rewards_on_one_scale(runs: Iterable[AnyRewarded]) -> tuple[list[Compared[AnyRewarded]], int]:
    """Of one group, the runs whose rewards can be compared, each part by itself, and how many others have a reward.

    A reward with a judge's score in it is on another scale than one from code alone: the larger part of the group
    counts, without scores that stand alone in their judgement, and of two equal parts the judged one. A judge scores
    runs against each other: what it said of some at one time is another scale than what was said of others at another
    time, or by another judge or rubric.
    """
    on_scale: dict[str, Compared[AnyRewarded]] = {}
    for run in runs:
        reward = trajectory_reward(run)
        if reward is not None:
            on_scale.setdefault(scale_of(run), []).append((run, reward))
    counts = scales_that_count({scale: len(part) for scale, part in on_scale.items()})
    left = sum(len(part) for scale, part in on_scale.items() if scale not in counts)
    return [part for scale, part in on_scale.items() if scale in counts], left


BY_CODE: Final = ""
"""The scale of rewards from code alone."""


def scale_of(run: Rewarded) -> str:
    """What the reward of a run can be compared on: the name and the judgement of the judge's score in it."""
    score = _judged(run)
    return BY_CODE if score is None else f"{score.name} {score.judgement_id or ''}"


def scales_that_count(counts: Mapping[str, int]) -> set[str]:
    """Of a group with so many rewards on each scale, those on which some are compared; of those on which one run stands
    alone the last, a judged one before code's, where there is no other."""
    several = {scale: count for scale, count in counts.items() if count > 1}
    judged = {scale: count for scale, count in several.items() if scale != BY_CODE}
    if sum(judged.values()) < several.get(BY_CODE, 0):
        return {BY_CODE}
    last = [scale for scale in counts if scale != BY_CODE][-1:]
    return set(judged or last or counts)


def is_too_large(trajectory: Rewarded) -> bool:
    """Whether one of its rewards, an agent's own too, is beyond what can be compared."""
    return any(not abs(reward.value) <= MOST_REWARD for reward in trajectory.rewards)


def is_judged(trajectory: Rewarded) -> bool:
    """Whether a judge's score is in its reward."""
    return _judged(trajectory) is not None


def _judged(trajectory: Rewarded) -> Reward | None:
    """The latest of a judge's scores of the whole trajectory."""
    scores = (reward for reward in trajectory.rewards if reward.agent_id is None and reward.source == JUDGE)
    return max(scores, key=lambda one: (one.time_ns, one.id), default=None)


def _sum(values: Sequence[float]) -> float:
    """The exact sum; of numbers that no float holds together, the infinity that they go to."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.copysign(math.inf, exact_mean(values))
