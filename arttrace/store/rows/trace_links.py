"""Traces joined by span links: an agent in a trace of its own that links to the span which called it, or what stands in
for one that was refused.

Which trace links to which is read off the spans, and kept so that nobody has to look through all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import duckdb

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store.rows.left_out import IS_STAND_IN
from arttrace.store.rows.tables import LINKS
from arttrace.store.transactions import transaction

_FIND = f"""INSERT INTO links
    SELECT DISTINCT trace_id, unnest(json_extract_string(document, '$.links[*].trace_id')) AS linked
    FROM span_records
    WHERE (operation = '{semconv.OPERATION_INVOKE_AGENT}' OR {IS_STAND_IN}) AND contains(document, '"links":[')"""  # noqa: S608

LINKING = (semconv.OPERATION_INVOKE_AGENT, semconv.OPERATION_REFUSED)
"""The operations of the spans whose links join traces."""


def find(connection: duckdb.DuckDBPyConnection) -> None:
    """Makes the table for a store that was made without it, from its spans."""
    with transaction(connection):
        connection.execute(LINKS.create())
        connection.execute(_FIND)


def links_of(agents: Iterable[SpanRow]) -> list[tuple[str, str]]:
    """(trace id, the other trace that an agent's span in it links to), each pair once."""
    pairs = {(s.trace_id, link.trace_id) for s in agents for link in s.links if link.trace_id != s.trace_id}
    return sorted(pairs)


def below(connection: duckdb.DuckDBPyConnection, traces: Collection[str]) -> set[str]:
    """These traces and those that link to them, and so on: what belongs to the trajectories of these."""
    return _reached(connection, traces, "linked_trace_id", "trace_id")


def above(connection: duckdb.DuckDBPyConnection, traces: Collection[str]) -> set[str]:
    """These traces and those that they link to, and so on: whose trajectories may hold spans of these."""
    return _reached(connection, traces, "trace_id", "linked_trace_id")


def linking(connection: duckdb.DuckDBPyConnection, traces: Collection[str]) -> set[str]:
    """The traces that link to these, one step only."""
    query = "SELECT trace_id FROM links WHERE linked_trace_id IN (SELECT unnest(?::VARCHAR[]))"
    return {trace for (trace,) in connection.execute(query, [list(traces)]).fetchall()}


def _reached(connection: duckdb.DuckDBPyConnection, traces: Collection[str], given: str, found: str) -> set[str]:
    query = f"""WITH RECURSIVE reached(trace_id) AS (
        SELECT unnest(?::VARCHAR[]) UNION
        SELECT l.{found} FROM links l JOIN reached r ON l.{given} = r.trace_id)
        SELECT trace_id FROM reached"""  # noqa: S608
    return {trace for (trace,) in connection.execute(query, [list(traces)]).fetchall()}


def any_links(connection: duckdb.DuckDBPyConnection) -> bool:
    """Whether any trace links to another one."""
    return connection.execute("SELECT 1 FROM links LIMIT 1").fetchone() is not None
