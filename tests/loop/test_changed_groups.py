"""What a program changes of a gathered group, rewards and members, is what a step is made of; what would change nothing
is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import arttrace
from arttrace.loop import Trajectory, TrajectoryGroup, gather_trajectories
from arttrace.loop.evaluation.left_out import whole_runs
from arttrace.loop.recorded.directories import captured_runs
from arttrace.rewards import trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> Iterator[DataDir]:
    arttrace.init(dir=tmp_path)
    yield DataDir(tmp_path)
    arttrace.shutdown()


@arttrace.trajectory
async def rollout(reward: float) -> Trajectory:
    return Trajectory(reward=reward)


@arttrace.trajectory
async def decorated(reward: float) -> float:
    arttrace.reward(reward)
    return reward


def stored(data: DataDir) -> list[float | None]:
    """The rewards of the runs in the store, in order of their start."""
    with Store.open(data) as store:
        return [trajectory_reward(run) for run in sorted(store.trajectories(), key=lambda run: run.start_ns)]


def ordered(group: TrajectoryGroup) -> list[str]:
    """The ids of the runs of which a step is made, as a backend orders it."""
    return [run.id for run in whole_runs(group, captured_runs(group.ready_made)).trajectories]


@pytest.mark.parametrize("anew", [lambda group: group, TrajectoryGroup], ids=["the group", "its trajectories anew"])
async def test_a_reward_that_becomes_none_is_taken_back(
    anew: Callable[[TrajectoryGroup], TrajectoryGroup], data: DataDir
) -> None:
    gathered = await gather_trajectories([rollout(0.25), rollout(0.5), rollout(0.75)])
    group = anew(gathered)
    group.trajectories[1].reward = None
    group.record_rewards()
    assert stored(data) == [0.25, None, 0.75]
    group.trajectories[1].reward = 0.5
    group.record_rewards()
    assert stored(data) == [0.25, 0.5, 0.75]


async def test_a_run_that_had_no_reward_is_not_written_again(data: DataDir) -> None:
    group = await gather_trajectories([rollout(0.25), rollout(0.5)])
    with Store.open(data) as store:
        before = store.sql("SELECT count(*), max(given) FROM rewards")[1]
    group.record_rewards()
    TrajectoryGroup(group).record_rewards()
    with Store.open(data) as store:
        assert store.sql("SELECT count(*), max(given) FROM rewards")[1] == before


CHANGES: dict[str, Callable[[Any], Any]] = {
    "append": lambda members: members.append(Trajectory(reward=1.0)),
    "extend": lambda members: members.extend([Trajectory(reward=1.0)]),
    "insert": lambda members: members.insert(0, Trajectory(reward=1.0)),
    "remove": lambda members: members.remove(members[0]),
    "pop": lambda members: members.pop(),
    "clear": lambda members: members.clear(),
    "del": lambda members: members.__delitem__(0),
    "set": lambda members: members.__setitem__(0, Trajectory(reward=1.0)),
    "slice": lambda members: members.__setitem__(slice(None), members[:1]),
    "+=": lambda members: members.__iadd__([Trajectory(reward=1.0)]),
    "*=": lambda members: members.__imul__(2),
    "sort": lambda members: members.sort(key=lambda one: one.reward),
    "reverse": lambda members: members.reverse(),
    "shuffle": random.shuffle,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["trajectories", "built"])
async def test_members_are_not_changed_in_place(name: str, change: Callable[[Any], Any]) -> None:
    group = await gather_trajectories([rollout(0.25), rollout(0.5)])
    with pytest.raises(ArttraceError, match=r"(?s)a group's list .* in place.*group\.trajectories = \["):
        change(getattr(group, name))
    assert [one.reward for one in group] == [0.25, 0.5]


async def test_what_is_read_of_members_is_a_list() -> None:
    group = await gather_trajectories([rollout(0.25), rollout(0.5)])
    further = Trajectory(reward=1.0)
    assert isinstance(group.trajectories, list)
    joined = group.trajectories + [further]  # noqa: RUF005 - what programs write
    assert joined == [*group.trajectories, further]
    assert {type(one) for one in (joined, group.trajectories[:1], group.trajectories.copy())} == {list}
    assert sorted(group.trajectories, key=lambda one: -one.reward)[0].reward == 0.5


async def test_the_members_that_are_assigned_are_those_that_are_trained_on(data: DataDir) -> None:
    group = await gather_trajectories([rollout(0.25), rollout(0.5), rollout(0.75)])
    first, second, third = group.trajectories
    group.trajectories = [one for one in group.trajectories if one.reward != 0.5]
    assert (list(group), len(group), group.size) == ([first, third], 2, 2)
    assert ordered(group) == [first.id, third.id]
    assert set(group.directories) == {first.id, third.id}
    third.reward = 1.0
    group.record_rewards()
    assert stored(data) == [0.25, 0.5, 1.0]
    group.trajectories = (one for one in (first, second))
    assert ordered(group) == [first.id, second.id]
    group.trajectories = []
    assert (list(group), len(group), ordered(group)) == ([], 0, [])


async def test_captured_runs_are_assigned_too() -> None:
    group = await gather_trajectories([decorated(0.25), decorated(0.5), decorated(0.75)])
    group.trajectories = [run for run in group.trajectories if trajectory_reward(run) != 0.5]
    assert [trajectory_reward(run) for run in group] == [0.25, 0.75]
    assert ordered(group) == [run.id for run in group.captured]
    assert len(group) == 2


async def test_what_is_no_member_is_not_assigned() -> None:
    group = await gather_trajectories([rollout(0.25), rollout(0.5)])
    with pytest.raises(ArttraceError, match="a float is no trajectory of a group"):
        group.trajectories = [0.25]
    waiting = TrajectoryGroup([rollout(0.25)])
    with pytest.raises(ArttraceError, match=r"1 rollout.* not gathered"):
        waiting.trajectories = list(group)
    waiting.close()
