"""AnyStore: the operations of a store, whichever process owns it.

An operation is a method that `Store` implements over the file of this process and `RemoteStore` sends to the owner:
names, arguments and results over the wire are taken from the signatures here (operations.py), so that the two never
differ. Every operation is idempotent: it can be sent again when its answer was cut off.
"""

from __future__ import annotations

import functools
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from arttrace.records.policy import PolicyStep
from arttrace.records.record import Record
from arttrace.records.reward import Judgement
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store.file.prune import Pruned
from arttrace.store.rows.summary import TrajectorySummary
from arttrace.store.unread import UnreadThere
from arttrace.system.paths import DataDir

_PARTS, _LEAST_ROWS, _MOST_ROWS = 20, 500, 20_000
"""Of a view that an owner is asked for: for each part it looks through the whole view."""

P = ParamSpec("P")
R = TypeVar("R")


def operation(
    method: Callable[Concatenate[AnyStore, P], R],
) -> Callable[Concatenate[AnyStore, P], R]:
    """Makes a method's signature an operation: in a class that does not implement it, `_request` is called with its
    name and arguments."""
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
    """A store of runs. Use it as a context manager, or close it. Threads may share it. Every operation raises
    StoreError if the store cannot be read."""

    data: DataDir

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @abstractmethod
    def close(self) -> None:
        """Close the file, or the connection to its owner."""

    @abstractmethod
    def append(self, records: Iterable[Record]) -> int:
        """Store records: in the owner's journal first, where they are durable, then in the tables. A record that is
        stored already is not stored twice. Returns how many were new.

        Args:
            records: Spans, rewards, judgements and so on, as in arttrace.records.

        Raises:
            StoreError: The disk takes no more; the records may then be stored or not.
        """

    def _request(self, name: str, arguments: Mapping[str, Any]) -> Any:
        raise NotImplementedError

    @operation
    def ingest_spool(self) -> int:
        """Ingest what captured processes have written meanwhile. Returns the number of new records."""
        raise NotImplementedError

    @operation
    def recorded_ids(
        self, *, limit: int, before: tuple[int, str] | None = None, since_ns: int | None = None
    ) -> list[tuple[int, str]]:
        """The ids that runs were recorded under, newest first, as tuples (start in nanoseconds since 1970, id). The
        start is that of the root agent's span if there is one. The id of a trace may stand for several trajectories, or
        for a part of another one: `summaries` says which.

        Args:
            limit: How many at most.
            before: The last tuple of the previous page, for reading all of them page by page.
            since_ns: Only ids with a span that started then or later.
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
        """A summary per trajectory, newest first. A summary is kept until a span or a reward of the trajectory arrives.

        Args:
            ids: Their ids, or the ids that they were recorded under; ids that are not stored are ignored.
            limit: How many at most.
            group: The key of their group; see `group_key` in arttrace.trajectories.groups.
            entry: The name of their entry point.
            since_ns: The earliest start, in nanoseconds since 1970.
            unconsumed_by: The name of a policy that was not trained on them. With `method`, what a fork was copied with
                is known to its manifest alone.
            method: "grpo", "distill", "sft" or "dpo": only this training counts for `unconsumed_by`; by default any.
            complete_only: Leave out those that are incomplete.
        """
        raise NotImplementedError

    @operation
    def trajectory(self, id_or_prefix: str) -> Trajectory:
        """One trajectory.

        Args:
            id_or_prefix: Its id, or a prefix that no other id has.

        Raises:
            StoreError: No id or several ids begin so.
        """
        raise NotImplementedError

    @operation
    def beginning(self, trajectory_id: str, *, spans: int) -> Trajectory:
        """The beginning of a run, built from its first spans alone, so that it is there at once however long the run
        is. Its end, its counts and whether it is complete refer to these spans only.

        Args:
            trajectory_id: The id that its spans name.
            spans: The number of spans, taken agent by agent in the order of a transcript.

        Raises:
            StoreError: No run was recorded under this id, or these spans do not belong to it.
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
        """Trajectories in order of start. All conditions must hold.

        Args:
            group: The key of their group, as of `groups.group_key`.
            groups: The keys of their groups; one of them must match.
            ids: Their ids; ids that are not stored are ignored.
            entry: The name of their entry point.
            unconsumed_by: The name of a policy that was not trained on them, as in `summaries`.
            method: "grpo", "distill", "sft" or "dpo", as in `summaries`.
            complete_only: Leave out those that are incomplete.
        """
        raise NotImplementedError

    @operation
    def spans(self, trajectory_id: str) -> list[SpanRow]:
        """Every stored version of the spans that name a trajectory, of the other spans of their traces, and of the
        traces that link to these, as they arrived.

        Args:
            trajectory_id: Its id. For the id of a trace, or of a conversation in it, all spans of the trace are
                returned.
        """
        raise NotImplementedError

    @operation
    def spans_of_traces(
        self, traces: Sequence[str], *, first_ns: int | None = None, last_ns: int | None = None
    ) -> list[SpanRow]:
        """Every stored version of the spans of these traces, as they arrived.

        Args:
            traces: Trace ids. Traces that began about the same time are found without a scan of the others.
            first_ns: Only those that began then or later.
            last_ns: Only those that began then or before.
        """
        raise NotImplementedError

    @operation
    def judgement(self, key: str) -> Judgement | None:
        """The latest judgement with a key, or None.

        Args:
            key: The key, from `arttrace.rewards.judgement_key`.
        """
        raise NotImplementedError

    @operation
    def policy_steps(self, policy: str) -> list[PolicyStep]:
        """The steps of a policy, in order. Of a step that was recorded twice, the later record is returned.

        Args:
            policy: Its name, without a version.
        """
        raise NotImplementedError

    @operation
    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of a query over the views `trajectories`, `calls`, `rewards`, `policy_steps` and
        `spans`. It reads the store and nothing else: no file, no address, whoever asks.

        Args:
            query: One statement in DuckDB's SQL that only reads.

        Raises:
            StoreError: DuckDB refuses the query, or it would write.
            Stopped: The query takes longer than 300 seconds.
        """
        raise NotImplementedError

    def sql_pages(self, view: str, key: str) -> Iterator[list[tuple[Any, ...]]]:
        """All rows of a view, a bounded number at a time. What comes into the store meanwhile may be among them or not.

        Args:
            view: Its name.
            key: The column by whose values the rows are parted where the owner is asked for one page after the other.

        Raises:
            StoreError: As sql does.
        """
        [(total,)] = self.sql(f'SELECT count(*) FROM "{view}"')[1]  # noqa: S608
        rows = min(max(total // _PARTS, _LEAST_ROWS), _MOST_ROWS)
        parts = max(math.ceil(total / rows), 1)
        for part in range(parts):
            where = f"WHERE hash(coalesce(\"{key}\"::VARCHAR, '')) % {parts} = {part}" if parts > 1 else ""
            yield self.sql(f'SELECT * FROM "{view}" {where}')[1]  # noqa: S608

    @operation
    def unread(self) -> UnreadThere:
        """What the owner's collector and journals could not read, of which no run is known to lack it.

        Raises:
            NotUnderstood: The owner is of a version that does not say.
        """
        raise NotImplementedError

    @operation
    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned:
        """Remove old runs and free their space. The record of which runs policies consumed is kept. A new file is
        written beside the old one and replaces it in one step; until then nothing changes.

        Args:
            before_ns: Remove runs that ended and arrived before this time, in nanoseconds since 1970.
            max_bytes: Remove the oldest runs until the file has at most this size in bytes.
            dry_run: Change nothing, and return what would be removed.

        Returns:
            What was removed, and the sizes of the file before and after.
        """
        raise NotImplementedError
