"""Rows of spans that a version of arttrace stored which understood fewer SDKs get what this one reads in them.

What a span says by the names of its SDK is read as it comes in (rows/columns.py, rows/encode.py), so that queries and
trajectories have one answer to whether it is a call, a tool or an agent. A store keeps by which reading its rows were
made; those of another one are looked at once, when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import duckdb
import msgspec

from arttrace.formats.sdks.conventions import MARKS
from arttrace.formats.sdks.frameworks.google_adk import SCOPE
from arttrace.formats.sdks.tolerant import added_by_conventions
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store.arrow_tables import arrow_table
from arttrace.store.bounded_parts import batched
from arttrace.store.file import reading
from arttrace.store.rows.columns import span_columns
from arttrace.store.rows.encode import CONVENTIONS, with_conventions
from arttrace.store.rows.tables import SPANS, TRAJECTORY_ID
from arttrace.store.transactions import registered, transaction

_READING: Final = 8
"""Counted up when formats/sdks understands more, or `with_conventions` keeps more of it."""
SAY: Final = f"UPDATE arttrace_schema SET reading = {_READING};"  # noqa: S608
"""That the rows of a store were made by this reading."""

_AT_ONCE = 500  # traces
_ITEMS = "SELECT unnest(?::VARCHAR[])"
_IN_EVENTS = (*semconv.CALL_OPERATIONS, semconv.OPERATION_EXECUTE_TOOL, semconv.OPERATION_INVOKE_AGENT)
_OF_AN_AGENT = " OR ".join(f"contains(document, '\"{name}\"')" for name in (semconv.OUTPUT_MESSAGES, "final_result"))
_OF_OTHERS = " OR ".join(
    (
        *(f"contains(document, '\"{mark}')" for mark in MARKS),
        f"(operation IN {_IN_EVENTS} AND contains(document, '\"events\":'))",
        f"(operation = '{semconv.OPERATION_INVOKE_AGENT}' AND ({_OF_AN_AGENT}))",
        f"origin IN (SELECT id FROM texts WHERE contains(text, '\"{SCOPE}\"'))",  # noqa: S608
    )
)
_OWN = " AND ".join(f"contains(document, '\"{name}\"')" for name in (semconv.TRAJECTORY_ID, semconv.OPERATION_NAME))
_MARKED = f"NOT ({_OWN}) AND ({_OF_OTHERS})"
"""Our own spans come first: they are most of a store, and say so near the beginning of their document."""
_SHARED: Final = {
    "prompt": semconv.INPUT_MESSAGES,
    "tools": semconv.TOOL_DEFINITIONS,
    "instructions": semconv.SYSTEM_INSTRUCTIONS,
}
"""Columns that hold an attribute in place of the document. What they hold is not needed here, that they do is."""
_COLUMNS = [*SPANS.columns][: len(span_columns(SpanRow("", "", "", 0, 0), {}))]

_span = msgspec.json.Decoder(SpanRow)
_parts = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encode = msgspec.json.Encoder().encode

_Change = tuple[int, tuple[Any, ...], str]
"""A rowid, the row's first columns, and its document."""


def reread(connection: duckdb.DuckDBPyConnection, schema: Mapping[str, Any]) -> None:
    """Brings the rows of spans to this reading where the row of `arttrace_schema` says that they are another's. Goes on
    where an earlier try ended."""
    if schema.get("reading") == _READING:
        return
    marked = connection.execute(f"SELECT DISTINCT trace_id FROM span_records WHERE {_MARKED}").fetchall()  # noqa: S608
    traces = sorted(trace for (trace,) in marked)
    done, tell = 0, reading.of_runs(len(traces))
    for part in batched(traces, _AT_ONCE):
        with transaction(connection):
            _reread(connection, part)
        done += len(part)
        tell(done)
    connection.execute(SAY)


def _reread(connection: duckdb.DuckDBPyConnection, traces: Sequence[str]) -> None:
    changes: list[_Change] = []
    runs: set[str] = set()
    for change, before in _changes(connection, traces):
        changes.append(change)
        runs.update(one for one in (change[1][TRAJECTORY_ID], before) if one)
    if not changes:
        return
    _update(connection, changes)
    odd = sorted({row[0] for _, row, _ in changes})
    query = f"INSERT INTO odd_traces SELECT t, false FROM ({_ITEMS} AS t) ANTI JOIN odd_traces ON trace_id = t"  # noqa: S608
    connection.execute(query, [odd])
    connection.execute(f"UPDATE odd_traces SET placed = false WHERE trace_id IN ({_ITEMS})", [odd])  # noqa: S608
    connection.execute(f"DELETE FROM summaries WHERE trajectory_id IN ({_ITEMS})", [sorted(runs)])  # noqa: S608


def _changes(connection: duckdb.DuckDBPyConnection, traces: Sequence[str]) -> Iterator[tuple[_Change, str | None]]:
    """What changes, and the trajectory under which the span was stored."""
    query = f"""SELECT rowid, document, (SELECT text FROM texts WHERE id = origin), {", ".join(_SHARED)},
            {", ".join(f'"{name}"' for name in _COLUMNS)}
        FROM span_records WHERE trace_id IN ({_ITEMS}) AND ({_MARKED})"""  # noqa: S608
    for rowid, document, origin, *rest in connection.execute(query, [list(traces)]).fetchall():
        shared, columns = rest[: len(_SHARED)], tuple(rest[len(_SHARED) :])
        span = _span.decode(document if origin is None else f"{document[:-1]},{origin[1:]}")
        there = [name for name, id in zip(_SHARED.values(), shared, strict=True) if id is not None]
        span = msgspec.structs.replace(span, attributes={**span.attributes, **dict.fromkeys(there)})
        added = added_by_conventions(span)
        read = span_columns(span, {**span.attributes, **added})
        parts = _parts.decode(document)
        own = _encode(parts) if parts.pop(CONVENTIONS, None) is not None else document.encode()
        encoded = with_conventions(own, added).decode()
        if (read, encoded) != (columns, document):
            yield (rowid, read, encoded), columns[TRAJECTORY_ID]


def _update(connection: duckdb.DuckDBPyConnection, changes: Sequence[_Change]) -> None:
    values = zip(*(row for _, row, _ in changes), strict=True)
    types = SPANS.types()[: len(_COLUMNS)]
    given = arrow_table(
        {
            "row": ("BIGINT", [id for id, _, _ in changes]),
            **dict(zip(_COLUMNS, zip(types, values, strict=True), strict=True)),
            "document": ("VARCHAR", [text for *_, text in changes]),
        }
    )
    sets = ", ".join(f'"{name}" = g."{name}"' for name in (*_COLUMNS, "document"))
    with registered(connection, _given=given):
        connection.execute(f"UPDATE span_records SET {sets} FROM _given g WHERE span_records.rowid = g.row")  # noqa: S608
