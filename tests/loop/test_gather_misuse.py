"""What cannot be meant is refused where it is written, with the remedy; a gather within a run has runs of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arttrace
from arttrace.loop import Trajectory, TrajectoryGroup, gather_trajectories, gather_trajectory_groups
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
async def rollout(reward: float = 0.0) -> Trajectory:
    return Trajectory(reward=reward)


@pytest.mark.parametrize("number", [0, -1])
async def test_no_rollout_at_a_time_is_refused(number: int) -> None:
    waiting = rollout()
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match=f"max_concurrency is {number}, below 1"):
            await gather_trajectory_groups([TrajectoryGroup([waiting])], max_concurrency=number)
    waiting.close()


@pytest.mark.parametrize("member", [rollout, 3, None, "a run"])
async def test_what_cannot_be_awaited_is_no_member(member: Any) -> None:
    with pytest.raises(ArttraceError, match=f"{type(member).__name__} is no member of a group") as told:
        TrajectoryGroup([member])
    assert "rollout(model, s) for _ in range(8)" in str(told.value.hint)


async def test_a_task_is_no_member_as_its_run_has_begun() -> None:
    task = asyncio.ensure_future(rollout())
    with pytest.raises(ArttraceError, match="has begun already"):
        TrajectoryGroup([task])
    await task


async def test_a_group_in_place_of_a_list_of_groups_is_said() -> None:
    group = TrajectoryGroup([rollout(), rollout()])
    with pytest.raises(ArttraceError, match="one group, not several"):
        await gather_trajectory_groups(group)
    alone = rollout()
    with pytest.raises(ArttraceError, match="coroutine is no TrajectoryGroup"):
        await gather_trajectory_groups([alone])  # type: ignore[list-item]
    alone.close()
    assert len((await gather_trajectory_groups([group]))[0]) == 2


async def test_a_group_is_gathered_once() -> None:
    group = TrajectoryGroup([rollout(), rollout()])
    await gather_trajectory_groups([group])
    with pytest.raises(ArttraceError, match="is gathered twice"):
        await gather_trajectory_groups([group])
    alone = rollout()
    other = TrajectoryGroup([alone])
    with pytest.raises(ArttraceError, match="is gathered twice") as told:
        await gather_trajectory_groups([other, other])
    alone.close()
    assert "a new TrajectoryGroup" in str(told.value.hint)


async def test_a_trajectory_belongs_to_one_run() -> None:
    shared = Trajectory(reward=1.0)

    @arttrace.trajectory
    async def returns_the_same() -> Trajectory:
        return shared

    group = await gather_trajectories([returns_the_same(), returns_the_same()])
    [raised] = group.exceptions
    assert "returned the trajectory of another run" in str(raised)
    assert sorted(trajectory_reward(run) is None for run in group.captured) == [False, True]


async def test_the_names_of_metrics_are_shown_whatever_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    @arttrace.trajectory
    async def counts() -> Trajectory:
        metrics: Any = {3: 1.0}
        return Trajectory(reward=1.0, metrics=metrics)

    assert len(await gather_trajectories([counts(), counts()], pbar_desc="gather")) == 2
    assert "3=1" in capsys.readouterr().err


async def test_a_gather_within_a_run_has_runs_of_its_own(data: DataDir) -> None:
    inner: list[TrajectoryGroup] = []

    @arttrace.trajectory
    async def tries_twice(number: int) -> Trajectory:
        inner.append(await gather_trajectories([rollout(0.0), rollout(1.0)]))
        return Trajectory(reward=float(number))

    group = await gather_trajectories([tries_twice(1), tries_twice(2)])
    assert [trajectory_reward(run) for run in group.captured] == [1.0, 2.0]
    assert [sorted(trajectory_reward(run) or 0.0 for run in one.captured) for one in inner] == [[0.0, 1.0]] * 2
    with Store.open(data) as store:
        assert [(run.incomplete, len(run.agents)) for run in store.trajectories()] == [("", 1)] * 6
