"""One backend ordered from several tasks, event loops and threads, and two backends in one process."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from backend_commands import rewarded

import arttrace
from arttrace.loop import (
    AsyncClient,
    LocalBackend,
    ServerBackend,
    TrainableModel,
    TrainedStep,
    Trajectory,
    TrajectoryGroup,
    gather_trajectories,
)
from arttrace.loop.remote.connection import ServerConnection
from arttrace.loop.remote.submission import submit
from arttrace.rewards import trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.paths import DataDir


async def train_at_once(backend: LocalBackend, model: TrainableModel, number: int) -> set[int]:
    """The processes that made this number of steps."""
    made = await asyncio.gather(*(backend.train(model) for _ in range(number)))
    return {int(step.metrics["pid"]) for [step] in made}


def test_orders_at_once_are_carried_out_in_each_event_loop(backend: LocalBackend, model: TrainableModel) -> None:
    """As in a script of several `asyncio.run`."""

    async def begin() -> None:
        await backend.register(model)
        await gather_trajectories([rewarded(), rewarded()])

    asyncio.run(begin())
    pids = [asyncio.run(train_at_once(backend, model, 3)) for _ in range(3)]
    assert [len(made) for made in pids] == [1, 1, 1]
    asyncio.run(backend.close())


def test_an_order_of_another_thread_waits_for_the_running_step(backend: LocalBackend, model: TrainableModel) -> None:
    made: list[Any] = []

    def train_elsewhere() -> None:
        made.append(asyncio.run(backend.train(model)))

    async def loop() -> None:
        async with backend:
            await backend.register(model)
            await gather_trajectories([rewarded(), rewarded()])
            slow = asyncio.create_task(backend.train(model, loss="slow"))
            while not (backend.data.root / "began").exists():
                await asyncio.sleep(0.01)
            other = threading.Thread(target=train_elsewhere)
            other.start()
            await asyncio.sleep(0.3)
            assert not made
            (backend.data.root / "go-on").touch()
            assert await slow == [], "the running step was not broken off"
            await asyncio.to_thread(other.join)
            [[step]] = made
            assert step.version == "policy@1"

    asyncio.run(loop())


def test_two_models_are_trained_in_one_process(backend: LocalBackend, model: TrainableModel, tmp_path: Path) -> None:
    """Each has a backend and a directory of its own; runs go to the directory that was named last."""
    opponent = TrainableModel("opponent", tmp_path / "base")

    async def loop() -> None:
        async with backend:
            await backend.register(model)
            first = [await gather_trajectories([rewarded(), rewarded()])]
            [step] = await backend.train(model, first)
            assert (step.version, step.metrics["runs"]) == ("policy@1", 2)
            async with LocalBackend(tmp_path / "other") as other:
                other._program = backend._program
                await other.register(opponent)
                second = [await gather_trajectories([rewarded(), rewarded(), rewarded()])]
                [step] = await other.train(opponent, second)
                assert (step.version, step.metrics["runs"]) == ("opponent@1", 3)
        arttrace.flush()
        for data, number in ((backend.data, 2), (other.data, 3)):
            with Store.open(data) as store:
                assert len(store.trajectories()) == number

    asyncio.run(loop())


@arttrace.trajectory
async def built(reward: float | None) -> Trajectory:
    return Trajectory(reward=reward)


@pytest.mark.parametrize("second_is_made", ["before the runs", "between two runs", "after the runs"])
async def test_a_backend_trains_on_groups_gathered_beside_a_second_one(
    second_is_made: str, backend: LocalBackend, model: TrainableModel, tmp_path: Path
) -> None:
    @arttrace.trajectory
    async def makes_the_second(rank: int) -> Trajectory:
        if rank == 1 and second_is_made == "between two runs":
            LocalBackend(tmp_path / "other")
        await asyncio.sleep(0)
        return Trajectory(reward=float(rank))

    async with backend:
        await backend.register(model)
        if second_is_made == "before the runs":
            LocalBackend(tmp_path / "other")
        group = await gather_trajectories([makes_the_second(0), makes_the_second(1), makes_the_second(2)])
        assert (len(group.captured), group.uncaptured) == (3, 0)
        if second_is_made == "after the runs":
            LocalBackend(tmp_path / "other")
        for run in group.built:
            run.reward = (run.reward or 0.0) + 0.5
        group.record_rewards()
        [step] = await backend.train(model, [group])
    assert step.metrics["runs"] == 3
    assert sorted(trajectory_reward(run) or 0.0 for run in group.captured) == [0.5, 1.5, 2.5]
    with Store.open(backend.data) as store:
        rewards = {run.id: trajectory_reward(run) for run in store.trajectories()}
    assert sorted(reward or 0.0 for reward in rewards.values()) == [0.5, 1.5, 2.5]


async def test_rewards_that_are_set_after_the_gather_are_trained_on(
    backend: LocalBackend, model: TrainableModel
) -> None:
    async with backend:
        await backend.register(model)
        group = await gather_trajectories([built(None), built(0.0)])
        for rank, run in enumerate(group.built):
            run.reward = float(rank + 1)
        [step] = await backend.train(model, [group])
    assert step.metrics["runs"] == 2
    with Store.open(backend.data) as store:
        assert sorted(trajectory_reward(run) or 0.0 for run in store.trajectories()) == [1.0, 2.0]


async def test_a_reward_that_is_taken_back_is_so_where_the_run_was_copied_to(
    backend: LocalBackend, model: TrainableModel, tmp_path: Path
) -> None:
    """The copy had what the run had when it was first trained on, and was trained on with that."""
    async with backend:
        await backend.register(model)
        LocalBackend(tmp_path / "other")
        group = await gather_trajectories([built(0.0), built(1.0), built(0.5)])
        await backend.train(model, [group])
        group.built[1].reward = None
        await backend.train(model, [group])
        with Store.open(backend.data) as store:
            assert sorted(trajectory_reward(run) or 0.0 for run in store.trajectories()) == [0.0, 0.0, 0.5]
        group.built[1].reward = 0.25
        await backend.train(model, [group])
    with Store.open(backend.data) as store:
        assert sorted(trajectory_reward(run) or 0.0 for run in store.trajectories()) == [0.0, 0.25, 0.5]


async def test_runs_that_are_grouped_anew_are_found_where_they_were_recorded(
    backend: LocalBackend, model: TrainableModel, tmp_path: Path
) -> None:
    async with backend:
        await backend.register(model)
        group = await gather_trajectories([built(0.0), built(1.0), built(1.0)])
        LocalBackend(tmp_path / "other")
        [step] = await backend.train(model, [TrajectoryGroup(group.built[:2])])
    assert (step.metrics["runs"], step.left_out) == (3, {})


async def test_a_judge_scores_groups_gathered_beside_a_second_backend(
    backend: LocalBackend, model: TrainableModel, judge_server: Any, tmp_path: Path
) -> None:
    async with backend:
        await backend.register(model)
        LocalBackend(tmp_path / "other")
        group = await gather_trajectories([built(None), built(None)])
        [judgement] = await backend.judge([group], "openai/stand-in", {"api_base": judge_server.url})
        [step] = await backend.train(model)
    assert step.metrics["runs"] == 2
    with Store.open(backend.data) as store:
        assert {run.id: trajectory_reward(run) for run in store.trajectories()} == judgement.scores


async def test_runs_are_uploaded_some_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has its whole history then: all of a step's runs are gigabytes."""
    monkeypatch.setattr("arttrace.loop.recorded.directories._RUNS_AT_ONCE", 2, raising=False)
    uploaded: list[set[str]] = []

    class Noting(ServerConnection):
        async def upload(self, lines: Sequence[bytes]) -> None:
            rewards = [json.loads(line) for line in lines]
            uploaded.append({one["trajectory_id"] for one in rewards if one["type"] == "reward"})

        async def train(self, groups: Any, settings: Any) -> list[TrainedStep]:
            return []

    arttrace.init(dir=tmp_path)
    group = await gather_trajectories([built(float(number)) for number in range(5)])
    await submit(Noting("http://127.0.0.1:9"), [group], {})
    arttrace.shutdown()
    assert [len(part) for part in uploaded] == [2, 2, 1]
    assert set.union(*uploaded) == {run.id for run in group.captured}


