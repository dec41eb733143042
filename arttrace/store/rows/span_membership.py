"""To which trajectory a span belongs, for SQL, where its row alone does not say: spans of conversations that split a
trace, of linked traces, and those without an id below one that has it.

What may be so is marked as it comes (`odd_traces`), and looked at when somebody asks. It is the reconstruction that
decides; the tables here can be made again at any time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence, Set
from typing import Final

import duckdb
import msgspec

from arttrace.formats.evaluations import rewards_of
from arttrace.formats.sdks.tolerant import normalised
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store.rows import trace_links
from arttrace.store.rows.columns import EVALUATE, LAST_READING
from arttrace.store.rows.left_out import IS_MARK, IS_STAND_IN
from arttrace.store.rows.summary import SUMMARY_VERSION
from arttrace.store.transactions import transaction
from arttrace.trajectories.decoding.operation import is_of_a_run
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan
from arttrace.trajectories.identity.membership import membership
from arttrace.trajectories.identity.reward_membership import trace_roots

FIND: Final = """INSERT INTO odd_traces
    SELECT trace_id, false FROM span_records WHERE operation IS NOT NULL AND trajectory_id = trace_id
    UNION SELECT trace_id, false FROM links UNION SELECT linked_trace_id, false FROM links"""
"""Marks what a store that was made without these tables holds."""

READING: Final = 5
"""Counted up when spans are placed by other rules."""

AGAIN: Final = "UPDATE odd_traces SET placed = false;"
"""Marks all that were placed by other rules."""

SPLIT: Final = f"""trajectory_id IN (
    SELECT trajectory_id FROM summaries WHERE version = '{SUMMARY_VERSION}' GROUP BY ALL HAVING count(*) > 1
    UNION ALL SELECT trace_id FROM odd_traces
    ANTI JOIN (SELECT trajectory_id FROM summaries WHERE version = '{SUMMARY_VERSION}') ON trajectory_id = trace_id)"""  # noqa: S608
"""Several trajectories were given under an id, or nobody has looked yet: what is said of it is not said of all."""

_AGENT = f"operation = '{semconv.OPERATION_INVOKE_AGENT}'"
_TOPS = ("entry IS NOT NULL AND parent_span_id IS NULL", "entry IS NOT NULL", f"{_AGENT} AND parent_span_id IS NULL")
BEGAN: Final = f"""CASE {
    " ".join(
        f"WHEN min(start_ns) FILTER ({top}) = max(start_ns) FILTER ({top}) THEN min(start_ns) FILTER ({top}) "
        f"WHEN count(*) FILTER ({top}) > 0 THEN min(start_ns)"
        for top in _TOPS
    )
} ELSE min(start_ns) END"""
"""When the spans that were given under one id began, as a list of runs has it: with the one agent above all else
(trajectories/agents/tree.py), which another process's clock may put behind its calls; else with the first of them."""

_AT_ONCE = 500
_ITEMS = "SELECT unnest(?::VARCHAR[])"
_decoder = msgspec.json.Decoder(SpanRow)


def mark(connection: duckdb.DuckDBPyConnection, traces: Set[str], odd: Set[str]) -> None:
    """Marks the odd ones of the traces whose spans are about to be stored, and all of them that were marked before."""
    if odd or connection.execute("SELECT 1 FROM odd_traces LIMIT 1").fetchone() is not None:
        if trace_links.any_links(connection):
            odd = odd | trace_links.linking(connection, traces)
        query = f"UPDATE odd_traces SET placed = false WHERE placed AND trace_id IN ({_ITEMS})"  # noqa: S608
        connection.execute(query, [list(traces | odd)])
        query = f"INSERT INTO odd_traces SELECT t, false FROM ({_ITEMS} AS t) ANTI JOIN odd_traces ON trace_id = t"  # noqa: S608
        connection.execute(query, [list(odd)])


def mark_rewarded(connection: duckdb.DuckDBPyConnection) -> None:
    """The traces that rewards were given to by their ids are the run's that holds a trace's root: the one that all its
    spans name, where it was not marked; those with several are marked. One of spans of nobody's run has no such run.
    Raises duckdb.Error; then nothing was."""
    query = f"""SELECT trace_id, min(trajectory_id), max(trajectory_id) FROM span_records s
        SEMI JOIN (SELECT split_part(trajectory_id, ':', 1) AS trace FROM reward_records) r ON r.trace = s.trace_id
        ANTI JOIN odd_traces o ON o.trace_id = s.trace_id
        WHERE operation IS DISTINCT FROM '{EVALUATE}' AND NOT ({IS_MARK}) GROUP BY trace_id"""  # noqa: S608
    found = connection.execute(query).fetchall()
    roots = [(trace, first) for trace, first, last in found if first is not None and first == last]
    with transaction(connection):
        _insert(connection, "trace_roots", [one for one in roots if one[0] != one[1]])
        _insert(connection, "trace_roots", [(f"{trace}:", id) for trace, id in roots])
        _insert(connection, "odd_traces", [(trace, str(first == last)) for trace, first, last in found])


