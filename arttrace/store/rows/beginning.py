"""The spans that a run begins with, as its transcript has them: an agent's calls and tools before the next agent's."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import duckdb

from arttrace.records.span import SpanRow
from arttrace.store.rows.decode import read_spans

_Key = tuple[str, str]


def read_beginning(connection: duckdb.DuckDBPyConnection, traces: Collection[str], most: int) -> list[SpanRow]:
    """The first `most` spans of these traces in the order of their tree, as `read_spans` gives them."""
    query = """SELECT trace_id, span_id, parent_span_id, start_ns FROM span_records
        WHERE trace_id IN (SELECT unnest(?::VARCHAR[])) ORDER BY start_ns, span_id"""
    rows = connection.execute(query, [list(traces)]).fetchall()
    started = {(trace, span): start_ns for trace, span, _, start_ns in rows}
    first = first_of_tree({(trace, span): (trace, parent) for trace, span, parent, _ in rows}, most)
    times = [started[key] for key in first]
    where = f"""start_ns BETWEEN {min(times, default=0)} AND {max(times, default=0)}
        AND (trace_id, span_id) IN (SELECT unnest(?::VARCHAR[]), unnest(?::VARCHAR[]))"""
    return read_spans(connection, where, [[key[0] for key in first], [key[1] for key in first]], shared=True)


def first_of_tree(parents: Mapping[_Key, _Key], most: int) -> list[_Key]:
    """The first spans of a forest, depth first, children in the order in which they are given; a span whose parent is
    not there is a root."""
    below: dict[_Key, list[_Key]] = {}
    roots: list[_Key] = []
    for key, parent in parents.items():
        (below.setdefault(parent, []) if parent in parents else roots).append(key)
    found: list[_Key] = []
    waiting = roots[::-1]
    while waiting and len(found) < most:
        found.append(waiting.pop())
        waiting += reversed(below.get(found[-1], ()))
    return found
