from __future__ import annotations

import asyncio
import copy
import gc
import pickle
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lost_span import WHY, lose_a_call

import arttrace
from arttrace.loop import Trajectory, TrajectoryGroup, gather_trajectories, gather_trajectory_groups
from arttrace.loop.gathering import gather
from arttrace.loop.gathering.limits import retry
from arttrace.store import AnyStore, Store, open_store
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> Iterator[DataDir]:
    arttrace.init(dir=tmp_path)
    yield DataDir(tmp_path)
    arttrace.shutdown()


@arttrace.trajectory(group="overruled")
async def rollout(number: int) -> int:
    await asyncio.sleep(0)
    if number < 0:
        raise ValueError(f"{number} is negative")
    arttrace.reward(number / 10)
    return number


async def plain(number: int) -> int:
    return number


def test_rollouts_become_groups_that_the_store_knows(data: DataDir) -> None:
    groups = [TrajectoryGroup((rollout(n + 10 * g) for n in range(3)), key=f"g{g}") for g in range(2)]
    gathered = asyncio.run(gather_trajectory_groups(groups))
    assert [group.results for group in gathered] == [[0, 1, 2], [10, 11, 12]]
    assert [len(group.group.trajectories) for group in gathered] == [3, 3]
    for group in gathered:
        assert sorted(one.result for one in group.trajectories) == group.results
        assert {r.value for one in group.trajectories for r in one.rewards} == {n / 10 for n in group.results}
    with Store.open(data) as store:
        stored = group_trajectories(store.trajectories())
    assert [group.key for group in stored] == ["g0", "g1"], "`arttrace train` sees the same groups"
    assert [group.group for group in gathered] == stored


def test_a_group_tags_its_runs() -> None:
    group = asyncio.run(gather_trajectories([rollout(1)], key="g"))
    [measured] = asyncio.run(gather_trajectory_groups([TrajectoryGroup([rollout(1)], tags=["held-out"])]))
    assert [run.tags for run in (*group.captured, *measured.captured)] == [(), ("held-out",)]


def test_a_run_that_ended_this_moment_is_among_the_stored(data: DataDir) -> None:
    with hold_store(data, create=True):  # so that opening it takes no time
        for count in (1, 2, 3):
            asyncio.run(rollout(count))
            assert len(TrajectoryGroup.stored("overruled").trajectories) == count


def test_the_store_is_opened_once_for_a_group_with_its_rewards(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    @arttrace.trajectory
    async def built(reward: float) -> Trajectory:
        return Trajectory(reward=reward)

    opened: list[DataDir] = []

    def counted(data: DataDir, *, create: bool) -> AnyStore:
        opened.append(data)
        return open_store(data, create=create)

    monkeypatch.setattr(gather, "open_store", counted)
    groups = [TrajectoryGroup(built(n / 10) for n in range(3)) for _ in range(2)]
    gathered = asyncio.run(gather_trajectory_groups(groups))
    assert len(opened) == 2
    for group in gathered:
        assert sorted(r.value for one in group.captured for r in one.rewards) == [0.0, 0.1, 0.2]
    with Store.open(data) as store:
        assert sorted(r.value for one in store.trajectories() for r in one.rewards) == [0.0, 0.0, 0.1, 0.1, 0.2, 0.2]
    for group in gathered:
        group.built[0].reward = 0.9
        group.record_rewards()
        assert 0.9 in {r.value for one in group.captured for r in one.rewards}


def test_an_exception_is_kept_and_ends_no_other(caplog: pytest.LogCaptureFixture) -> None:
    group = asyncio.run(gather_trajectories([rollout(1), rollout(-5), rollout(2)]))
    said = [record.getMessage() for record in caplog.records if record.name == "arttrace.loop"]
    assert said == ["1 of 3 rollouts raised; the first: ValueError('-5 is negative')"]
    assert group.results == [1, None, 2]
    [error] = group.exceptions
    assert str(error) == "-5 is negative"
    assert sorted(one.error or "" for one in group.trajectories) == ["", "", "ValueError: -5 is negative"]


def test_no_more_run_at_a_time_than_asked() -> None:
    running = most = 0

    @arttrace.trajectory
    async def counted() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.005)
        running -= 1

    groups = [TrajectoryGroup(counted() for _ in range(4)) for _ in range(3)]
    gathered = asyncio.run(gather_trajectory_groups(groups, max_concurrency=3))
    assert most == 3
    assert len({group.key for group in gathered}) == 3, "groups without a key are apart"


