"""Gather: run the user's rollouts concurrently in this process, and read back the trajectories they became.

Each rollout is one run. A decorated function opens the run itself; for any other function it is opened here.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from arttrace.capture.api import flush
from arttrace.capture.context.flow import current_flow, set_flow
from arttrace.capture.context.generators import is_driven
from arttrace.capture.context.run import RunOverrides
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.gathering.members import close_rollout, group_list, opened, require_member, require_own
from arttrace.loop.gathering.outcome import in_words, require_outcome, tell_of_two_rewards, warn_of_what_is_missing
from arttrace.loop.gathering.progress import GatherProgress
from arttrace.loop.recorded.directories import by_directory, captured_runs, directories_of
from arttrace.loop.recorded.scores import append_scores
from arttrace.loop.trajectory import Trajectory as BuiltTrajectory
from arttrace.loop.trajectory import conversation_record, record_id
from arttrace.records.group import Group, new_key
from arttrace.records.reward import Judgement, Reward
from arttrace.records.trajectory import Trajectory
from arttrace.rewards import to_store, trajectory_reward
from arttrace.store import AnyStore, open_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_log = logging.getLogger("arttrace.loop")


class TrajectoryGroup:
    """Rollouts of one scenario and, once gathered, their results.

    Args:
        rollouts: Awaitables: calls of coroutine functions, decorated with `@trajectory` or not, not started yet (no
            tasks). Or trajectories that exist already, such as `response.trajectory` of `AsyncClient`, and exceptions
            in the place of those that failed.
        key: The group's name, in place of a group or scenario that the decorator sets. By default a new name, so that
            the members are compared with each other and with no earlier run.

    After gathering: `results` are what the rollouts returned, in order (None for one that raised), `exceptions` what
    they raised, and `captured` the recorded runs, in order of start; a rollout that raised is among them, with its
    error as its outcome. `uncaptured` counts rollouts that left no trajectory. `built` are the
    `arttrace.loop.Trajectory` objects that rollouts returned; their rewards are those of their runs. `trajectories`,
    which iteration and `len` use, are `built`, or `captured` if no rollout returned such an object; before gathering
    `len` counts the rollouts.
    """

    def __init__(
        self, rollouts: Iterable[Awaitable[Any] | BuiltTrajectory | Exception], *, key: str | None = None
    ) -> None:
        members = list(rollouts)
        for member in members:
            require_member(member)
        self.ready_made = [one for one in members if isinstance(one, BuiltTrajectory)]
        self.exceptions: list[Exception] = [one for one in members if isinstance(one, Exception)]
        self._failed_before = len(self.exceptions)
        self._rollouts = [one for one in members if not isinstance(one, BuiltTrajectory | Exception)]
        self._given = len(self._rollouts)
        self._recorded: dict[str, float | None] = {}
        self._directories: dict[str, DataDir] = {}
        self._was_gathered = False
        self.key = key or new_key()
        self.results: list[Any] = []
        self.captured: tuple[Trajectory, ...] = ()
        self.uncaptured = 0

    @classmethod
    def stored(cls, key: str) -> TrajectoryGroup:
        """The runs of a group that was gathered before, by this process or another.

        Args:
            key: The group's name, as passed when it was gathered.

        Raises:
            StoreError: The store cannot be opened or asked.
        """
        group = cls((), key=key)
        flush()
        data = recorder().settings.data
        with open_store(data, create=True) as store:
            group.captured = tuple(store.trajectories(group=key))
        group._directories = {run.id: data for run in group.captured}
        return group

    def __len__(self) -> int:
        return len(self.trajectories) if self.results or not self._given else self.size

    def __iter__(self) -> Iterator[Any]:
        return iter(self.trajectories)

    def __getitem__(self, index: Any) -> Any:
        return self.trajectories[index]

    def __repr__(self) -> str:
        rewards = [one.reward if isinstance(one, BuiltTrajectory) else trajectory_reward(one) for one in self]
        return in_words(self.key, self.to_gather, rewards, len(self.exceptions))

    @property
    def to_gather(self) -> int:
        """The number of rollouts that have not been run."""
        return 0 if self._was_gathered else self._given

    @property
    def size(self) -> int:
        """The number of rollouts, and of trajectories and exceptions that existed already."""
        return self._given + len(self.ready_made) + self._failed_before

    @property
    def trajectories(self) -> Sequence[Any]:
        """`built`, or `captured` where there is none of them."""
        return self.built or self.captured

    @property
    def built(self) -> list[BuiltTrajectory]:
        """The `Trajectory` objects that rollouts returned, and trajectories that existed already."""
        return [*(result for result in self.results if isinstance(result, BuiltTrajectory)), *self.ready_made]

    @property
    def incomplete(self) -> dict[str, str]:
        """The incomplete runs among `captured`: the reason by id. They are neither judged nor trained on."""
        return {one.id: one.incomplete for one in self.captured if one.incomplete}

    @property
    def group(self) -> Group:
        """The complete runs as judges take them: of ready-made ones what they say, else what was captured of them."""
        read = captured_runs(one for one in self.ready_made if not one.messages_and_choices)
        whole = (one for one in (*self.captured, *read.values()) if not one.incomplete)
        return Group(self.key, (*whole, *(conversation_record(one) for one in self.ready_made if one.id not in read)))

    def record_rewards(self) -> None:
        """Store the rewards of `built` that are new or have changed; `gather` and `train` call it.

        Raises:
            ArttraceError: A reward is not a finite number.
            StoreError: The store cannot be written.
        """
        for data, rewards in self._new_rewards().items():
            with open_store(data, create=True) as store:
                self._append(store, rewards)
                self._read_again(store)

    @property
    def directories(self) -> dict[str, DataDir]:
        """The data directory in which each run of this process was recorded, by the run's id."""
        return directories_of(self.ready_made) | {run.id: self._directories[run.id] for run in self.captured}

    def _new_rewards(self) -> dict[DataDir, list[Reward]]:
        """By the directory to store them in."""
        own = [one for one in self.built if self._recorded.get(one.id) != one.reward]
        found: dict[DataDir, list[Reward]] = {}
        for one in own:
            if one.recorded_in and (reward := one.record()) is not None:
                found.setdefault(one.recorded_in, []).append(reward)
        return found

    def _append(self, store: AnyStore, rewards: list[Reward]) -> None:
        append_scores(store, rewards)
        self._recorded |= {reward.trajectory_id: reward.value for reward in rewards}

    def take(self, judgement: Judgement) -> None:
        """Store a judgement of this group. Its scores are the rewards of trajectories that were not captured here, and
        of those in `built` that have none.

        Args:
            judgement: What `ruler_score_group` returned for `group`.

        Raises:
            StoreError: The store cannot be written.
        """
        captured = [one for one in self.built if one.captured]
        tell_of_two_rewards(sum(one.reward is not None for one in captured), len(captured))
        for one in self.built:
            if not one.captured:
                one.reward = judgement.scores[record_id(one)]
            elif one.reward is None and (score := judgement.scores.get(one.id)) is not None:
                one.reward = self._recorded[one.id] = score  # the judge's record has it
        for data in by_directory(self.directories):
            with open_store(data, create=True) as store:
                append_scores(store, to_store(judgement))
                self._read_again(store)

    def _read_again(self, store: AnyStore) -> None:
        found = {one.id: one for one in store.trajectories(ids=[one.id for one in self.captured])}
        self.captured = tuple(found.get(one.id, one) for one in self.captured)

    def close(self) -> None:
        """Drop the rollouts that did not begin."""
        for rollout in self._rollouts:
            close_rollout(rollout)

    async def _run(self, slots: asyncio.Semaphore, progress: GatherProgress) -> list[str]:
        """Run all rollouts; returns the ids their trajectories were given."""
        ids = [secrets.token_hex(16) for _ in self._rollouts]
        running = [
            asyncio.ensure_future(_run_one(rollout, id, self, slots, progress))
            for rollout, id in zip(self._rollouts, ids, strict=True)
        ]
        outcomes: Sequence[Any] = ()
        try:
            outcomes = await asyncio.gather(*running)
        except BaseException:  # gather leaves the others running
            for each in running:
                each.cancel()
            outcomes = await asyncio.gather(*running, return_exceptions=True)
            self.close()
            raise
        finally:
            self.exceptions += (outcome for outcome in outcomes if isinstance(outcome, Exception))
            self.results = [None if isinstance(outcome, BaseException) else outcome for outcome in outcomes]
        return ids


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
    require_outcome(size, raised, captured=any(group.captured or group.ready_made for group in groups))
    incomplete = [why for group in groups for why in group.incomplete.values()]
    warn_of_what_is_missing(size, incomplete, sum(group.uncaptured for group in groups), raised)