def place(
    connection: duckdb.DuckDBPyConnection, telling: Callable[[int], Callable[[int], object]] = lambda _: int
) -> None:
    """Looks at the marked traces. `telling` is called with how many there are, what it returns with how many were
    looked at. Raises duckdb.Error; then they stay marked."""
    query = "SELECT trace_id FROM odd_traces WHERE NOT placed"
    waiting = [trace for (trace,) in connection.execute(query).fetchall()]
    tell = telling(len(waiting))
    for start in range(0, len(waiting), _AT_ONCE):
        traces = set(waiting[start : start + _AT_ONCE])
        needed = traces
        if trace_links.any_links(connection):
            traces = trace_links.below(connection, traces)
            needed = trace_links.above(connection, traces)
        with transaction(connection):
            _place(connection, traces, needed)
        tell(min(start + _AT_ONCE, len(waiting)))


def found_on(spans: Iterable[SpanRow]) -> dict[str, SpanKey]:
    """The span of every reward (by id) that was found on one and goes with it; of several, the one with the least
    ids."""
    spans_of: dict[str, SpanKey] = {}
    for span in spans:
        if semconv.TRAJECTORY_ID not in span.attributes:
            key = span.trace_id, span.span_id
            for reward in rewards_of(span):
                if reward.trajectory_id == span.trace_id:  # else it is about another one
                    spans_of[reward.id] = min(key, spans_of.get(reward.id, key))
    return spans_of


def _place(connection: duckdb.DuckDBPyConnection, traces: Collection[str], needed: Collection[str]) -> None:
    """Places the spans of these traces, for which those that they link to are needed too."""
    # Those that came together began about the same time: DuckDB then looks at their row groups only.
    query = f"SELECT min(start_ns), max(start_ns) FROM span_records WHERE trace_id IN ({_ITEMS})"  # noqa: S608
    [bounds] = connection.execute(query, [list(needed)]).fetchall()
    query = f"""SELECT document, trajectory_id FROM span_records
        WHERE start_ns BETWEEN ? AND ? AND trace_id IN ({_ITEMS}) AND operation IS DISTINCT FROM '{EVALUATE}'
        AND NOT ({IS_STAND_IN}) QUALIFY row_number() OVER (
            PARTITION BY trace_id, span_id ORDER BY {LAST_READING}) = 1"""  # noqa: S608
    unique: dict[SpanKey, UniqueSpan] = {}
    stored: dict[SpanKey, str | None] = {}
    for document, trajectory_id in connection.execute(query, [*bounds, list(needed)]).fetchall():
        span = UniqueSpan(normalised(_decoder.decode(document)), "", 0)
        unique[span.key], stored[span.key] = span, trajectory_id
    belonging = membership(unique)
    above, id_of = belonging.parents, {key: home.id for key, home in belonging.homes.items()}
    of_runs = {key: span.row for key, span in unique.items() if is_of_a_run(span.row)}
    runs = {id_of[key] for key in of_runs}
    placed = [(*key, id if id in runs else None) for key, id in id_of.items() if key[0] in traces]
    given = found_on(span.row for span in unique.values())
    rewards = [(key[0], reward, id_of[key]) for reward, key in given.items() if key[0] in traces and id_of[key] in runs]
    of_traces = {trace: id for trace, id in trace_roots(of_runs, above, id_of).items() if trace in traces}
    roots = [one for one in of_traces.items() if one[0] not in runs]
    roots += [(f"{trace}:", id) for trace, id in of_traces.items()]  # for conversations that are none by now
    _replace(connection, "placed_spans", traces, [row for row in placed if row[2] != stored[row[:2]]])
    _replace(connection, "placed_rewards", traces, rewards)
    _replace(connection, "trace_roots", [*traces, *(f"{trace}:" for trace in traces)], roots)
    query = f"UPDATE odd_traces SET placed = true WHERE trace_id IN ({_ITEMS})"  # noqa: S608
    connection.execute(query, [list(traces)])


def _replace(
    connection: duckdb.DuckDBPyConnection, table: str, traces: Collection[str], rows: Sequence[tuple[str | None, ...]]
) -> None:
    connection.execute(f"DELETE FROM {table} WHERE trace_id IN ({_ITEMS})", [list(traces)])  # noqa: S608
    _insert(connection, table, rows)


def _insert(connection: duckdb.DuckDBPyConnection, table: str, rows: Sequence[tuple[str | None, ...]]) -> None:
    if rows:
        columns = ", ".join("unnest(?::VARCHAR[])" for _ in rows[0])
        connection.execute(f"INSERT INTO {table} SELECT {columns}", [list(one) for one in zip(*rows, strict=True)])
