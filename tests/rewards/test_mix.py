from __future__ import annotations

from collections.abc import Callable

import pytest

from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.combine import trajectory_reward
from arttrace.rewards.selection import preferences


def reward(id: str, value: float, source: str = "code", **given: object) -> Reward:
    return Reward(id, "run", value, source=source, **given)


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((), None),
        ((reward("a", 0.25),), 0.25),
        ((reward("a", 0.25), reward("b", 0.5, name="style")), 0.75),
        ((reward("j", 0.9, "judge"),), 0.9),
        ((reward("a", 0.0), reward("j", 0.9, "judge")), 0.45),
        ((reward("j", 0.2, "judge", time_ns=2), reward("i", 0.9, "judge", time_ns=1)), 0.2),
        ((reward("a", 0.1), reward("b", 0.2), reward("c", 0.3)), 0.6),
        ((reward("a", 1.0), reward("b", 5.0, agent_id="sub")), 1.0),
        ((reward("b", 5.0, agent_id="sub"),), None),
    ],
)
def test_what_a_run_is_worth(
    make_run: Callable[..., Trajectory], rewards: tuple[Reward, ...], expected: float | None
) -> None:
    assert trajectory_reward(make_run("run", rewards=rewards)) == expected
    assert trajectory_reward(make_run("run", rewards=rewards[::-1])) == expected


def test_the_weight_of_the_judge(make_run: Callable[..., Trajectory]) -> None:
    run = make_run("run", rewards=(reward("a", 1.0), reward("j", 0.0, "judge")))
    assert trajectory_reward(run, judge_weight=0.25) == 0.75
    with pytest.raises(ValueError, match="outside"):
        trajectory_reward(run, judge_weight=1.5)


def test_rewards_that_no_number_holds_together_are_infinite(make_run: Callable[..., Trajectory]) -> None:
    assert trajectory_reward(make_run("run", rewards=(reward("a", 1e308), reward("b", 1e308)))) == float("inf")
    assert trajectory_reward(make_run("run", rewards=(reward("a", -1e308), reward("b", -1e308)))) == float("-inf")


@pytest.mark.parametrize("min_gap", [0.0, -1.0])
def test_of_two_runs_of_equal_reward_none_is_preferred(make_run: Callable[..., Trajectory], min_gap: float) -> None:
    values = (1.0, 0.5, 0.5, 0.0)
    runs = tuple(make_run(str(at), rewards=(reward("a", value),)) for at, value in enumerate(values))
    found = preferences([Group("g", runs)], min_gap=min_gap)
    assert [(better.id, worse.id) for better, worse in found.pairs] == [("0", "3")]
    assert found.left_out == {"too close to the others' rewards": 2}
