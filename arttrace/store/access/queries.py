"""What is read from a store that this process owns: summaries, trajectories, spans, judgements, SQL.

Summaries are made once and kept until a span or a reward of the trajectory arrives; everything else is read from the
records each time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import duckdb
import msgspec
from msgspec.structs import replace

from arttrace.formats.evaluations import is_reward_span
from arttrace.formats.sdks.tolerant import normalised
from arttrace.formats.sdks.whole_traces.messages_elsewhere import with_messages
from arttrace.records import semconv
from arttrace.records.policy import PolicyStep
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store.access.any_store import AnyStore
from arttrace.store.access.sql import query_pages, run_query
from arttrace.store.bounded_parts import sized_parts, spans_at_once
from arttrace.store.file import cancellation, reading
from arttrace.store.file.connections import SharedFile
from arttrace.store.ingest.pause_gc import gc_paused
from arttrace.store.rows.beginning import read_beginning
from arttrace.store.rows.columns import EVALUATE, GIVEN_TO, MADE_BY, REGROUPED
from arttrace.store.rows.decode import read_spans
from arttrace.store.rows.left_out import IS_MARK, LEFT_OUT, is_mark
from arttrace.store.rows.span_membership import BEGAN, SPLIT, found_on, mark_rewarded, place
from arttrace.store.rows.summary import (
    SUMMARY_VERSION,
    Summarised,
    TrajectorySummary,
    summarised,
)
from arttrace.store.rows.trace_links import above, any_links, below
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.groups import group_key
from arttrace.trajectories.identity.reward_membership import before_colons

_reward = msgspec.json.Decoder(Reward)
_judgement = msgspec.json.Decoder(Judgement)
_policy_step = msgspec.json.Decoder(PolicyStep)
_summary: msgspec.json.Decoder[TrajectorySummary | None] = msgspec.json.Decoder(TrajectorySummary | None)

OF_RUNS = f"operation IS DISTINCT FROM '{EVALUATE}' AND NOT ({IS_MARK}) AND trajectory_id NOT IN ({LEFT_OUT})"
_of_tools = re.compile(r"\btool_calls\b", re.IGNORECASE).search
_of_rewards = re.compile(r"\b(rewards|trajectories|groups)\b", re.IGNORECASE).search
_of_messages = re.compile(r"\b(messages|calls)\b", re.IGNORECASE).search
_TO_READ = f"operation IN {semconv.CALL_OPERATIONS} AND prompt IS NULL"
_ITEMS = "SELECT unnest(?::VARCHAR[])"
_NAMED_ONE_BY_ONE = 32  # then DuckDB knows beforehand what to look for, and skips the blocks that cannot hold it
_SPANS_AT_ONCE, _ROWS_OF_PAGE = 5_000, 200

_Used = tuple[str, list[Any]]


class StoreQueries(AnyStore):
    """The operations of a store that read, over its open file."""

    def __init__(self, data: DataDir, file: SharedFile) -> None:
        self.data = data
        self._file = file

    def recorded_ids(
        self, *, limit: int, before: tuple[int, str] | None = None, since_ns: int | None = None
    ) -> list[tuple[int, str]]:
        """As AnyStore.recorded_ids."""
        earlier = "true" if before is None else f"({BEGAN}, trajectory_id) < (?, ?)"
        later = "true" if since_ns is None else "max(start_ns) >= ?"
        query = f"""SELECT {BEGAN}, trajectory_id FROM span_records
            WHERE trajectory_id IS NOT NULL AND {OF_RUNS} GROUP BY trajectory_id HAVING {earlier} AND {later}
            ORDER BY 1 DESC, 2 DESC LIMIT ?"""  # noqa: S608
        values = [*(before or ()), *([] if since_ns is None else [since_ns]), limit]
        with self._file.reading() as connection:
            rows = connection.execute(query, values).fetchall()
        return [(int(start_ns), id) for start_ns, id in rows]

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
        """As AnyStore.summaries."""
        groups = None if group is None else [group]
        used = _used(unconsumed_by, method)
        asked = None if ids is None else set(ids)
        most = limit
        while True:
            stored_ids = self._stored_ids(ids=ids, groups=groups, entry=entry, since_ns=since_ns, used=used, limit=most)
            kept = self._summaries(stored_ids)
            known = self._consumed(used, {one.id for one in kept})
            found = [
                one
                for one in kept
                if one.id not in known
                and (asked is None or one.id in asked or not asked.isdisjoint(before_colons(one.id)))
                and (group is None or one.group == group)
                and (since_ns is None or one.start_ns >= since_ns)
                and not (complete_only and one.incomplete)
            ]
            if limit is None or most is None or len(found) >= limit or len(stored_ids) < most:
                return sorted(found, key=lambda one: (one.start_ns, one.id), reverse=True)[:limit]
            most *= 4  # some of the newest are parts of others, say

    def trajectory(self, id_or_prefix: str) -> Trajectory:
        """As AnyStore.trajectory."""
        query = f"SELECT DISTINCT trajectory_id FROM span_records WHERE {{}} AND {OF_RUNS} ORDER BY 1"  # noqa: S608
        stored_ids = self._column(query.format("starts_with(trajectory_id, ?)"), [id_or_prefix])
        if id_or_prefix in stored_ids:
            stored_ids = [id_or_prefix]
        elif not stored_ids:
            stored_ids = self._column(query.format(f"trajectory_id IN ({_ITEMS})"), [before_colons(id_or_prefix)])
        ids, found = stored_ids, []
        if len(stored_ids) == 1:
            found = [one for one in self._build(stored_ids) if one.id.startswith(id_or_prefix)]
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
                f"no trajectory {id_or_prefix!r} in {self.data.store}", "`arttrace ls` lists the stored ones."
            )
        return found[0]

    def beginning(self, trajectory_id: str, *, spans: int) -> Trajectory:
        """As AnyStore.beginning."""
        found = [one for one in self._build([trajectory_id], most=spans) if one.id == trajectory_id]
        if not found:
            raise StoreError(f"no run was recorded as {trajectory_id!r} in {self.data.store}")
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
        """As AnyStore.trajectories."""
        keys = None if group is None and groups is None else {*(groups or ()), *([group] if group is not None else ())}
        used = _used(unconsumed_by, method)
        stored_ids = self._stored_ids(ids=ids, groups=None if keys is None else sorted(keys), entry=entry, used=used)
        built = self._build(stored_ids)
        known = self._consumed(used, {one.id for one in built})
        wanted = None if ids is None else set(ids)
        return [
            trajectory
            for trajectory in built
            if trajectory.id not in known
            and (wanted is None or trajectory.id in wanted)
            and (keys is None or group_key(trajectory) in keys)
            and not (complete_only and trajectory.incomplete)
        ]

    def spans(self, trajectory_id: str) -> list[SpanRow]:
        """As AnyStore.spans."""
        with self._file.reading() as connection:
            traces = self._traces(connection, [trajectory_id]) or self._traces(connection, before_colons(trajectory_id))
            return [span for span in self._spans(connection, traces) if not is_mark(span)]

    def spans_of_traces(
        self, traces: Sequence[str], *, first_ns: int | None = None, last_ns: int | None = None
    ) -> list[SpanRow]:
        """As AnyStore.spans_of_traces."""
        query = f"SELECT min(start_ns), max(start_ns) FROM span_records WHERE trace_id IN ({_ITEMS})"  # noqa: S608
        where = f"start_ns BETWEEN ? AND ? AND trace_id IN ({_ITEMS})"
        with self._file.reading() as connection:
            [(first, last)] = connection.execute(query, [list(traces)]).fetchall()
            between = [first if first_ns is None else first_ns, last if last_ns is None else last_ns]
            return [] if first is None else read_spans(connection, where, [*between, list(traces)])

    def judgement(self, key: str) -> Judgement | None:
        """As AnyStore.judgement."""
        query = "SELECT document FROM judgement_records WHERE key = ? ORDER BY time_ns DESC, content_hash LIMIT 1"
        found = self._column(query, [key])
        return _judgement.decode(found[0]) if found else None

    def policy_steps(self, policy: str) -> list[PolicyStep]:
        """As AnyStore.policy_steps."""
        query = """SELECT document FROM policy_step_records WHERE policy = ? QUALIFY row_number() OVER (
            PARTITION BY step ORDER BY time_ns DESC, content_hash DESC) = 1 ORDER BY step"""
        return [_policy_step.decode(document) for document in self._column(query, [policy])]

    def sql(self, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """As AnyStore.sql."""
        self._make_ready(query)
        with cancellation.bounded(), self._file.reading() as connection:
            return run_query(connection, query)

    def sql_pages(self, view: str, key: str) -> Iterator[list[tuple[Any, ...]]]:
        """As AnyStore.sql_pages."""
        query = f'SELECT * FROM "{view}"'  # noqa: S608
        self._make_ready(query)
        with self._file.reading() as connection:  # one answer, which DuckDB makes as it is read
            yield from query_pages(connection, query, _ROWS_OF_PAGE)

    def _make_ready(self, query: str) -> None:
        """Stores what the views that a query names say of runs that were not read before."""
        with self._file.lock:
            connection = self._file.opened()
            with self._file.if_possible():
                if _of_rewards(query):
                    mark_rewarded(connection)
                place(connection, reading.of_runs)
        try:
            # Tool calls that no span recorded, and messages beside their calls, are known once a trajectory is built.
            ids = self._stored_ids(unread=True) if _of_tools(query) else []
            for _ in self._read(self._with_calls_to_read() if not ids and _of_messages(query) else ids):
                pass
        except cancellation.Stopped as stopped:
            why = f"{stopped.message}: it reads the runs that were not read before"
            raise cancellation.Stopped(why, "What was read is kept: try again.") from stopped

    def _stored_ids(
        self,
        *,
        ids: Sequence[str] | None = None,
        groups: Sequence[str] | None = None,
        entry: str | None = None,
        used: _Used | None = None,
        since_ns: int | None = None,
        unread: bool = False,
        limit: int | None = None,
    ) -> list[str]:
        """The ids in `span_records.trajectory_id` that may match the conditions, newest last: those of trajectories, or
        of traces that hold several of them or are part of another one."""
        query = f"SELECT trajectory_id FROM span_records WHERE trajectory_id IS NOT NULL AND {OF_RUNS}"  # noqa: S608
        values: list[Any] = []
        conditions: list[tuple[str, list[Any]]] = []
        if unread:
            query += " AND trajectory_id NOT IN (SELECT trajectory_id FROM summaries WHERE version = ?)"
            values.append(SUMMARY_VERSION)
        if ids is not None:
            query += f" AND trajectory_id IN ({_ITEMS})"
            values.append(sorted({*ids, *(part for id in ids for part in before_colons(id))}))
        if used is not None:
            query += f" AND (trajectory_id NOT IN ({used[0]}) OR {SPLIT})"
            values += used[1]
        if groups is not None:  # a run that says nothing of itself is a group named by its id
            keys = [*groups, *(part for key in groups for part in before_colons(key))]
            joined = self._column(f"SELECT trajectory_id FROM ({REGROUPED}) WHERE key IN ({_ITEMS})", [list(groups)])  # noqa: S608
            ids = [part for id in joined for part in (id, *before_colons(id))]
            conditions.append(
                (
                    # A run recorded as it begins gets its group at its end: its root is there twice, and either counts.
                    "list_contains(?, trajectory_id) OR list_has_any(?,"
                    " coalesce(list(group_key) FILTER (group_key IS NOT NULL), [trajectory_id]))",
                    [ids, keys],
                )
            )
        if entry is not None:
            conditions.append(("list_contains(list(entry), ?)", [entry]))
        if since_ns is not None:
            conditions.append(("max(start_ns) >= ?", [since_ns]))
        query += " GROUP BY trajectory_id"
        if conditions:
            query += " HAVING " + " AND ".join(f"({condition})" for condition, _ in conditions)
            values.extend(value for _, several in conditions for value in several)
        query += f" ORDER BY {BEGAN} DESC, trajectory_id DESC"
        if limit is not None:
            query += " LIMIT ?"
            values.append(limit)
        return self._column(query, values)[::-1]

    def _consumed(self, used: _Used | None, ids: Collection[str]) -> set[str]:
        """The ids of these trajectories that were consumed."""
        if used is None or not ids:
            return set()
        return set(self._column(f"{used[0]} AND trajectory_id IN ({_ITEMS})", [*used[1], list(ids)]))

    def _summaries(self, stored_ids: Sequence[str]) -> list[TrajectorySummary]:
        """Summaries of the spans with these ids: the stored ones, and the others, which are made and stored now."""
        query = f"SELECT trajectory_id, document FROM summaries WHERE version = ? AND trajectory_id IN ({_ITEMS})"  # noqa: S608
        with self._file.reading() as connection:
            rows = connection.execute(query, [SUMMARY_VERSION, list(stored_ids)]).fetchall()
        known = {id for id, _ in rows}
        found = {one.id: one for _, document in rows if (one := _summary.decode(document)) is not None}
        for made in self._read([id for id in stored_ids if id not in known]):
            found.update((one.id, one) for one in made)
        return list(found.values())

    def _read(self, unread: Sequence[str]) -> Iterator[list[TrajectorySummary]]:
        """Summaries that are made and stored now, some at a time."""
        query = f"SELECT trajectory_id, count(*) FROM span_records WHERE trajectory_id IN ({_ITEMS}) GROUP BY 1"  # noqa: S608
        with self._file.reading() as connection:
            [(stored,)] = connection.execute("SELECT count(*) FROM span_records").fetchall()
            spans = dict(connection.execute(query, [list(unread)]).fetchall()) if unread else {}
        done, tell, at_once = 0, reading.of_runs(len(unread)), min(spans_at_once(stored), _SPANS_AT_ONCE)
        for missing in sized_parts(((id, spans.get(id, 0)) for id in unread), at_once):
            yield self._summarise(missing)
            done += len(missing)
            tell(done)

    def _with_calls_to_read(self) -> list[str]:
        """The ids of calls that were not read before and whose messages are not on their spans as such."""
        query = f"SELECT DISTINCT trajectory_id FROM span_records WHERE trajectory_id IS NOT NULL AND {_TO_READ}"  # noqa: S608
        asked = set(self._column(query, []))
        return [id for id in self._stored_ids(unread=True) if id in asked] if asked else []

    def _to_read(self, built: Sequence[Trajectory]) -> set[tuple[str, str]]:
        """Such calls of trajectories, by trace and span id."""
        traces = sorted({placed.call.trace_id for one in built for placed in one.calls})
        query = f"""SELECT trace_id, span_id FROM span_records WHERE trace_id IN ({_ITEMS})
            GROUP BY ALL HAVING count(prompt) = 0"""  # noqa: S608
        with self._file.reading() as connection:
            return set(connection.execute(query, [traces]).fetchall()) if traces else set()

    @gc_paused()
    def _summarise(self, stored_ids: Sequence[str]) -> list[TrajectorySummary]:
        """Make and store summaries. Other threads read and write meanwhile; summaries of what they wrote are made
        again, and then writers wait."""
        seen = self._file.changes
        found = self._summarised(stored_ids)
        with self._file.lock:
            if self._file.changes != seen:
                found = self._summarised(stored_ids)
            if not self._file.closed:
                with self._file.if_possible():
                    self._file.writer.keep_summaries(found)
        return [one for of_id in found.summaries.values() for one in of_id]

    def _summarised(self, stored_ids: Sequence[str]) -> Summarised:
        built = self._build(stored_ids)
        return summarised(stored_ids, built, self._to_read(built))

    @gc_paused()
    def _build(self, stored_ids: Sequence[str], *, most: int | None = None) -> list[Trajectory]:
        """The trajectories of the spans with these ids, or of at most so many of their first spans."""
        if not stored_ids:
            return []
        with self._file.reading() as connection:
            traces = self._traces(connection, stored_ids)
            if any_links(connection):  # a trace may belong to the run that it links to
                traces = above(connection, traces)
            stored = read_beginning(connection, traces, most) if most else self._spans(connection, traces, shared=True)
            rows = connection.execute(GIVEN_TO, {"ids": [*stored_ids, *traces]})
            rewards = [_reward.decode(document) for (document,) in rows.fetchall()]
        spans = with_messages([span for span in stored if not (is_reward_span(span) or is_mark(span))])
        built = build_trajectories(map(normalised, spans), rewards, ids=frozenset(stored_ids), rewarded=found_on(spans))
        query = f"SELECT trajectory_id, key FROM ({REGROUPED}) WHERE key IS NOT NULL AND trajectory_id IN ({_ITEMS})"  # noqa: S608
        with self._file.reading() as connection:
            regrouped = dict(connection.execute(query, [[one.id for one in built]]).fetchall())
        return [replace(one, regrouped=regrouped[one.id]) if one.id in regrouped else one for one in built]

    @staticmethod
    def _traces(connection: duckdb.DuckDBPyConnection, stored_ids: Sequence[str]) -> set[str]:
        """The traces of the spans with these ids, and the traces that link to them."""
        query = f"SELECT DISTINCT trace_id FROM span_records WHERE trajectory_id IN ({_ITEMS}) OR trace_id = ?"  # noqa: S608
        rows = connection.execute(query, [list(stored_ids), stored_ids[0] if stored_ids else ""]).fetchall()
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
    """The query for what a policy was trained on (by `method`, if it is not None), and its values."""
    if policy is None:
        return None
    query = "SELECT trajectory_id FROM consumption WHERE policy = ?"
    if method is None:
        return query, [policy]
    others = f"SELECT step FROM policy_step_records WHERE policy = ? AND {MADE_BY} != ?"  # noqa: S608
    return f"{query} AND step NOT IN ({others})", [policy, policy, method]
