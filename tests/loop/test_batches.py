"""Batches of a data set are the same whenever they are asked for; batches of groups come while the next ones run."""

from __future__ import annotations

import asyncio
import gc
import random
from collections.abc import Iterator
from contextlib import aclosing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import arttrace
from arttrace.loop import Trajectory, TrajectoryGroup, iterate_dataset, trajectory_group_batches
from arttrace.system.errors import ArttraceError

NONE_IS_FORGOTTEN = pytest.mark.filterwarnings(
    "error::pytest.PytestUnraisableExceptionWarning", "error::RuntimeWarning"
)
"""Coroutines that were never awaited and never closed warn."""


@pytest.fixture(autouse=True)
def data(tmp_path: Path) -> Iterator[None]:
    arttrace.init(dir=tmp_path)
    yield
    arttrace.shutdown()


@arttrace.trajectory
async def rollout(number: int) -> Trajectory:
    if number < 0:
        raise ValueError(f"{number} is negative")
    return Trajectory(reward=float(number))


def group(*numbers: int) -> TrajectoryGroup:
    return TrajectoryGroup(rollout(number) for number in numbers)


def rewards(groups: list[TrajectoryGroup]) -> list[list[float]]:
    return [[one.reward for one in each] for each in groups]


@given(st.integers(0, 12), st.integers(1, 5), st.integers(0, 3), st.data())
def test_a_data_set_is_gone_through_once_in_each_epoch_and_goes_on_where_it_was_left(
    size: int, per_step: int, epochs: int, data: st.DataObject
) -> None:
    items = [f"item {number}" for number in range(size)]
    known = random.getstate()
    batches = list(iterate_dataset(items, per_step, epochs))
    assert random.getstate() == known
    assert [batch.step for batch in batches] == list(range(-(-size // per_step) * epochs))
    for epoch in range(epochs):
        own = [batch for batch in batches if batch.epoch == epoch]
        assert [batch.epoch_step for batch in own] == list(range(len(own)))
        assert sorted(item for batch in own for item in batch.items) == sorted(items)
        assert all(len(batch.items) == per_step for batch in own[:-1])
    first = data.draw(st.integers(0, len(batches) + 2))
    assert list(iterate_dataset(items, per_step, epochs, initial_step=first)) == batches[first:]


def test_epochs_have_an_order_of_their_own_which_is_that_of_art() -> None:
    def in_art(epoch: int) -> list[int]:
        order = list(range(20))
        random.seed(epoch)
        random.shuffle(order)
        return order

    found = [batch.items for batch in iterate_dataset(range(20), groups_per_step=20, num_epochs=2)]
    assert found == [in_art(0), in_art(1)]
    assert found[0] != found[1]


def test_a_bar_begins_where_the_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(list(iterate_dataset(range(8), 2, 2, initial_step=5, use_tqdm=True))) == 3
    assert "8/8" in capsys.readouterr().err
    list(iterate_dataset(range(8)))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "number"), [("groups_per_step", 0), ("num_epochs", -1), ("initial_step", -1), ("groups_per_step", -2)]
)
def test_batches_of_a_data_set_that_cannot_be(name: str, number: int) -> None:
    with pytest.raises(ValueError, match=f"{name} is {number}, below"):
        iterate_dataset([1, 2], **{name: number})


@pytest.mark.parametrize(
    ("name", "number"),
    [("batch_size", 0), ("max_concurrent_batches", 0), ("max_concurrency", 0), ("skip_batches", -1)],
)
def test_batches_of_groups_that_cannot_be(name: str, number: int) -> None:
    numbers = {"batch_size": 1, name: number}
    with pytest.raises(ValueError, match=f"{name} is {number}, below"):
        trajectory_group_batches([], **numbers)  # type: ignore[arg-type]


async def test_groups_come_in_batches_and_the_last_may_be_smaller() -> None:
    batches = [rewards(batch) async for batch in trajectory_group_batches(map(group, range(5)), batch_size=2)]
    assert [len(batch) for batch in batches] == [2, 2, 1]
    assert sorted(reward for batch in batches for [reward] in batch) == [0, 1, 2, 3, 4]
    assert [batch async for batch in trajectory_group_batches([], batch_size=2)] == []


async def test_the_next_batches_run_while_one_is_trained_on_and_no_more_of_them_than_asked() -> None:
    begun: list[int] = []
    trained = asyncio.Event()

    @arttrace.trajectory
    async def watched(number: int) -> Trajectory:
        begun.append(number)
        if number >= 2:
            await trained.wait()
        return Trajectory(reward=1.0)

    taken: list[int] = []

    def endless() -> Iterator[TrajectoryGroup]:
        for number in count():
            taken.append(number)
            yield TrajectoryGroup([watched(number)])

    batches = trajectory_group_batches(endless(), batch_size=2, max_concurrent_batches=2)
    async with aclosing(batches):
        assert len(await anext(batches)) == 2
        while 3 not in begun:
            await asyncio.sleep(0)
        assert taken == begun == [0, 1, 2, 3]
        trained.set()
        assert len(await anext(batches)) == 2
        assert taken == [0, 1, 2, 3, 4, 5]


async def test_what_still_runs_is_cancelled_where_the_loop_is_left() -> None:
    ended: list[str] = []

    @arttrace.trajectory
    async def watched(number: int) -> Trajectory:
        try:
            await asyncio.sleep(3600 * number)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return Trajectory(reward=1.0)

    groups = [TrajectoryGroup([watched(number)]) for number in (0, 1)]
    async with aclosing(trajectory_group_batches(groups, batch_size=1)) as batches:
        async for _ in batches:
            break
    assert ended == ["cancelled"]


@NONE_IS_FORGOTTEN
async def test_batches_that_were_trained_on_are_not_run_again() -> None:
    batches = trajectory_group_batches(map(group, range(5)), batch_size=2, skip_batches=2)
    assert [rewards(batch) async for batch in batches] == [[[4.0]]]
    past_the_end = trajectory_group_batches(map(group, range(3)), batch_size=2, skip_batches=9)
    assert [batch async for batch in past_the_end] == []
    gc.collect()


async def test_a_bound_holds_for_each_batch(caplog: pytest.LogCaptureFixture) -> None:
    groups = [(1, -1), (2, 2), (3, -3), (4, 4)]

    def batches(bound: float) -> Any:
        made = (group(*numbers) for numbers in groups)
        return trajectory_group_batches(made, batch_size=2, max_concurrent_batches=1, max_batch_exceptions=bound)

    for bound in (1, 0.25):
        assert len([batch async for batch in batches(bound)]) == 2
    assert "1 of 4 rollouts raised" in caplog.text
    for bound in (0, 0.2):
        with pytest.raises(ArttraceError, match=f"1 of 4 rollouts raised, more than max_batch_exceptions={bound}"):
            await anext(batches(bound))


async def test_a_batch_of_which_nothing_is_left_ends_the_loop() -> None:
    batches = trajectory_group_batches(map(group, [1, -1]), batch_size=1, max_concurrent_batches=1)
    assert rewards(await anext(batches)) == [[1.0]]
    with pytest.raises(ArttraceError, match="All 1 rollouts raised; the first: ValueError: -1 is negative"):
        await anext(batches)


async def test_groups_that_are_left_out_are_in_no_batch() -> None:
    def keep(one: TrajectoryGroup) -> TrajectoryGroup | None:
        return one if one[0].reward % 2 else None

    batches = trajectory_group_batches(map(group, range(6)), batch_size=2, after_each=keep)
    assert sorted(map(len, [batch async for batch in batches])) == [1, 2]
    twice = trajectory_group_batches(
        map(group, range(4)), batch_size=3, max_concurrent_batches=1, after_each=lambda one: [one, one]
    )
    assert sorted(map(len, [batch async for batch in twice])) == [2, 3, 3]


async def test_what_is_no_list_of_new_groups_is_refused() -> None:
    one = group(1)
    with pytest.raises(ArttraceError, match=r"trajectory_group_batches\(\[group\]\)"):
        trajectory_group_batches(one, batch_size=1)  # type: ignore[arg-type]
    assert len([batch async for batch in trajectory_group_batches([one], batch_size=1)]) == 1
    with pytest.raises(ArttraceError, match="is gathered twice"):
        await anext(trajectory_group_batches([one], batch_size=1))
    with pytest.raises(ArttraceError, match="a list is no TrajectoryGroup"):
        await anext(trajectory_group_batches([[1]], batch_size=1))  # type: ignore[list-item]
