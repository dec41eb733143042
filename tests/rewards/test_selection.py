"""Which runs make a pair."""

from __future__ import annotations

from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.selection import preferences


def group(*rewards: float) -> Group:
    runs = (Trajectory(f"t{n}", "r", rewards=(Reward("x", f"t{n}", reward),)) for n, reward in enumerate(rewards))
    return Group("pears", tuple(runs))


def test_pairs_have_rewards_that_differ_and_are_as_far_apart_as_they_are_written() -> None:
    tenths = preferences([group(0.9, 0.8), group(0.3, 0.2), group(0.8, 0.7)])
    assert [(better.id, worse.id) for better, worse in tenths.pairs] == [("t0", "t1")] * 3
    assert preferences([group(0.5, 0.5)], min_gap=0.0).pairs == ()
