"""Which runs make a pair, and which are good ones."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from arttrace.records.group import Group
from arttrace.records.reward import JUDGE, Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.selection import good_runs, preferences


def group(*rewards: float) -> Group:
    runs = (Trajectory(f"t{n}", "r", rewards=(Reward("x", f"t{n}", reward),)) for n, reward in enumerate(rewards))
    return Group("pears", tuple(runs))


def test_pairs_have_rewards_that_differ_and_are_as_far_apart_as_they_are_written() -> None:
    tenths = preferences([group(0.9, 0.8), group(0.3, 0.2), group(0.8, 0.7)])
    assert [(better.id, worse.id) for better, worse in tenths.pairs] == [("t0", "t1")] * 3
    assert preferences([group(0.5, 0.5)], min_gap=0.0).pairs == ()


@pytest.mark.parametrize(
    ("tag", "why"),
    [("held-out", "held out from training"), ("not-trainable", "of an agent that is not to be trained")],
)
def test_runs_by_which_nothing_is_trained_are_neither_good_ones_nor_in_pairs(tag: str, why: str) -> None:
    found = group(0.9, 0.1, 0.5)
    best, *others = found.trajectories
    found = replace(found, trajectories=(replace(best, tags=("exam", tag)), *others))
    assert [run.id for run in good_runs([found]).runs] == ["t2"]
    assert [run.id for run in good_runs([found], min_reward=0.0).runs] == ["t1", "t2"]
    assert [(better.id, worse.id) for better, worse in preferences([found]).pairs] == [("t2", "t1")]
    for left_out in (good_runs([found], min_reward=0.0).left_out, preferences([found]).left_out):
        assert left_out == {why: 1}


def test_runs_that_a_judge_scored_one_at_a_time_do_not_keep_those_by_code_from_being_compared() -> None:
    by_code = group(1.0, 0.0)
    apart = [
        Trajectory(f"j{at}", "r", rewards=(Reward(f"s{at}", f"j{at}", 0.5, source=JUDGE, judgement_id=f"of {at}"),))
        for at in range(2)
    ]
    mixed = replace(by_code, trajectories=(*by_code.trajectories, *apart))
    [(better, worse)] = preferences([mixed]).pairs
    assert (better.id, worse.id) == tuple(one.id for one in by_code.trajectories)
    assert preferences([mixed]).left_out[NotTrained.REWARDED_OTHERWISE] == 2
