"""What cannot be meant is refused where it is written, with the remedy; a gather within a run has runs of its own."""

from __future__ import annotations

import asyncio
import math
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import arttrace
import arttrace.loop as art
from arttrace.loop import LocalBackend, Trajectory, TrajectoryGroup, gather_trajectories, gather_trajectory_groups
from arttrace.rewards import ruler_score_group, trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError, ServingError, TrainingError
from arttrace.system.paths import DataDir


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> Iterator[DataDir]:
    arttrace.init(dir=tmp_path)
    yield DataDir(tmp_path)
    arttrace.shutdown()


@arttrace.trajectory
async def rollout(reward: float = 0.0) -> Trajectory:
    return Trajectory(reward=reward)


def registered() -> art.TrainableModel:
    model = art.TrainableModel("policy", "some-model")
    model.backend = LocalBackend()
    return model


@pytest.mark.parametrize("number", [0, -1])
async def test_no_rollout_at_a_time_is_refused(number: int) -> None:
    waiting = rollout()
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match=f"max_concurrency is {number}, below 1"):
            await gather_trajectory_groups([TrajectoryGroup([waiting])], max_concurrency=number)
    waiting.close()


@pytest.mark.parametrize("member", [rollout, 3, None, "a run"])
async def test_what_cannot_be_awaited_is_no_member(member: Any) -> None:
    with pytest.raises(ArttraceError, match=f"{type(member).__name__} is no member of a group") as shown:
        TrajectoryGroup([member])
    assert "rollout(model, s) for _ in range(8)" in str(shown.value.hint)


async def test_a_rollout_that_cannot_be_awaited_learns_how_to_be_a_member() -> None:
    @arttrace.trajectory
    def plain(reward: float) -> float:
        arttrace.reward(reward)
        return reward

    with pytest.raises(ArttraceError, match="float is no member of a group") as shown:
        TrajectoryGroup(plain(0.5) for _ in range(2))
    assert "asyncio.to_thread(rollout, model, s)" in str(shown.value.hint)
    group = TrajectoryGroup(asyncio.to_thread(plain, reward) for reward in (0.0, 1.0))
    [gathered] = await gather_trajectory_groups([group])
    assert sorted(trajectory_reward(run) or 0.0 for run in gathered.captured) == [0.0, 1.0]


async def test_a_group_is_shown_by_its_size_and_rewards() -> None:
    group = TrajectoryGroup((rollout(0.5), rollout(2 / 3)), key="sum")
    assert repr(group) == "<TrajectoryGroup 'sum': 2 rollouts to gather>"
    await gather_trajectory_groups([group])
    assert repr(group) == "<TrajectoryGroup 'sum': 2 trajectories, rewards 0.5, 0.6667>"
    failed = TrajectoryGroup([Trajectory(), ValueError("x")], key="other")
    assert repr(failed) == "<TrajectoryGroup 'other': 1 trajectory, rewards None, 1 raised>"


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
    with pytest.raises(ArttraceError, match="is gathered twice") as shown:
        await gather_trajectory_groups([other, other])
    alone.close()
    assert "a new TrajectoryGroup" in str(shown.value.hint)


async def test_a_trajectory_belongs_to_one_run() -> None:
    shared = Trajectory(reward=1.0)

    @arttrace.trajectory
    async def returns_the_same() -> Trajectory:
        return shared

    group = await gather_trajectories([returns_the_same(), returns_the_same()])
    [raised] = group.exceptions
    assert "returned the trajectory of another run" in str(raised)
    assert sorted(trajectory_reward(run) is None for run in group.captured) == [False, True]


@pytest.mark.parametrize(
    "said", ["0.5", "good", b"1", math.nan, math.inf, [1.0], 10**400], ids=lambda one: str(one)[:4]
)
@pytest.mark.parametrize("decorated", [True, False])
async def test_rewards_and_metrics_are_finite_numbers(said: Any, decorated: bool) -> None:
    async def rewarded() -> Trajectory:
        return Trajectory(reward=said)

    async def measured() -> Trajectory:
        return Trajectory(reward=0.5, metrics={"seconds": said})

    fine: list[Any] = [rollout(0.0), rollout(1.0)]
    both = [arttrace.trajectory(one)() if decorated else one() for one in (rewarded, measured)]
    group = await gather_trajectories([*both, *fine])
    reward, metric = group.exceptions
    shown = [str(error).splitlines() for error in (reward, metric)]
    assert [one[0].partition(" of ")[0] for one in shown] == ["the reward", "the metric 'seconds'"]
    assert {one[0].partition(" is ")[2] for one in shown} == {f"{reprlib.repr(said)}, not a finite number"}
    assert [("a judge" in one[1], "metadata" in one[1]) for one in shown] == [(True, False), (False, True)]
    rewards = [trajectory_reward(run) for run in group.captured]
    assert sorted(one for one in rewards if one is not None) == [0.0, 1.0]
    assert [run.metadata for run in group.captured if run.metadata] == []