async def gathered_group(
    group: TrajectoryGroup, slots: asyncio.Semaphore, progress: GatherProgress, after_each: AfterEach | None
) -> list[TrajectoryGroup]:
    """The group, its rollouts run and read back, or what `after_each` makes of it."""
    try:
        ids = await group._run(slots, progress)
    except BaseException:  # Ctrl-C, or too many raised: what rollouts returned before that was paid for
        try:
            await asyncio.to_thread(group.record_rewards)
        except ArttraceError as error:
            _log.warning("rewards of a gather that was ended are not stored: %s", error)
        raise
    await asyncio.to_thread(_read_back, group, ids)
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


async def _run_one(
    rollout: Awaitable[Any], id: str, group: TrajectoryGroup, slots: asyncio.Semaphore, progress: GatherProgress
) -> Any:
    async with slots:
        # This is a task with a context of its own: what is set here reaches the rollout and nothing else.
        set_flow(replace(current_flow(), scope=None, overrides=RunOverrides(trajectory_id=id, group=group.key)))
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
            found |= {one.id: one for one in store.trajectories(ids=there)}
    decorated = [is_driven(rollout) for rollout in group._rollouts]
    captured = [
        found[id]
        for id, own in zip(ids, decorated, strict=True)
        if id in found and (own or found[id].calls or len(found[id].agents) > 1)
    ]
    group.captured = tuple(sorted(captured, key=lambda one: (one.start_ns, one.id)))
    group.uncaptured = len(ids) - len(captured)