def test_rollouts_that_are_not_captured_are_counted() -> None:
    group = asyncio.run(gather_trajectories([rollout(1), plain(2)]))
    assert (group.results, group.uncaptured) == ([1, 2], 1)


async def test_runs_that_are_not_whole_are_said_with_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    @arttrace.trajectory
    async def loses_a_call() -> None:
        lose_a_call()

    group = await gather_trajectories([rollout(1), rollout(2), plain(3), loses_a_call()])
    [(id, why)] = group.incomplete.items()
    assert why == WHY
    assert id not in {one.id for one in group.group.trajectories}
    [said] = [record.getMessage() for record in caplog.records if record.name == "arttrace.loop"]
    assert said == f"2 of 4 rollouts are neither judged nor trained on: 1 incomplete ({why}), 1 not captured"


@pytest.mark.parametrize(
    ("rollouts", "cause"),
    [
        (lambda: [], "nothing to run"),
        (lambda: [plain(1)], "none was captured"),
        (lambda: [rollout(-1), rollout(-2)], "All 2 rollouts raised; the first: ValueError: -1 is negative"),
    ],
)
def test_loud_when_empty(rollouts: Any, cause: str) -> None:
    async def run() -> None:
        await gather_trajectories(rollouts())

    with pytest.raises(ArttraceError, match=cause):
        asyncio.run(run())


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning")
async def test_nothing_runs_on_when_too_many_have_raised() -> None:
    begun: list[int] = []
    ended: list[int] = []

    async def hangs(number: int) -> None:
        begun.append(number)
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(number)

    async def fails() -> None:
        raise LookupError("no such mail")

    decorated = [arttrace.trajectory(hangs)(8), arttrace.trajectory(arttrace.no_capture()(hangs))(9)]
    groups = [TrajectoryGroup([fails(), *map(hangs, range(7)), *decorated]), TrajectoryGroup([hangs(7)])]
    with pytest.raises(ArttraceError, match="1 of 11 rollouts raised"):
        await gather_trajectory_groups(groups, max_concurrency=3, max_exceptions=0)
    assert len(asyncio.all_tasks()) == 1, "all of them are over"
    assert sorted(begun) == sorted(ended)
    assert len(begun) < 9, "and what waited does not begin"
    del decorated, groups
    gc.collect()  # coroutines that never began would warn


async def test_a_rollout_that_awaits_what_was_cancelled_ends_no_other() -> None:
    async def awaits() -> None:
        task = asyncio.ensure_future(asyncio.sleep(60))
        task.cancel()
        await task

    [group] = await gather_trajectory_groups([TrajectoryGroup([awaits(), rollout(1)])])
    assert group.results == [None, 1]
    assert [str(error) for error in group.exceptions] == ["The rollout awaited what was cancelled."]
    assert isinstance(group.exceptions[0].__cause__, asyncio.CancelledError)


async def test_one_bar_shows_the_running_means(capsys: pytest.CaptureFixture[str]) -> None:
    async def built(number: int) -> Trajectory:
        await rollout(number)
        if number == 3:
            raise LookupError("no such mail")
        return Trajectory(reward=number / 4, metrics={"moves": 10 * number})

    groups = [TrajectoryGroup(map(built, (0, 1))), TrajectoryGroup([built(2), built(3), rollout(1)])]
    await gather_trajectory_groups(groups, pbar_desc="gather", max_concurrency=1)
    *_, last = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()
    assert re.match(r"gather: 100%.* 5/5 ", last), last
    assert "reward=0.25, moves=10, exceptions=1" in last
    await gather_trajectories([built(1), built(2)], pbar_desc="validation")
    assert "validation: 100%" in capsys.readouterr().err
    await gather_trajectories([built(1), Trajectory(reward=1.0), LookupError("no such mail")], pbar_desc="again")
    assert re.search(r"again: 100%.* 1/1 ", capsys.readouterr().err), "what is there already does not run"
    await gather_trajectories([rollout(1)])
    assert "100%" not in capsys.readouterr().err


async def test_one_group_may_bound_its_exceptions() -> None:
    with pytest.raises(ArttraceError, match="1 of 2 rollouts raised, more than max_exceptions=0"):
        await gather_trajectories([rollout(-1), rollout(1)], max_exceptions=0)