async def test_numbers_of_any_library_are_rewards() -> None:
    numpy = pytest.importorskip("numpy")

    @arttrace.trajectory
    async def rewarded(reward: Any) -> Trajectory:
        return Trajectory(reward=reward, metrics={"right": numpy.bool_(True)})

    group = await gather_trajectories(map(rewarded, (numpy.float32(0.5), True, numpy.array(2))))
    assert [trajectory_reward(run) for run in group.captured] == [0.5, 1.0, 2.0]


async def test_a_reward_that_becomes_text_later_is_refused_too() -> None:
    group = await gather_trajectories([rollout(0.0), rollout(1.0)])
    group.trajectories[0].reward = "0.5"
    with pytest.raises(ArttraceError, match=r"is '0\.5', not a finite number"):
        group.record_rewards()


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


def one_trajectory() -> Trajectory:
    return Trajectory([{"role": "user", "content": "x"}], reward=1.0)


@pytest.mark.parametrize(
    ("groups", "shown", "remedy"),
    [
        (TrajectoryGroup([one_trajectory(), one_trajectory()]), "one group, not several", r"train([group])"),
        ([one_trajectory()], "a Trajectory is no TrajectoryGroup", "of each scenario into a TrajectoryGroup"),
        ([[one_trajectory()]], "a list is no TrajectoryGroup", "of each scenario into a TrajectoryGroup"),
        (None, "a NoneType is no list of groups", "await gather_trajectory_groups"),
    ],
)
async def test_what_is_no_list_of_groups_is_reported_and_not_trained_on(groups: Any, shown: str, remedy: str) -> None:
    model = registered()
    with pytest.raises(ArttraceError, match=shown) as error:
        await model.train(groups)
    assert remedy in str(error.value.hint)


async def test_a_gather_that_was_not_awaited_is_no_list_of_groups() -> None:
    forgotten = gather_trajectory_groups([])
    with pytest.raises(ArttraceError, match="a coroutine is no list of groups"):
        await registered().train(forgotten)  # type: ignore[arg-type]
    forgotten.close()
    waiting = [rollout(), rollout()]
    with pytest.raises(TrainingError, match="2 rollouts were not gathered: they have not run") as shown:
        await registered().train([TrajectoryGroup(waiting)])
    assert "await gather_trajectory_groups" in str(shown.value.hint)
    for one in waiting:
        one.close()


async def test_settings_in_a_dict_are_answered_with_their_form() -> None:
    with pytest.raises(ArttraceError, match="a dict is no TrainConfig") as shown:
        await registered().train([TrajectoryGroup([one_trajectory()] * 2)], config={"learning_rate": 1e-5})  # type: ignore[arg-type]
    assert "TrainConfig(learning_rate=1e-5)" in str(shown.value.hint)


@pytest.mark.parametrize("said", [one_trajectory(), {"accuracy": 1.0}, None, [0.5]])
async def test_what_is_no_run_is_reported_and_not_logged(said: Any) -> None:
    for model in (registered(), art.Model("gpt-4o")):
        model.backend = registered().backend
        with pytest.raises(ArttraceError, match=r"is no (list of runs|run) to log") as shown:
            await model.log(said, step=0)
        assert "in a list" in str(shown.value.hint)


@pytest.mark.parametrize("said", [one_trajectory(), [one_trajectory()], None])
async def test_a_judge_is_given_a_group(said: Any) -> None:
    with pytest.raises(ArttraceError, match="is no group to judge") as shown:
        await ruler_score_group(said)
    assert "TrajectoryGroup" in str(shown.value.hint)


@pytest.mark.parametrize(
    "groups", [TrajectoryGroup([one_trajectory()]), [one_trajectory()], one_trajectory(), [[0.5]], [0.5]]
)
async def test_a_client_learns_what_it_submits(groups: Any) -> None:
    async with art.AsyncClient("http://127.0.0.1:9/v1") as client:
        with pytest.raises(
            ArttraceError, match=r"one group, not several|is no TrajectoryGroup|is no list|is no member"
        ):
            await client.submit_trajectories(groups)


@pytest.mark.parametrize("address", ["gpu-box:8000", "gpu-box", ""])
def test_an_address_without_http_is_refused_at_once(address: str) -> None:
    for made in (art.ServerBackend, art.AsyncClient, art.Client):
        with pytest.raises(ServingError, match="begins with neither http:// nor https://"):
            made(address)


def test_an_address_may_begin_with_capitals() -> None:
    assert art.ServerBackend("HTTP://gpu-box:8000/v1") is not None


@pytest.mark.parametrize("decorator", [art.retry, art.limit_concurrency])
def test_a_decorator_without_parentheses_is_answered_with_them(decorator: Any) -> None:
    with pytest.raises(TypeError, match=r"takes no function: write @\w+\("):
        decorator(rollout)
