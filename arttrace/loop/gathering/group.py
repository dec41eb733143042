"""TrajectoryGroup: rollouts of one scenario and, once they were gathered, what they became."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from arttrace.capture.api import flush
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.gathering.fixed_list import FixedList
from arttrace.loop.gathering.members import close_rollout, require_member
from arttrace.loop.gathering.outcome import in_words, tell_of_two_rewards
from arttrace.loop.processes.art_arguments import OF_A_GROUP, refusing
from arttrace.loop.recorded.directories import by_directory, captured_runs, directories_of
from arttrace.loop.recorded.scores import append_scores
from arttrace.loop.trajectory import Trajectory as BuiltTrajectory
from arttrace.loop.trajectory import conversation_record, record_id
from arttrace.records.group import Group, new_key
from arttrace.records.reward import Judgement, Reward
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.rewards import to_store, trajectory_reward
from arttrace.store import AnyStore, open_store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir


class TrajectoryGroup:
    """Rollouts of one scenario and, once gathered, their results.

    Args:
        rollouts: Awaitables: calls of coroutine functions, decorated with `@trajectory` or not, not started yet (no
            tasks). Or trajectories that exist already, such as `response.trajectory` of `AsyncClient`, and exceptions
            in the place of those that failed.
        exceptions: Further exceptions.
        metadata: JSON values by name, which each of its runs has among its own.
        tags: Labels of each of its runs; those with `held-out` only measure the policy, and are never trained on.
        metrics: Numbers of the group by name; `log` of a model takes their means as `group_NAME`.
        logs: Lines of text of the program's own.
        key: The group's name, in place of a group or scenario that the decorator sets. By default a new name, so that
            the members are compared with each other and with no earlier run.

    After gathering: `results` are what the rollouts returned, in order (None for one that raised), `exceptions` what
    they raised, and `captured` the recorded runs, in order of start; a rollout that raised is among them, with its
    error as its outcome. `uncaptured` counts rollouts that left no trajectory. `built` are the
    `arttrace.loop.Trajectory` objects that rollouts returned; their rewards are those of their runs, and one that is
    set to None is taken back. `trajectories`, which iteration and `len` use, are `built`, or `captured` if no rollout
    returned such an object; before gathering `len` counts the rollouts. They are not changed in place: those that are
    assigned, `group.trajectories = [...]`, are what is judged and trained on from then on.
    """

    @refusing(OF_A_GROUP)
    def __init__(
        self,
        rollouts: Iterable[Awaitable[Any] | BuiltTrajectory | Exception],
        *,
        exceptions: Iterable[Exception] = (),
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        metrics: Mapping[str, float | int | bool] | None = None,
        logs: Iterable[str] = (),
        key: str | None = None,
    ) -> None:
        members = [*rollouts, *exceptions]
        self.metadata, self.metrics, self.logs = dict(metadata or {}), dict(metrics or {}), list(logs)
        self.tags = tuple(tags)
        for member in members:
            require_member(member)
        self.ready_made = [one for one in members if isinstance(one, BuiltTrajectory)]
        self.exceptions: list[Exception] = [one for one in members if isinstance(one, Exception)]
        self._failed_before = len(self.exceptions)
        self._rollouts = [one for one in members if not isinstance(one, BuiltTrajectory | Exception)]
        self._given = len(self._rollouts)
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

    def log(self, message: str) -> None:
        """Keep a line of text in `logs`.

        Args:
            message: The text.
        """
        self.logs.append(message)

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

    @trajectories.setter
    def trajectories(self, kept: Iterable[Any]) -> None:
        if self.to_gather:
            raise ArttraceError(
                f"{quantity(self.to_gather, 'rollout')} of this group are not gathered",
                "Gather the group first: [group] = await gather_trajectory_groups([group]).",
            )
        members = list(kept)
        for one in members:
            if not isinstance(one, BuiltTrajectory | Trajectory):
                raise ArttraceError(
                    f"a {type(one).__name__} is no trajectory of a group",
                    "Assign those of group.trajectories that are to be kept, or others' trajectories.",
                )
        self.results = [one for one in self.results if not isinstance(one, BuiltTrajectory)]
        self.ready_made = [one for one in members if isinstance(one, BuiltTrajectory)]
        self.captured = tuple(one for one in members if isinstance(one, Trajectory))
        self._given = 0

    @property
    def built(self) -> list[BuiltTrajectory]:
        """The `Trajectory` objects that rollouts returned, and trajectories that existed already."""
        return FixedList([*(one for one in self.results if isinstance(one, BuiltTrajectory)), *self.ready_made])

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
        """By the directory to store them in; one that became None is taken back."""
        found: dict[DataDir, list[Reward]] = {}
        for one in self.built:
            if one.recorded_in and (reward := one.record()) is not None:
                found.setdefault(one.recorded_in, []).append(reward)
        return found

    def _append(self, store: AnyStore, rewards: list[Reward]) -> None:
        append_scores(store, rewards)
        stored = {reward.trajectory_id: reward.value if reward.counts else None for reward in rewards}
        for one in self.built:
            if one.id in stored:
                one.stored_reward = stored[one.id]

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
                one.reward = one.stored_reward = score  # the judge's record has it
        for data in by_directory(self.directories):
            with open_store(data, create=True) as store:
                append_scores(store, to_store(judgement))
                self._read_again(store)

    def read_again(self) -> None:
        """Have `captured` as it is stored now.

        Raises:
            StoreError: A store cannot be opened or asked.
        """
        for data in by_directory({one.id: self._directories[one.id] for one in self.captured}):
            with open_store(data, create=True) as store:
                self._read_again(store)

    def _read_again(self, store: AnyStore) -> None:
        found = {one.id: one for one in store.trajectories(ids=[one.id for one in self.captured])}
        self.captured = tuple(found.get(one.id, one) for one in self.captured)

    def close(self) -> None:
        """Drop the rollouts that did not begin."""
        for rollout in self._rollouts:
            close_rollout(rollout)