class Silent(Exception):
    """Its text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


async def silent() -> None:
    raise Silent


async def test_an_error_without_a_readable_text_is_reported_by_its_type(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ArttraceError, match="All 1 rollouts raised; the first: Silent: <Silent>"):
        await gather_trajectories([silent()])
    with pytest.raises(ArttraceError, match="more than max_exceptions=0; the last: Silent: <Silent>"):
        await gather_trajectories([silent(), rollout(1)], max_exceptions=0)
    gathered = await gather_trajectories([silent(), rollout(1)])
    assert (len(gathered.exceptions), len(gathered.captured)) == (1, 1)
    assert "1 of 2 rollouts raised; the first: <Silent>" in caplog.text
    with pytest.raises(Silent):
        await retry(max_attempts=2, delay=0.0)(silent)()
    assert "silent raised in attempt 1 of 2: <Silent>" in caplog.text


async def built(number: int) -> Trajectory:
    await rollout(number)
    return Trajectory(reward=float(number))


async def test_a_group_counts_what_it_gives() -> None:
    group = TrajectoryGroup([built(-1), built(1), built(2)])
    assert len(group) == 3
    [gathered] = await gather_trajectory_groups([group])
    assert (len(gathered), gathered.size, len(gathered.captured)) == (2, 3, 3)
    assert list(gathered) == list(gathered.trajectories) == [gathered.results[1], gathered.results[2]]
    assert (gathered[0], gathered[-1:]) == (gathered.results[1], [gathered.results[2]])
    assert {type(one) for one in gathered.trajectories} == {Trajectory}
    decorated = await gather_trajectories([rollout(1), rollout(2)])
    assert list(decorated) == list(decorated.captured)
    assert len(decorated) == 2
    anew = TrajectoryGroup([*gathered, LookupError("no such mail")])
    assert (len(anew), [one.reward for one in anew]) == (2, [1.0, 2.0])
    assert [str(error) for error in anew.exceptions] == ["no such mail"]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda group: pickle.loads(pickle.dumps(group))])
async def test_a_gathered_group_can_be_copied_and_pickled(
    copied: Callable[[TrajectoryGroup], TrajectoryGroup], data: DataDir
) -> None:
    @arttrace.trajectory
    async def built(number: int) -> Trajectory:
        if number == 2:
            raise ValueError("two")
        return Trajectory(messages_and_choices=[{"role": "user", "content": str(number)}])

    group = await gather_trajectories(built(n) for n in range(3))
    again = copied(group)
    assert (repr(again), len(again), again.size, again.to_gather) == (repr(group), 2, 3, 0)
    assert again.captured == group.captured
    assert [str(error) for error in again.exceptions] == ["two"]
    again.trajectories[0].reward = 0.25
    again.record_rewards()
    with Store.open(data) as store:
        assert [reward.value for run in store.trajectories() for reward in run.rewards] == [0.25]
    with pytest.raises(ArttraceError, match="gathered twice"):
        await gather_trajectory_groups([again])


async def test_exceptions_among_the_members_are_members(caplog: pytest.LogCaptureFixture) -> None:
    failed = [LookupError("no such mail"), LookupError("nor this one")]
    group = await gather_trajectories([rollout(1), rollout(2), *failed])
    assert (group.results, group.exceptions, group.size, len(group)) == ([1, 2], failed, 4, 2)
    said = [record.getMessage() for record in caplog.records if record.name == "arttrace.loop"]
    assert said == ["2 of 4 rollouts raised; the first: LookupError('no such mail')"]
    with pytest.raises(ArttraceError, match="All 2 rollouts raised; the first: LookupError: no such mail"):
        await gather_trajectories(failed)


async def test_several_groups_may_stand_in_the_place_of_one() -> None:
    async def halved(group: TrajectoryGroup) -> list[TrajectoryGroup]:
        return [TrajectoryGroup(list(group)[:1]), TrajectoryGroup(list(group)[1:])]

    gathered = await gather_trajectory_groups([TrajectoryGroup(map(built, (1, 2, 3)))], after_each=halved)
    assert [[one.reward for one in group] for group in gathered] == [[1.0], [2.0, 3.0]]


async def test_a_metric_that_is_no_number_is_its_rollouts_fault() -> None:
    async def says(**metrics: Any) -> Trajectory:
        return Trajectory(reward=1.0, metrics=metrics)

    [group] = await gather_trajectory_groups([TrajectoryGroup([says(level="high"), rollout(1), says(level=2)])])
    assert [type(error) for error in group.exceptions] == [ArttraceError]
    assert "the metric 'level' of a run is 'high', not a finite number" in str(group.exceptions[0])
    assert group.results[0] is None
    assert group.results[1] == 1