async def test_a_run_that_outlasts_its_directory_is_flushed(tmp_path: Path) -> None:
    arttrace.init(dir=tmp_path / "first")
    with arttrace.trajectory(name="long") as run:
        arttrace.init(dir=tmp_path / "second")
    arttrace.flush()
    with Store.open(DataDir(tmp_path / "first")) as store:
        assert [(one.id, one.incomplete) for one in store.trajectories()] == [(run.id, "")]
    arttrace.shutdown()


async def test_a_second_backend_for_the_same_model_orders_of_the_same_trainer(
    backend: LocalBackend, model: TrainableModel
) -> None:
    """As in a notebook whose cell is run again: the first one's trainer still has the policy."""
    async with backend:
        await backend.register(model)
        await gather_trajectories([rewarded(), rewarded()])
        [first] = await backend.train(model)
        again = LocalBackend(backend.data.root)
        again._program = backend._program
        await again.register(model)
        [second] = await again.train(model)
        assert second.metrics["pid"] == first.metrics["pid"]
        await again.close()
        [third] = await backend.train(model)
        assert third.metrics["pid"] != first.metrics["pid"], "closing one ended it, and the other is open"


async def test_a_backend_that_is_asked_by_itself_takes_gathered_groups_alone(model: TrainableModel) -> None:
    one = TrajectoryGroup([Trajectory(reward=1.0)])
    for asked in (LocalBackend().train(model, one), LocalBackend().judge(one)):  # type: ignore[arg-type]
        with pytest.raises(ArttraceError, match="one group, not several"):
            await asked
    waiting = [built(0.0), built(1.0)]
    groups = [TrajectoryGroup(waiting)]
    async with AsyncClient("http://127.0.0.1:9/v1") as client:
        for submitted in (
            LocalBackend().train(model, groups),
            ServerBackend("http://127.0.0.1:9").train(model, groups),
            client.submit_trajectories(groups),
        ):
            with pytest.raises(TrainingError, match="2 rollouts were not gathered: they have not run"):
                await submitted
    for rollout in waiting:
        rollout.close()
