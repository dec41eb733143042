"""Gather: run the user's rollouts concurrently in this process, and read back the trajectories they became.

Each rollout is one run. A decorated function opens the run itself; for any other function it is opened here.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from arttrace.capture.api import flush
from arttrace.capture.context.flow import current_flow, set_flow
from arttrace.capture.context.generators import is_driven
from arttrace.capture.context.run import RunOverrides
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.gathering.members import group_list, opened, require_own
from arttrace.loop.gathering.outcome import require_outcome, warn_of_what_is_missing
from arttrace.loop.gathering.progress import GatherProgress
from arttrace.loop.processes.art_arguments import OF_A_GATHER, refusing
from arttrace.loop.recorded.directories import by_directory
from arttrace.loop.trajectory import Trajectory as BuiltTrajectory
from arttrace.records.trajectory import Trajectory
from arttrace.store import AnyStore, open_store
from arttrace.system.addresses import without_login
from arttrace.system.errors import ArttraceError

_log = logging.getLogger("arttrace.loop")


@refusing(OF_A_GATHER)
async def gather_trajectories(
    rollouts: Iterable[Awaitable[Any]],
    *,
    key: str | None = None,
    max_concurrency: int = 32,
    pbar_desc: str | None = None,
    max_exceptions: int | float | None = None,
) -> TrajectoryGroup:
    """One group, run as `gather_trajectory_groups` does.

    Args:
        rollouts: Calls of coroutine functions, not started yet.
        key: The group's name; by default a new one.
        max_concurrency: The largest number of rollouts that run at a time.
        pbar_desc: Show a progress bar with this text, and the mean reward and metrics so far.
        max_exceptions: End when more rollouts than this raise; below 1 it is a share of all. None: no bound.

    Returns:
        The group, with the results and the trajectories that were captured.

    Raises:
        ArttraceError: Every rollout raised, more than `max_exceptions` did, or nothing was captured.
        StoreError: The store cannot be opened or asked.
    """
    [group] = await gather_trajectory_groups(
        [TrajectoryGroup(rollouts, key=key)],
        max_concurrency=max_concurrency,
        pbar_desc=pbar_desc,
        max_exceptions=max_exceptions,
    )
    return group


Kept = TrajectoryGroup | list[TrajectoryGroup] | None
AfterEach = Callable[[TrajectoryGroup], Kept | Awaitable[Kept]]
"""Called with each group as soon as it is gathered; what it returns replaces the group, None leaves the group out."""


@refusing(OF_A_GATHER)
async def gather_trajectory_groups(
    groups: Iterable[TrajectoryGroup],
    *,
    max_concurrency: int = 32,
    pbar_desc: str | None = None,
    max_exceptions: int | float | None = None,
    after_each: AfterEach | None = None,
) -> list[TrajectoryGroup]:
    """Run the rollouts of all groups, and read back the trajectories they became.

    A rollout's exception is kept in its group and stops no other rollout. The runs are in the store afterwards, where
    `arttrace ls`, `arttrace score` and `arttrace train` find them too; cancelled, as by Ctrl-C, those that ended are,
    with their rewards, and those under way as incomplete.

    Args:
        groups: Groups of rollouts that have not been run yet.
        max_concurrency: The largest number of rollouts that run at a time, over all groups.
        pbar_desc: Show a progress bar with this text, and the mean reward and metrics so far.
        max_exceptions: Stop if more rollouts than this raise, and cancel the running ones. A number below 1 is a share
            of all rollouts; None sets no bound.
        after_each: Called with each group as soon as its rollouts have ended, such as `lambda group:
            ruler_score_group(group, "openai/o3", swallow_exceptions=True)`; an awaitable result is awaited. The group
            that it returns replaces the group; None leaves the group out. Rewards that it sets are stored.

    Returns:
        The groups, in order, with their results and trajectories.

    Raises:
        ArttraceError: Every rollout raised (the first exception is its cause), more than `max_exceptions` did, nothing
            was captured, or a group was gathered already.
        StoreError: The store cannot be opened or asked.
        ValueError: `max_concurrency` is below 1.
    """
    if max_concurrency < 1:
        raise ValueError(f"max_concurrency is {max_concurrency}, below 1")
    groups = marked_as_gathered(groups, "gather_trajectory_groups")
    slots = asyncio.Semaphore(max_concurrency)
    with GatherProgress(sum(group._given for group in groups), pbar_desc, max_exceptions) as progress:
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [tasks.create_task(gathered_group(group, slots, progress, after_each)) for group in groups]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from failures.exceptions[0].__cause__
    require_some(groups)
    return [group for task in running for group in task.result()]


def require_some(groups: Sequence[TrajectoryGroup]) -> None:
    """Raises ArttraceError where groups that were gathered have nothing, and logs what is missing in them."""
    size, raised = sum(group.size for group in groups), [error for group in groups for error in group.exceptions]
    sent_to = without_login(recorder().settings.endpoint or "")
    require_outcome(size, raised, captured=any(group.captured or group.ready_made for group in groups), sent_to=sent_to)
    incomplete = [why for group in groups for why in group.incomplete.values()]
    warn_of_what_is_missing(size, incomplete, sum(group.uncaptured for group in groups), raised)


async def gathered_group(
    group: TrajectoryGroup, slots: asyncio.Semaphore, progress: GatherProgress, after_each: AfterEach | None
) -> list[TrajectoryGroup]:
    """The group, its rollouts run and read back, or what `after_each` makes of it."""
    try:
        ids = await _run(group, slots, progress)
    except BaseException:  # Ctrl-C, or too many raised: what rollouts returned before that was paid for
        try:
            await asyncio.to_thread(group.record_rewards)
        except ArttraceError as error:
            _log.warning("rewards of a gather that was ended are not stored: %s", error)
        raise
    await asyncio.to_thread(_read_back, group, ids)
    if any("in progress" in why for why in group.incomplete.values()):
        await _free_left_streams()
        await asyncio.to_thread(_read_ended, group)
    group._rollouts.clear()  # a coroutine that has run can be neither copied nor pickled
    if after_each is None or not (group.captured or group.ready_made):
        return [group]
    after = after_each(group)
    kept: Kept = await after if inspect.isawaitable(after) else after
    found = kept if isinstance(kept, list) else [] if kept is None else [kept]
    for one in found:
        if isinstance(one, TrajectoryGroup):  # what else it is, `train` and `log` say
            await asyncio.to_thread(one.record_rewards)
    return found


async def _run(group: TrajectoryGroup, slots: asyncio.Semaphore, progress: GatherProgress) -> list[str]:
    """Run all rollouts; returns the ids their trajectories were given."""
    ids = [secrets.token_hex(16) for _ in group._rollouts]
    running = [
        asyncio.ensure_future(_run_one(rollout, id, group, slots, progress))
        for rollout, id in zip(group._rollouts, ids, strict=True)
    ]
    outcomes: Sequence[Any] = ()
    try:
        outcomes = await asyncio.gather(*running)
    except BaseException:  # gather leaves the others running
        for each in running:
            each.cancel()
        outcomes = await asyncio.gather(*running, return_exceptions=True)
        group.close()
        raise
    finally:
        group.exceptions += (outcome for outcome in outcomes if isinstance(outcome, Exception))
        group.results = [None if isinstance(outcome, BaseException) else outcome for outcome in outcomes]
    return ids


async def _run_one(
    rollout: Awaitable[Any], id: str, group: TrajectoryGroup, slots: asyncio.Semaphore, progress: GatherProgress
) -> Any:
    async with slots:
        # This is a task with a context of its own: what is set here reaches the rollout and nothing else.
        overrides = RunOverrides(trajectory_id=id, group=group.key, metadata=group.metadata, tags=group.tags)
        set_flow(replace(current_flow(), scope=None, overrides=overrides))
        group._directories[id] = data = recorder().settings.data
        try:
            result = await (rollout if is_driven(rollout) else opened(rollout))
            require_own(result, id)
            if isinstance(result, BuiltTrajectory):
                result.id, result.recorded_in = id, data
            progress.ended(result)  # a reward or metric that is no number is the rollout's fault
        except asyncio.CancelledError as cancelled:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            awaited = ArttraceError("The rollout awaited what was cancelled.")
            awaited.__cause__ = cancelled
            progress.raised(awaited)
            return awaited
        except Exception as error:  # noqa: BLE001 - whatever the user's rollout raises is its outcome
            progress.raised(error)
            return error
        return result


def marked_as_gathered(groups: Iterable[TrajectoryGroup], call: str) -> list[TrajectoryGroup]:
    """The groups that `call` was given, gathered from now on. Raises ArttraceError where they cannot be."""
    groups = group_list(groups, TrajectoryGroup, call)
    for group in groups:
        if group._was_gathered and group._given:
            raise ArttraceError(
                f"the group {group.key} is gathered twice: a rollout runs once",
                "Make a new TrajectoryGroup of new calls.",
            )
        group._was_gathered = True
    return groups


_TURNS = 32
"""Turns of the event loop in which the generators of an async stream, some six in each other, are closed one by one."""


async def _free_left_streams() -> None:
    """End the streams that were left before their end and that nobody holds: they refer to themselves, so that only the
    garbage collector frees them, at any time."""
    gc.collect()
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def _read_ended(group: TrajectoryGroup) -> None:
    flush()
    deadline = time.monotonic() + (_ENDED_WITHIN_S if _sends() else 0.0)
    while True:
        group.read_again()
        if time.monotonic() > deadline or not any("in progress" in why for why in group.incomplete.values()):
            return
        time.sleep(_LOOK_AGAIN_S)


def _read_back(group: TrajectoryGroup, ids: Sequence[str]) -> None:
    if not ids:
        return
    flush()
    rewards = group._new_rewards()
    found: dict[str, Trajectory] = {}
    for data, there in by_directory({id: group._directories[id] for id in ids}).items():
        with open_store(data, create=True) as store:  # once: opening takes longer than what is asked
            if data in rewards:
                group._append(store, rewards[data])
            found |= _arrived(store, there)
    decorated = [is_driven(rollout) for rollout in group._rollouts]
    captured = [
        found[id]
        for id, own in zip(ids, decorated, strict=True)
        if id in found and (own or found[id].calls or len(found[id].agents) > 1)
    ]
    group.captured = tuple(sorted(captured, key=lambda one: (one.start_ns, one.id)))
    group.uncaptured = len(ids) - len(captured)


_DELIVERED_WITHIN_S = 30.0
"""How long a gather waits for what a collector is to be sent of its runs."""
_ENDED_WITHIN_S = 2.0
"""The same for the ends of calls that a run had left in progress: it may be that they are still held."""
_LOOK_AGAIN_S = 0.05


def _sends() -> bool:
    """Whether what is recorded goes to a collector first."""
    return recorder().settings.endpoint is not None and not recorder().is_off


def _arrived(store: AnyStore, ids: Sequence[str]) -> dict[str, Trajectory]:
    """The runs by id. Where they go to a collector first, those that are still on their way are waited for."""
    deadline = time.monotonic() + (_DELIVERED_WITHIN_S if _sends() else 0.0)
    while True:
        found = {one.id: one for one in store.trajectories(ids=ids)}
        if time.monotonic() > deadline or not any(id not in found or "missing" in found[id].incomplete for id in ids):
            return found
        time.sleep(_LOOK_AGAIN_S)
        store.ingest_spool()
