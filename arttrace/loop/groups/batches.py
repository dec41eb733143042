"""Batches for a training loop: of a data set, epoch by epoch, and of groups whose rollouts run ahead of training."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Generic, TypeVar

from tqdm.auto import tqdm

from arttrace.loop.gathering.gather import AfterEach, gathered_group, marked_as_gathered, require_some
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.gathering.members import require_several
from arttrace.loop.gathering.progress import GatherProgress, require_bound

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class DatasetBatch(Generic[T]):
    """The items of one step.

    Args:
        items: The items.
        step: The number of the step over all epochs, from 0.
        epoch: The number of the epoch, from 0.
        epoch_step: The number of the step within the epoch, from 0.
    """

    items: list[T]
    step: int
    epoch: int
    epoch_step: int


def iterate_dataset(
    dataset: Sequence[T],
    groups_per_step: int = 1,
    num_epochs: int = 1,
    initial_step: int = 0,
    use_tqdm: bool = False,
) -> Iterator[DatasetBatch[T]]:
    """The batches of a data set, which each epoch has in another order: the same one whenever it is asked for.

    Args:
        dataset: The items, such as a list of scenarios.
        groups_per_step: The number of items in a batch; the last of an epoch may have fewer.
        num_epochs: How often the whole data set is gone through.
        initial_step: The first step to give: `await model.get_step()` to go on where the training was ended.
        use_tqdm: Show a progress bar.

    Yields:
        The batches, in the order of their steps.

    Raises:
        ValueError: `groups_per_step` is below 1, or `num_epochs` or `initial_step` below 0.

    Example:
        ```python
        step = await model.get_step()
        for batch in art.iterate_dataset(scenarios, groups_per_step=4, num_epochs=3, initial_step=step):
            groups = await art.gather_trajectory_groups(
                art.TrajectoryGroup(rollout(model, scenario) for _ in range(8)) for scenario in batch.items
            )
            await model.train(groups)
        ```
    """
    _require("groups_per_step", groups_per_step, 1)
    _require("num_epochs", num_epochs, 0)
    _require("initial_step", initial_step, 0)
    return _batches(dataset, groups_per_step, num_epochs, initial_step, use_tqdm)


def _batches(dataset: Sequence[T], size: int, epochs: int, first: int, shown: bool) -> Iterator[DatasetBatch[T]]:
    steps = -(-len(dataset) // size)
    with tqdm(total=steps * epochs, initial=first, desc="Iterating dataset", unit="batch", disable=not shown) as bar:
        for step in range(first, steps * epochs):
            epoch, epoch_step = divmod(step, steps)
            order = list(range(len(dataset)))
            random.Random(epoch).shuffle(order)
            chosen = order[epoch_step * size :][:size]
            yield DatasetBatch([dataset[index] for index in chosen], step, epoch, epoch_step)
            bar.update()


def trajectory_group_batches(
    groups: Iterable[TrajectoryGroup],
    *,
    batch_size: int,
    max_batch_exceptions: int | float | None = None,
    max_concurrent_batches: int = 4,
    skip_batches: int = 0,
    max_concurrency: int = 32,
    pbar_desc: str | None = None,
    after_each: AfterEach | None = None,
) -> AsyncGenerator[list[TrajectoryGroup], None]:
    """Gathered groups in batches, as their rollouts end: those of the next batches run while one is trained on.

    What is sampled ahead is as much older than the policy as steps are taken until it is trained on: bound that by
    `max_concurrent_batches`, or by `max_staleness` of `model.train`. Where the loop over the batches is left, rollouts
    under way are cancelled.

    Args:
        groups: Groups of rollouts that have not been run yet; they are taken from it as their turn comes.
        batch_size: The number of groups in a batch; the last may have fewer.
        max_batch_exceptions: End when more rollouts of a batch than this raised; below 1 it is a share of the batch's.
            None: no bound.
        max_concurrent_batches: How many batches run at a time.
        skip_batches: The number of batches at the beginning that are left out: `await model.get_step()` to go on where
            the training was ended.
        max_concurrency: The largest number of rollouts that run at a time.
        pbar_desc: Show a progress bar with this text, and the mean reward and metrics so far.
        after_each: Called with each group as soon as its rollouts have ended, as by `gather_trajectory_groups`.

    Yields:
        The groups of a batch, in the order in which they ended.

    Raises:
        ArttraceError: Every rollout of a batch raised, more than `max_batch_exceptions` did, nothing was captured, or a
            group was gathered already.
        StoreError: The store cannot be opened or asked.
        ValueError: A number is below 1, or `skip_batches` below 0.

    Example:
        ```python
        groups = (art.TrajectoryGroup(rollout(model, one) for _ in range(8)) for one in scenarios)
        async for batch in art.trajectory_group_batches(groups, batch_size=4, skip_batches=await model.get_step()):
            await model.train(batch)
        ```
    """
    _require("batch_size", batch_size, 1)
    _require("max_concurrent_batches", max_concurrent_batches, 1)
    _require("max_concurrency", max_concurrency, 1)
    _require("skip_batches", skip_batches, 0)
    require_several(groups, TrajectoryGroup, "trajectory_group_batches")
    waiting = iter(groups)
    for skipped in islice(waiting, batch_size * skip_batches):
        skipped.close()
    slots = asyncio.Semaphore(max_concurrency)

    def start(progress: GatherProgress, number: int) -> Iterator[tuple[_Running, TrajectoryGroup]]:
        for group in marked_as_gathered(islice(waiting, number), "trajectory_group_batches"):
            yield asyncio.create_task(gathered_group(group, slots, progress, after_each)), group

    async def batches() -> AsyncGenerator[list[TrajectoryGroup], None]:
        running: dict[_Running, TrajectoryGroup] = {}
        ended: list[TrajectoryGroup] = []
        kept: list[TrajectoryGroup] = []
        with GatherProgress(None, pbar_desc, None) as progress:
            try:
                most = batch_size * max_concurrent_batches
                while running := running | dict(start(progress, max(0, most - len(running) - len(kept)))):
                    done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                    for task in done:
                        ended.append(running.pop(task))
                        kept += task.result()
                        while len(kept) >= batch_size:
                            _require_sound(ended, max_batch_exceptions)
                            ended, batch, kept = [], kept[:batch_size], kept[batch_size:]
                            yield batch
                if ended:
                    _require_sound(ended, max_batch_exceptions)
                if kept:
                    yield kept
            finally:
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)

    return batches()


_Running = asyncio.Task[list[TrajectoryGroup]]


def _require_sound(groups: Sequence[TrajectoryGroup], bound: int | float | None) -> None:
    """Raises ArttraceError where what was gathered for a batch is none, and logs what is missing in it."""
    raised = [error for group in groups for error in group.exceptions]
    if raised:
        require_bound(raised[-1], len(raised), sum(group.size for group in groups), "max_batch_exceptions", bound)
    require_some(groups)


def _require(name: str, number: int, least: int) -> None:
    if number < least:
        raise ValueError(f"{name} is {number}, below {least}")
