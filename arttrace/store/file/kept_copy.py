"""The copy of a store with some of its runs, which is to take its place: all but a little of it is written while the
store is read and written.

First goes what was stored of the runs when they were chosen; then, while everybody waits, what came since and the small
tables. A run of which something came since stays, whatever was chosen: its late spans alone would be another run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import msgspec

from arttrace.store.arrow_tables import arrow_table
from arttrace.store.file.duckdb_file import bytes_in_use, create, name_of
from arttrace.store.rows.left_out import IS_MARK, IS_STAND_IN
from arttrace.store.sql_text import quoted
from arttrace.store.transactions import registered

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = ("grouping_records", "judgement_records", "policy_step_records", "consumption", "ingested_segments")
"""Tables that are kept as they are."""

_OF_TRACES = ("span_records", "prompts", "token_prompts")
_GROWING = (*_OF_TRACES, "texts", "links")
"""Tables whose rows are never taken out nor put elsewhere: what came later has a higher rowid."""
_MARKS_KEPT_NS = 7 * 24 * 3_600_000_000_000

NewestRows = dict[str, int]
"""The rowid of the newest row of each growing table; -1 where it is empty."""


class PrunableRun(msgspec.Struct):
    """Trajectories (the ids under which their spans are stored) and traces that share spans or are linked: they stay or
    go together. `last_ns` is when the last of it ended or came in, whichever is later: what was imported yesterday is
    new, whenever it happened. `size` is the bytes of its spans as JSON."""

    trajectories: set[str]
    traces: set[str]
    project: str = ""
    origin: int | None = None
    """texts.id of the resource and scope of its first span."""
    last_ns: int = 0
    size: int = 0
    spans: int = 0
    first_start_ns: int = 0
    last_start_ns: int = 0
    shown: set[str] = msgspec.field(default_factory=set)
    """The ids of the trajectories that they are: an agent in a trace of its own that links to another is part of that
    one, and conversations split a trace."""
    left_out: bool = False
    """Whether sampling left out all of them, for good."""
    goes_on: bool = False
    """Whether something of it has not ended, and something came in the last day: what comes later would count as whole
    without what went. One that was killed goes a day after."""


def newest_rows(connection: duckdb.DuckDBPyConnection) -> NewestRows:
    """Up to where the tables reach now."""
    rows = {}
    for table in _GROWING:
        [(rows[table],)] = connection.execute(f"SELECT coalesce(max(rowid), -1) FROM {table}").fetchall()  # noqa: S608
    return rows


def copy_kept(
    connection: duckdb.DuckDBPyConnection, target: Path, kept: Sequence[PrunableRun], until: NewestRows
) -> None:
    """A store in a file of its own with what the growing tables hold of these runs up to some rows."""
    create(target).close()
    traces = [trace for run in kept for trace in run.traces]
    with _attached(connection, target), registered(connection, _traces=_ids(traces)):
        for table in _OF_TRACES:
            wanted = "trace_id IN (SELECT id FROM _traces) AND rowid <= ?"
            query = f"INSERT INTO kept.{table} SELECT * FROM {table} WHERE {wanted} ORDER BY rowid"  # noqa: S608
            connection.execute(query, [until[table]])
        connection.execute(
            """INSERT INTO kept.texts SELECT * FROM texts WHERE id IN (
                SELECT unnest(messages) FROM kept.prompts
                UNION SELECT unnest([tools, instructions, origin]) FROM kept.span_records) ORDER BY rowid"""
        )
        connection.execute("CHECKPOINT kept")


def copy_rest(
    connection: duckdb.DuckDBPyConnection,
    target: Path,
    found: Sequence[PrunableRun],
    kept: Sequence[PrunableRun],
    until: NewestRows,
) -> tuple[list[PrunableRun], int]:
    """Makes it whole, and durable, with what came since. Returns the runs of those `found` that it holds, and its bytes
    in use."""
    traces, trajectories = _since(connection, until)
    stay = {id(run) for run in kept}
    of_kept = {trace for run in kept for trace in run.traces}
    held = [run for run in found if id(run) in stay or run.traces & traces or run.trajectories & trajectories]
    late = traces.union(*(run.traces for run in held)) - of_kept
    trajectories = trajectories.union(*(run.trajectories for run in held))
    tables = {"_late": _ids(late), "_traces": _ids(late | of_kept), "_trajectories": _ids(trajectories)}
    with _attached(connection, target), registered(connection, **tables):
        _copy_late(connection, until)
        _copy_small(connection)
        connection.execute("CHECKPOINT kept")
        return held, bytes_in_use(connection, "kept")


def _since(connection: duckdb.DuckDBPyConnection, until: NewestRows) -> tuple[set[str], set[str]]:
    """The traces of which spans came after those rows, those with links between them and these, and the trajectories
    that the spans name."""
    spans = f"span_records WHERE rowid > {until['span_records']} AND NOT ({IS_MARK})"
    traces = {trace for (trace,) in connection.execute(f"SELECT DISTINCT trace_id FROM {spans}").fetchall()}  # noqa: S608
    with registered(connection, _fresh=_ids(traces)):
        linked = connection.execute(
            f"""SELECT trace_id, linked_trace_id FROM links WHERE rowid > {until["links"]}
            OR linked_trace_id IN (SELECT id FROM _fresh)"""  # noqa: S608
        ).fetchall()
    named = connection.execute(
        f"SELECT DISTINCT trajectory_id FROM {spans} AND trajectory_id IS NOT NULL"  # noqa: S608
    ).fetchall()
    return traces.union(*linked), {trajectory for (trajectory,) in named}


def _copy_late(connection: duckdb.DuckDBPyConnection, until: NewestRows) -> None:
    """What came since, what was there before of runs that stay because of it, and the marks."""
    there = {}
    for table in _OF_TRACES:
        [(there[table],)] = connection.execute(f"SELECT coalesce(max(rowid), -1) FROM kept.{table}").fetchall()  # noqa: S608
        for wanted in ("trace_id IN (SELECT id FROM _late) AND rowid <= ?", "rowid > ?"):
            query = f"INSERT INTO kept.{table} SELECT * FROM {table} WHERE {wanted} ORDER BY rowid"  # noqa: S608
            connection.execute(query, [until[table]])
    connection.execute(
        f"""INSERT INTO kept.span_records SELECT * FROM span_records WHERE {IS_MARK}
        AND rowid <= {until["span_records"]}
        AND trace_id NOT IN (SELECT id FROM _traces) AND (arrived_ns >= ? OR {IS_STAND_IN} AND (
            trajectory_id IN (SELECT id FROM _trajectories) OR trace_id IN (
            SELECT trace_id FROM links WHERE linked_trace_id IN (SELECT id FROM _traces))))""",  # noqa: S608
        [time.time_ns() - _MARKS_KEPT_NS],
    )
    needed = connection.execute(
        f"""SELECT DISTINCT id FROM (
            SELECT unnest(messages) AS id FROM kept.prompts WHERE rowid > {there["prompts"]}
            UNION SELECT unnest([tools, instructions, origin]) FROM kept.span_records
            WHERE rowid > {there["span_records"]}) WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM kept.texts)
        ORDER BY id"""  # noqa: S608
    ).fetchall()
    if needed:  # named one by one: of a join DuckDB would read every text
        ids = ", ".join(str(id) for (id,) in needed)
        connection.execute(f"INSERT INTO kept.texts SELECT * FROM texts WHERE id IN ({ids}) ORDER BY rowid")  # noqa: S608


def _copy_small(connection: duckdb.DuckDBPyConnection) -> None:
    connection.execute(
        "INSERT INTO kept.links SELECT * FROM links WHERE trace_id IN (SELECT trace_id FROM kept.span_records)"
    )
    connection.execute(
        """INSERT INTO kept.reward_records SELECT * FROM reward_records WHERE trajectory_id IN (
            SELECT id FROM _trajectories) OR split_part(trajectory_id, ':', 1) IN (
            SELECT id FROM _trajectories UNION SELECT id FROM _traces) OR (trajectory_id NOT IN (
            SELECT trajectory_id FROM span_records WHERE trajectory_id IS NOT NULL)
            AND split_part(trajectory_id, ':', 1) NOT IN (SELECT trace_id FROM span_records)) ORDER BY rowid"""
    )
    connection.execute(
        "INSERT INTO kept.summaries SELECT * FROM summaries WHERE trajectory_id IN (SELECT id FROM _trajectories)"
    )
    connection.execute(
        """INSERT INTO kept.regrouped SELECT * FROM regrouped WHERE trajectory_id IN (SELECT id FROM _trajectories)
            OR split_part(trajectory_id, ':', 1) IN (SELECT id FROM _trajectories)"""
    )
    for table in _WHOLE:
        connection.execute(f"INSERT INTO kept.{table} SELECT * FROM {table} ORDER BY rowid")  # noqa: S608
    connection.execute(
        """INSERT INTO kept.odd_traces SELECT trace_id, false FROM odd_traces
        WHERE trace_id IN (SELECT id FROM _traces)"""
    )


@contextlib.contextmanager
def _attached(connection: duckdb.DuckDBPyConnection, target: Path) -> Iterator[None]:
    connection.execute(f"ATTACH {quoted(name_of(target))} AS kept")
    try:
        yield
    finally:
        connection.execute("DETACH kept")


def _ids(several: Collection[str]) -> pa.Table:
    return arrow_table({"id": ("VARCHAR", list(several))})
