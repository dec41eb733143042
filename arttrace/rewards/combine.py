"""The one number that a trajectory is trained on, from all of its rewards."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

from arttrace.records.reward import JUDGE, Reward


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
    own = [reward for reward in trajectory.rewards if reward.agent_id is None]
    code = [reward.value for reward in own if reward.source != JUDGE]
    judged = max(
        (reward for reward in own if reward.source == JUDGE), key=lambda one: (one.time_ns, one.id), default=None
    )
    if code and judged:
        return (1 - judge_weight) * _sum(code) + judge_weight * judged.value
    if code:
        return _sum(code)
    return judged.value if judged else None


def _sum(values: Sequence[float]) -> float:
    """The exact sum; of numbers that no float holds together, the infinity that they go to."""
    try:
        return math.fsum(values)
    except OverflowError:
        return math.copysign(math.inf, sum(value / len(values) for value in values))
