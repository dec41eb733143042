"""Store: the owner of one data directory's DuckDB file. Records go in through its journal, trajectories come out.

Only one process at a time can own a store. Whoever opens it takes in the spool that captured processes left.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import duckdb
import msgspec
from msgspec.structs import replace

from arttrace.errors import StoreError, StoreFull
from arttrace.formats.evaluations import is_reward_span
from arttrace.journal import JournalWriter, list_segments
from arttrace.paths import DataDir
from arttrace.records.policy import PolicyStep
from arttrace.records.record import Record, encode_record
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store.access.sql import run_query
from arttrace.store.file import cancellation
from arttrace.store.file.connections import SharedFile
from arttrace.store.file.duckdb_file import copy_beside
from arttrace.store.file.interrupts import ctrl_c_as_usual
from arttrace.store.file.prune import Pruned, copy_kept, runs, sources, within
from arttrace.store.ingest.pause_gc import without_collection
from arttrace.store.ingest.read_ahead import ReadAhead
from arttrace.store.ingest.segments import take_in
from arttrace.store.rows.columns import EVALUATE
from arttrace.store.rows.conventions import normalised
from arttrace.store.rows.decode import read_spans
from arttrace.store.rows.span_membership import found_on, place
from arttrace.store.rows.summary import SUMMARY_VERSION, InferredTool, TrajectorySummary, inferred_tools, summarise
from arttrace.store.rows.trace_links import above, any_links, below
from arttrace.store.rows.views import REGROUPED
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.groups import group_key
from arttrace.trajectories.identity.reward_membership import before_colons

_span = msgspec.json.Decoder(SpanRow)
_reward = msgspec.json.Decoder(Reward)
_judgement = msgspec.json.Decoder(Judgement)
_policy_step = msgspec.json.Decoder(PolicyStep)
_summary: msgspec.json.Decoder[TrajectorySummary | None] = msgspec.json.Decoder(TrajectorySummary | None)

_OF_RUNS = f"operation IS DISTINCT FROM '{EVALUATE}'"
_of_tools = re.compile(r"\btool_calls\b", re.IGNORECASE).search
_ITEMS = "SELECT unnest(?::VARCHAR[])"
_NAMED_ONE_BY_ONE = 32  # then DuckDB knows beforehand what to look for, and skips the blocks that cannot hold it
_SPANS_AT_ONCE = 5_000  # of runs that are built: fewer, and the tables are looked through more often
_REOPENED_AFTER = 200_000  # records: DuckDB keeps something of every row it has written, about 150 bytes of each span

_Used = tuple[str, list[Any]]

_MADE_BY = """coalesce(json_extract_string(document, '$.method'), CASE
    WHEN json_extract_string(document, '$.metrics.learned_tokens') IS NULL THEN 'grpo'
    WHEN coalesce(json_extract_string(document, '$.metrics.accuracy')::DOUBLE, 0) > 0 THEN 'dpo' ELSE 'sft' END)"""
"""PolicyStep.made_by in SQL."""


class Store:
    """An open store; threads may share it. Use `Store.open`, and close it (or use it as a context manager)."""

    def __init__(self, data: DataDir, file: SharedFile, ahead: ReadAhead | None = None) -> None:
        self.data = data
        self._file = file
        self._journal = JournalWriter(data.journal, fsync_interval_s=None)
        self._journaling = threading.Lock()
        self._ahead = ahead

    @classmethod
    def open(cls, data: DataDir, *, create: bool = False, take_in: bool = True, read_ahead: bool = False) -> Store:
        """The store of a data directory, with all of its spool and journal taken in, unless `take_in` leaves that to
        the first `ingest_spool`. `read_ahead` lets a process of its own read a backlog, where a core is free.

        It is made when `create` is given or when a spool waits for it. Raises StoreError when there is neither store
        nor spool, when another process owns it (naming it), when it is damaged, or when its schema is not known.
        """
        if not create and not data.store.exists() and not list_segments(data.spool) and not list_segments(data.journal):
            last_run = data.last_run()
            if last_run is not None:
                raise StoreError(
                    f"no store in {data.root}: nothing has been captured there yet",
                    f"The last `arttrace run` said: {last_run}",
                )
            raise StoreError(
                f"no store in {data.root}",
                "Run an agent first (`arttrace run -- python agent.py`, or decorate its entry with @trajectory), "
                "or pass the directory that holds one with --dir.",
            )
        store = cls(data, SharedFile(data.store), ReadAhead() if read_ahead else None)
        try:
            if take_in:
                store._take_in(data.journal)  # what a former owner could not load any more
                store.ingest_spool()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Closes the file; the second time does nothing. Whatever was appended is in it, or in the journal and is
        loaded at the next open."""
        with self._file.lock:
            if self._file.closed:
                return
            self._file.closed = True
            with contextlib.ExitStack() as at_last:
                at_last.callback(self._file.close)
                if self._ahead is not None:
                    at_last.callback(self._ahead.close)
                self._journal.close()
                if not self._file.spoilt:
                    self._load_from(self.data.journal)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- in ------------------------------------------------------------------------------------------------

    def journal(self, records: Iterable[Record]) -> None:
        """Returns when the records are durable in the journal; `load` (or the next open) brings them into the store.

        Raises StoreError when the disk refuses: the records that were given may then be in the store or not.
        """
        with self._journaling:  # a flush that fails is raised to those whose records it was for
            try:
                for record in records:
                    self._journal.append(encode_record(record))
                self._journal.sync()
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._journal.sync()
                raise StoreFull(
                    f"the journal in {self.data.journal} cannot be written: {error.strerror or error}",
                    "Free disk space or correct the directory's permissions, then try again.",
                ) from error

    def load(self) -> int:
        """Brings what is in the journal into the store. Returns how many records were new."""
        return self._take_in(self.data.journal)

    def append(self, records: Iterable[Record]) -> None:
        """Stores records: durable in the journal first, then in the tables. A record that is there stays once."""
        self.journal(records)
        self.load()

    def ingest_spool(self) -> int:
        """Takes in what captured processes wrote meanwhile. Returns how many records were new."""
        return self._take_in(self.data.spool)

    def _take_in(self, directory: Path) -> int:
        with self._file.lock:
            self._file.for_writing()
            return self._load_from(directory)

    def _load_from(self, directory: Path) -> int:
        file = self._file
        try:
            total = 0
            while True:
                with ctrl_c_as_usual():
                    for new in take_in(file.connection, file.writer, directory, self._ahead):
                        total += new
                        file.taken_in += new
                        if file.taken_in >= _REOPENED_AFTER and not file.readers and not file.closed:
                            break
                    else:
                        return total
                file.reopen()
        except (duckdb.Error, OSError) as error:
            file.spoilt = True
            raise StoreFull(
                f"the store {self.data.store} could not be written: {error}",
                f"Free disk space. Nothing is lost: what was not stored is still in {directory}.",
            ) from error

    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned:
        """Takes out runs that ended and came in before a time, and the oldest until the file has at most this size,
        and gives their space back. Which runs policies consumed stays known. The file is written anew beside the old
        one and takes its place at once; until then nothing changes."""
        target = copy_beside(self.data.store)
        with self._file.lock:
            try:
                with self._file.rewriting() as connection:
                    connection.execute("CHECKPOINT")
                    before = self.data.store.stat().st_size
                    found = runs(connection)
                    whole = sum(run.size for run in found)
                    budget = None if max_bytes is None or before <= max_bytes else int(whole * max_bytes / before)
                    kept = within(found, before_ns=before_ns, max_size=budget)
                    after = None
                    rewrite = not dry_run and len(kept) < len(found)
                    if rewrite:
                        copy_kept(connection, target, kept)
                        while max_bytes is not None and kept and target.stat().st_size > max_bytes:  # was estimated
                            kept = within(kept, before_ns=None, max_size=sum(run.size for run in kept) * 3 // 4)
                            copy_kept(connection, target, kept)
                    gone = sources(connection, found, kept)
                    if rewrite:
                        self._file.reopen(target)
                        after = self.data.store.stat().st_size
            except (duckdb.Error, OSError, StoreError) as error:
                target.unlink(missing_ok=True)
                raise StoreError(
                    f"the store {self.data.store} could not be written anew: {error}",
                    "Nothing that was to be kept is lost. There must be room for it beside the store.",
                ) from error
        return Pruned(
            trajectories=sum(len(run.trajectories) for run in found) - sum(len(run.trajectories) for run in kept),
            spans=sum(run.spans for run in found) - sum(run.spans for run in kept),
            kept_trajectories=sum(len(run.trajectories) for run in kept),
            bytes_before=before,
            bytes_after=before if after is None and not dry_run else after,
            sources=gone,
        )

    # --- out -----------------------------------------------------------------------------------------------

    def summaries(
        self,
        *,
        limit: int | None = None,
        group: str | None = None,
        entry: str | None = None,
        since_ns: int | None = None,
        unconsumed_by: str | None = None,
        method: str | None = None,
        complete_only: bool = False,
    ) -> list[TrajectorySummary]:
        """One line per trajectory, the newest first, filtered by group key, entry or earliest start; `unconsumed_by`
        names a policy that must not have trained on it, by `method` where that is given; what a fork was copied with
        is known to its manifest alone then. Made once and kept until a span or a reward of the
        trajectory comes."""
        groups = None if group is None else [group]
        most = None if complete_only else limit
        used = _used(unconsumed_by, method)
        given = self._given(groups=groups, entry=entry, since_ns=since_ns, used=used, limit=most)
        kept = self._summaries(given)
        known = self._consumed(used, {one.id for one in kept} - set(given))
        found = [
            one
            for one in kept
            if one.id not in known
            and (group is None or one.group == group)
            and (since_ns is None or one.start_ns >= since_ns)
            and not (complete_only and one.incomplete)
        ]
        if most is not None and len(found) < most <= len(given):  # some of the newest are parts of others, say
            every = self.summaries(
                group=group, entry=entry, since_ns=since_ns, unconsumed_by=unconsumed_by, method=method
            )
            return every[:limit]
        return sorted(found, key=lambda one: (one.start_ns, one.id), reverse=True)[:limit]

    def trajectory(self, id_or_prefix: str) -> Trajectory:
        """The trajectory with this id, or the only one whose id begins so. Raises StoreError for none or several."""
        query = f"SELECT DISTINCT trajectory_id FROM span_records WHERE {{}} AND {_OF_RUNS} ORDER BY 1"  # noqa: S608
        given = self._column(query.format("starts_with(trajectory_id, ?)"), [id_or_prefix])
        if id_or_prefix in given:
            given = [id_or_prefix]
        elif not given:
            given = self._column(query.format(f"trajectory_id IN ({_ITEMS})"), [before_colons(id_or_prefix)])
        ids, found = given, []
        if len(given) == 1:
            found = [one for one in self._build(given) if one.id.startswith(id_or_prefix)]
            found = [one for one in found if one.id == id_or_prefix] or found
            ids = [one.id for one in found]
        if len(ids) > 1:
            raise StoreError(
                f"{len(ids)} trajectories begin with {id_or_prefix!r}: {', '.join(ids[:4])}"
                + (", ..." if len(ids) > 4 else ""),
                "Give more of the id.",
            )
        if not found:
            raise StoreError(
                f"no trajectory {id_or_prefix!r} in {self.data.store}", "`arttrace ls` lists those there are."
            )
        return found[0]

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
        """Trajectories in order of start. All conditions given must hold; `group` and `groups` are keys as of
        groups.group_key, `unconsumed_by` names a policy that must not have trained on them, by `method` where that is
        given, as in `summaries`."""
        keys = None if group is None and groups is None else {*(groups or ()), *([group] if group is not None else ())}
        used = _used(unconsumed_by, method)
        given = self._given(groups=None if keys is None else sorted(keys), entry=entry, used=used)
        if ids is not None:
            named = {*ids, *(part for id in ids for part in before_colons(id))}
            given = [id for id in given if id in named]
        built = self._build(given)
        known = self._consumed(used, {one.id for one in built} - set(given))
        return [
            trajectory
            for trajectory in built
            if trajectory.id not in known
            and (ids is None or trajectory.id in ids)
            and (keys is None or group_key(trajectory) in keys)
            and not (complete_only and trajectory.incomplete)
        ]

    def spans(self, trajectory_id: str) -> list[SpanRow]:
        """Every stored version of the spans that name this trajectory, of their traces' other ones, and of the traces
        that link to these, as they came. The id of a trace, or of a conversation in it, gives all the trace's spans."""
        with self._file.reading() as connection:
            traces = self._traces(connection, [trajectory_id]) or self._traces(connection, before_colons(trajectory_id))
            return self._spans(connection, traces)

    def spans_of_traces(self, traces: Sequence[str]) -> list[SpanRow]:
        """Every stored version of the spans of these traces, as they came. Traces that began about the same time are
        found without looking through the others."""
        query = f"SELECT min(start_ns), max(start_ns) FROM span_records WHERE trace_id IN ({_ITEMS})"  # noqa: S608
        where = f"start_ns BETWEEN ? AND ? AND trace_id IN ({_ITEMS})"
        with self._file.reading() as connection:
            [(first, last)] = connection.execute(query, [list(traces)]).fetchall()
            return [] if first is None else read_spans(connection, where, [first, last, list(traces)])

    def judgement(self, key: str) -> Judgement | None:
        """The latest judgement with this key."""
        query = "SELECT document FROM judgement_records WHERE key = ? ORDER BY time_ns DESC, content_hash LIMIT 1"
        found = self._column(query, [key])
        return _judgement.decode(found[0]) if found else None

    def policy_steps(self, policy: str) -> list[PolicyStep]:
        """The steps of a policy in order; of one that was recorded twice the later record."""
        query = """SELECT document FROM policy_step_records WHERE policy = ? QUALIFY row_number() OVER (
            PARTITION BY step ORDER BY time_ns DESC, content_hash DESC) = 1 ORDER BY step"""
        return [_policy_step.decode(document) for document in self._column(query, [policy])]

    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Column names and rows of a query over the views `trajectories`, `calls`, `rewards`, `policy_steps` and
        `spans`. It reads the store and nothing else: no file, no address, whoever asks. Raises StoreError when DuckDB
        refuses it, or when it is not one that only reads; Stopped when it takes longer than 300 seconds."""
        with self._file.lock:
            connection = self._file.opened()
            with self._file.if_possible():
                place(connection)
        if _of_tools(query):  # those that no span recorded are known once a trajectory is built
            self._summaries(self._given())
        with cancellation.bounded(), self._file.reading() as connection:
            return run_query(connection, query)

    def _given(
        self,
        *,
        groups: Sequence[str] | None = None,
        entry: str | None = None,
        used: _Used | None = None,
        since_ns: int | None = None,
        limit: int | None = None,
    ) -> list[str]:
        """The ids that spans were given under (`span_records.trajectory_id`) which may hold what was asked for, the
        newest last: trajectories, but for traces that hold several of them, or are a part of another one."""
        query = f"SELECT trajectory_id FROM span_records WHERE trajectory_id IS NOT NULL AND {_OF_RUNS}"  # noqa: S608
        values: list[Any] = []
        conditions: list[tuple[str, list[Any]]] = []
        if used is not None:
            query += f" AND trajectory_id NOT IN ({used[0]})"
            values += used[1]
        if groups is not None:  # a run that says nothing of itself is a group named by its id
            keys = [*groups, *(part for key in groups for part in before_colons(key))]
            joined = self._column(f"SELECT trajectory_id FROM ({REGROUPED}) WHERE key IN ({_ITEMS})", [list(groups)])  # noqa: S608
            ids = [part for id in joined for part in (id, *before_colons(id))]
            conditions.append(
                (
                    "list_contains(?, CASE WHEN list_contains(?, trajectory_id) THEN ?"
                    " ELSE coalesce(any_value(group_key), trajectory_id) END)",
                    [keys, ids, keys[0]],
                )
            )
        if entry is not None:
            conditions.append(("any_value(entry) = ?", [entry]))
        if since_ns is not None:
            conditions.append(("max(start_ns) >= ?", [since_ns]))
        query += " GROUP BY trajectory_id"
        if conditions:
            query += " HAVING " + " AND ".join(condition for condition, _ in conditions)
            values.extend(value for _, several in conditions for value in several)
        query += " ORDER BY min(start_ns) DESC, trajectory_id DESC"
        if limit is not None:
            query += " LIMIT ?"
            values.append(limit)
        return self._column(query, values)[::-1]

    def _consumed(self, used: _Used | None, ids: Collection[str]) -> set[str]:
        """Those of these trajectories that are used up."""
        if used is None or not ids:
            return set()
        return set(self._column(f"{used[0]} AND trajectory_id IN ({_ITEMS})", [*used[1], list(ids)]))

    def _summaries(self, given: Sequence[str]) -> list[TrajectorySummary]:
        """Summaries of what was given under these ids: those that are kept, the others made now and kept from now
        on."""
        query = f"SELECT trajectory_id, document FROM summaries WHERE version = ? AND trajectory_id IN ({_ITEMS})"  # noqa: S608
        with self._file.reading() as connection:
            rows = connection.execute(query, [SUMMARY_VERSION, list(given)]).fetchall()
        known = {id for id, _ in rows}
        found = {one.id: one for _, document in rows if (one := _summary.decode(document)) is not None}
        for missing in self._parts([id for id in given if id not in known]):
            found.update((one.id, one) for one in self._summarise(missing))
        return list(found.values())

    def _parts(self, given: Sequence[str]) -> Iterator[list[str]]:
        """What was given under these ids in parts of about `_SPANS_AT_ONCE` spans, in the same order."""
        query = f"SELECT trajectory_id, count(*) FROM span_records WHERE trajectory_id IN ({_ITEMS}) GROUP BY 1"  # noqa: S608
        with self._file.reading() as connection:
            spans = dict(connection.execute(query, [list(given)]).fetchall()) if given else {}
        part: list[str] = []
        held = 0
        for id in given:
            part.append(id)
            held += spans.get(id, 0)
            if held >= _SPANS_AT_ONCE:
                yield part
                part, held = [], 0
        if part:
            yield part

    @without_collection()
    def _summarise(self, given: Sequence[str]) -> list[TrajectorySummary]:
        """Summaries made and kept."""
        with self._file.lock:  # so that no span comes between building a summary and keeping it
            made: dict[str, list[TrajectorySummary]] = {id: [] for id in given}
            tools: dict[str, list[InferredTool]] = {}
            for trajectory in self._build(given):
                id = next(id for id in (trajectory.id, *before_colons(trajectory.id)) if id in made)
                made[id].append(summarise(trajectory))
                if found := inferred_tools(trajectory):
                    tools.setdefault(id, []).extend(found)
            with self._file.if_possible():
                self._file.writer.keep_summaries(made, tools)
        return [one for of_id in made.values() for one in of_id]

    @without_collection()
    def _build(self, given: Sequence[str]) -> list[Trajectory]:
        """The trajectories of what was given under these ids."""
        if not given:
            return []
        with self._file.reading() as connection:
            traces = self._traces(connection, given)
            if any_links(connection):  # a trace may belong to the run that it links to
                traces = above(connection, traces)
            stored = self._spans(connection, traces, shared=True)
            query = f"SELECT document FROM reward_records WHERE trajectory_id IN ({_ITEMS})"  # noqa: S608
            named = [*given, *traces]
            rows = connection.execute(f"{query} OR split_part(trajectory_id, ':', 1) IN ({_ITEMS})", [named, named])
            rewards = [_reward.decode(document) for (document,) in rows.fetchall()]
        spans = [span for span in stored if not is_reward_span(span)]
        built = build_trajectories(map(normalised, spans), rewards, ids=frozenset(given), rewarded=found_on(spans))
        query = f"SELECT trajectory_id, key FROM ({REGROUPED}) WHERE key IS NOT NULL AND trajectory_id IN ({_ITEMS})"  # noqa: S608
        with self._file.reading() as connection:
            regrouped = dict(connection.execute(query, [[one.id for one in built]]).fetchall())
        return [replace(one, regrouped=regrouped[one.id]) if one.id in regrouped else one for one in built]

    @staticmethod
    def _traces(connection: duckdb.DuckDBPyConnection, given: Sequence[str]) -> set[str]:
        """The traces of what was given under these ids, and those that link to them."""
        query = f"SELECT DISTINCT trace_id FROM span_records WHERE trajectory_id IN ({_ITEMS}) OR trace_id = ?"  # noqa: S608
        rows = connection.execute(query, [list(given), given[0] if given else ""]).fetchall()
        traces = {trace for (trace,) in rows}
        return below(connection, traces) if any_links(connection) else traces

    @staticmethod
    def _spans(
        connection: duckdb.DuckDBPyConnection, traces: Collection[str], *, shared: bool = False
    ) -> list[SpanRow]:
        if len(traces) <= _NAMED_ONE_BY_ONE:
            named = ", ".join("?" * len(traces)) or "NULL"
            return read_spans(connection, f"trace_id IN ({named})", list(traces), shared=shared)
        return read_spans(connection, f"trace_id IN ({_ITEMS})", [list(traces)], shared=shared)

    def _column(self, query: str, values: Sequence[Any]) -> list[Any]:
        with self._file.reading() as connection:
            return [value for (value,) in connection.execute(query, values).fetchall()]


def _used(policy: str | None, method: str | None) -> _Used | None:
    """The query for what a policy was trained on, by `method` where that is given, and its values."""
    if policy is None:
        return None
    query = "SELECT trajectory_id FROM consumption WHERE policy = ?"
    if method is None:
        return query, [policy]
    others = f"SELECT step FROM policy_step_records WHERE policy = ? AND {_MADE_BY} != ?"  # noqa: S608
    return f"{query} AND step NOT IN ({others})", [policy, policy, method]
