"""AnyStore: what can be asked of a store, whoever owns it. The one list of its operations.

An operation is a method that `Store` implements over the file of this process and `RemoteStore` sends to the owner:
names, arguments and results over the wire are taken from the signatures here (operations.py), so that the two never
differ. Every operation is idempotent: it can be sent again when its answer was cut off.
"""

from __future__ import annotations

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from arttrace.records.policy import PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Judgement
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store.file.prune import Pruned
from arttrace.store.rows.summary import TrajectorySummary
from arttrace.system.paths import DataDir

P = ParamSpec("P")
R = TypeVar("R")


def operation(
    method: Callable[Concatenate[AnyStore, P], R],
) -> Callable[Concatenate[AnyStore, P], R]:
    """Makes a method's signature an operation: where a class does not implement it, `_request` gets its name and the
    arguments that were given."""
    signature = inspect.signature(method)

    @functools.wraps(method)
    def request(self: AnyStore, /, *args: P.args, **kwargs: P.kwargs) -> R:
        _, *given = signature.bind(self, *args, **kwargs).arguments.items()
        result: R = self._request(method.__name__, dict(given))
        return result

    OPERATION_NAMES.append(method.__name__)
    return request


OPERATION_NAMES: list[str] = []
"""The operations, in the order in which they are defined."""


class AnyStore(ABC):
    """A store of runs; use it as a context manager, or close it. Threads may share it. Every operation raises
    StoreError when the store cannot be read."""

    data: DataDir

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Closes the file, or the connection to its owner."""

    @abstractmethod
    def append(self, records: Iterable[Record]) -> None:
        """Stores records: durable in the owner's journal first, then in the tables. A record that is there stays once.

        Args:
            records: Spans, rewards, judgements and so on, as in arttrace.records.

        Raises:
            StoreError: The disk refuses; the records may then be in the store or not.
        """

    def _request(self, name: str, arguments: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    @operation
    def ingest_spool(self) -> int:
        """Takes in what captured processes wrote meanwhile. Returns how many records were new."""
        raise NotImplementedError

    @operation
    def recorded_ids(
        self, *, limit: int, before: tuple[int, str] | None = None, since_ns: int | None = None
    ) -> list[tuple[int, str]]:
        """The ids that runs were recorded under, each after its beginning in nanoseconds since 1970, that of the agent
        above all else where there is one; the newest first. One of a trace may stand for several trajectories, or for a
        part of another one: ask `summaries` for them.

        Args:
            limit: How many at most.
            before: The last one of the page before, so that all can be read page by page.
            since_ns: Those alone of which a span started then or later.
        """
        raise NotImplementedError

    @operation
    def summaries(
        self,
        *,
        ids: Sequence[str] | None = None,
        limit: int | None = None,
        group: str | None = None,
        entry: str | None = None,
        since_ns: int | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[TrajectorySummary]:
        """A summary per trajectory, the newest first. Each is made once and kept until a span or a reward of the
        trajectory comes.

        Args:
            ids: Their ids, or those that they were recorded under; those that are not stored are left out.
            limit: How many at most.
            group: The key of their group.
            entry: The name of their entry point.
            since_ns: The earliest start, in nanoseconds since 1970.
            unconsumed_by: A policy that was not trained on them. With `method` what a fork was copied with is known to
                its manifest alone.
            method: "grpo", "sft" or "dpo": the training that counts for `unconsumed_by`; any by default.
            complete_only: Leave out those that are incomplete.
        """
        raise NotImplementedError

    @operation
    def trajectory(self, id_or_prefix: str) -> Trajectory:
        """One trajectory.

        Args:
            id_or_prefix: Its id, or how no other id begins.

        Raises:
            StoreError: None or several begin so.
        """
        raise NotImplementedError

    @operation
    def beginning(self, trajectory_id: str, *, spans: int) -> Trajectory:
        """What a run began with, built of its first spans alone, so that it comes at once however long the run is. What
        it says of the run as a whole (its end, its counts, whether it is complete) holds for these spans.

        Args:
            trajectory_id: The id that its spans name.
            spans: Of how many spans, taken agent by agent, in the order of a transcript.

        Raises:
            StoreError: No run was recorded under this id, or these spans are none of it.
        """
        raise NotImplementedError

    @operation
    def trajectories(
        self,
        *,
        group: str | None = None,
        groups: Sequence[str] | None = None,
        ids: Sequence[str] | None = None,
        entry: str | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[Trajectory]:
        """Trajectories in order of start; all conditions must hold.

        Args:
            group: The key of their group, as of `groups.group_key`.
            groups: The keys of their groups, any of them.
            ids: Their ids; those that are not stored are left out.
            entry: The name of their entry point.
            unconsumed_by: A policy that was not trained on them, as in `summaries`.
            method: The training that counts for `unconsumed_by`.
            complete_only: Leave out those that are incomplete.
        """
        raise NotImplementedError

    @operation
    def spans(self, trajectory_id: str) -> list[SpanRow]:
        """Every stored version of the spans that name a trajectory, of their traces' other ones, and of the traces that
        link to these, as they came.

        Args:
            trajectory_id: Its id. The id of a trace, or of a conversation in it, gives all the trace's spans.
        """
        raise NotImplementedError

    @operation
    def spans_of_traces(self, traces: Sequence[str]) -> list[SpanRow]:
        """Every stored version of the spans of these traces, as they came.

        Args:
            traces: Trace ids. Those that began about the same time are found without looking through the others.
        """
        raise NotImplementedError

    @operation
    def judgement(self, key: str) -> Judgement | None:
        """The latest judgement with a key, None when there is none.

        Args:
            key: As of `arttrace.rewards.judgement_key`.
        """
        raise NotImplementedError

    @operation
    def policy_steps(self, policy: str) -> list[PolicyStep]:
        """The steps of a policy in order; of one that was recorded twice the later record.

        Args:
            policy: Its name, without a version.
        """
        raise NotImplementedError

    @operation
    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of a query over the views `trajectories`, `calls`, `rewards`, `policy_steps` and
        `spans`. It reads the store and nothing else: no file, no address, whoever asks.

        Args:
            query: One statement of DuckDB's SQL that only reads.

        Raises:
            StoreError: DuckDB refuses it, or it would write.
            Stopped: It takes longer than 300 seconds.
        """
        raise NotImplementedError

    @operation
    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned:
        """Takes out old runs and gives their space back. Which runs policies consumed stays known. The file is written
        anew beside the old one and takes its place at once; until then nothing changes.

        Args:
            before_ns: Take out runs that ended and came in before this time, in nanoseconds since 1970.
            max_bytes: Take out the oldest until the file has at most this size.
            dry_run: Change nothing, and return what would go.

        Returns:
            What was taken out, and the sizes of the file before and after.
        """
        raise NotImplementedError
