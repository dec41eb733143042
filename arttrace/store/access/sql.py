"""Users' SQL over an open store: one query, which reads the store and nothing else.

Anything but a SELECT is refused, and so is a SELECT that would write: a COPY below WITH, which would overwrite the
store itself, and functions that run SQL from a text. DuckDB's own parser decides. The query runs in a read-only
transaction, and the store's connections can reach neither other files nor the network (see file/connect.py).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from itertools import count
from typing import Any

import duckdb
import msgspec

from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.units import quantity
from arttrace.store.file import cancellation
from arttrace.store.file.failures import is_damage
from arttrace.system.errors import StoreError

MAX_ANSWER_BYTES = 512 << 20
_ROWS_AT_ONCE = 1_000
"""They are in memory before their size is looked at."""
_READING = {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
_reads = re.compile(
    r"range|generate_series|unnest|repeat|json_each|json_tree|glob|(duckdb|pragma|read)_\w+", re.IGNORECASE | re.ASCII
)
"""Table functions; those of files are named so that DuckDB says that it refuses the file."""
_ZONED, _PLAIN = "TIMESTAMP WITH TIME ZONE", "TIMESTAMP"  # the store's time zone is UTC
_explaining = re.compile(
    r"\s*EXPLAIN(?:\s+ANALYZE\b|\s*\((?=\s*(?:ANALYZE|FORMAT)\b)[\w\s,]*\)|\b)", re.IGNORECASE | re.ASCII
)
"""Nothing but whitespace, words and brackets: no comment or quote can begin in it and reach into what is explained."""


encode_values = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
"""Any value of a query's row as JSON: what JSON has no form for is text."""


def run_query(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows. Raises StoreError if DuckDB refuses the query, or if it would write."""
    with _only_reading(connection, query) as statement:
        columns, pages = _columns_and_pages(connection, statement, _ROWS_AT_ONCE)
        return columns, _bounded(pages)


def query_pages(connection: duckdb.DuckDBPyConnection, query: str, rows: int) -> Iterator[list[tuple[Any, ...]]]:
    """The rows, so many at a time, as DuckDB finds them. Raises StoreError as run_query does."""
    with _only_reading(connection, query) as statement:
        yield from _columns_and_pages(connection, statement, rows)[1]


def named_rows(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> list[dict[str, Any]]:
    """The rows by the names of their columns, for JSON; of two with one name, as a JOIN gives them, the second is
    `NAME_1`."""
    names: dict[str, None] = {}
    for column in columns:
        others = (f"{column}_{number}" for number in count(1))
        names[column if column not in names else next(name for name in others if name not in {*names, *columns})] = None
    return [dict(zip(names, map(_keyed_by_text, row), strict=True)) for row in rows]


def _keyed_by_text(value: Any) -> Any:
    """A value without decimals for keys, which msgspec would write without quotes."""
    match value:
        case dict():
            return {str(key) if isinstance(key, Decimal) else key: _keyed_by_text(item) for key, item in value.items()}
        case list() | tuple():
            return list(map(_keyed_by_text, value))
    return value


@contextlib.contextmanager
def _only_reading(connection: duckdb.DuckDBPyConnection, query: str) -> Iterator[duckdb.Statement]:
    try:
        statement = _checked(connection, query)
        connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            yield statement
        finally:
            with contextlib.suppress(duckdb.Error):  # a fatal error has ended it
                connection.execute("ROLLBACK")
    except duckdb.PermissionException as error:
        raise StoreError(
            f"the query failed: {error}",
            "Queries read the store only. Give other files to a DuckDB of your own, with what `arttrace sql --json` "
            "prints.",
        ) from error
    except (duckdb.FatalException, duckdb.InterruptException):
        raise
    except duckdb.Error as error:
        if is_damage(error):
            raise
        raise StoreError(
            f"the query failed: {error}", "`arttrace sql --help` lists the views and their columns."
        ) from error


def _checked(connection: duckdb.DuckDBPyConnection, query: str) -> duckdb.Statement:
    """The query, parsed: DuckDB parses a text each time that it is given one, which takes longer than most answers.
    Raises StoreError unless it is one query that reads, explained or not. An explained one is parsed by itself, to the
    end: EXPLAIN ANALYZE runs it, and DuckDB does not say what it is."""
    if well_formed(query) != query:
        raise StoreError("the query failed: it holds bytes that are not UTF-8")
    given = statements = connection.extract_statements(query)
    if [one.type for one in statements] == [duckdb.StatementType.EXPLAIN]:
        explaining = _explaining.match(query)
        query = query[explaining.end() :] if explaining else ""
        statements = connection.extract_statements(query)
    if [one.type for one in statements] != [duckdb.StatementType.SELECT] or not _only_reads(connection, query):
        raise StoreError(
            "only a single read-only query is allowed here, without functions that do more",
            "Of what is stored `arttrace prune` removes runs, and `arttrace score` adds rewards.",
        )
    return given[0]


def _only_reads(connection: duckdb.DuckDBPyConnection, query: str) -> bool:
    [(tree,)] = connection.execute("SELECT json_serialize_sql(?)", [query]).fetchall()
    try:
        parsed = msgspec.json.decode(tree)
    except RecursionError:
        raise StoreError("the query is nested too deep") from None
    if parsed["error"] or len(parsed["statements"]) != 1:
        return False
    for part in _objects(parsed):
        kind = part.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _READING:
            return False
        if kind == "TABLE_FUNCTION" and not _reads.fullmatch(part["function"]["function_name"]):
            return False
    return True


def _objects(tree: Any) -> Iterator[dict[str, Any]]:
    waiting = [tree]
    while waiting:
        match waiting.pop():
            case dict() as part:
                yield part
                waiting.extend(part.values())
            case list() as parts:
                waiting.extend(parts)


def _columns_and_pages(
    connection: duckdb.DuckDBPyConnection, statement: duckdb.Statement, rows: int
) -> tuple[list[str], Iterator[list[tuple[Any, ...]]]]:
    described = connection.sql(statement)  # it is not run for that
    columns, types = list(described.columns), [str(type) for type in described.types]
    zoned = [at for at, type in enumerate(types) if _ZONED in type and _PLAIN not in type.replace(_ZONED, "")]
    if any(_ZONED in type for type in types):  # DuckDB would need the package pytz to hand these over
        casts = ", ".join(f"c{at}::{type.replace(_ZONED, _PLAIN)}" for at, type in enumerate(types))
        names = ", ".join(f"c{at}" for at in range(len(types)))
        query = _up_to_its_semicolon(statement.query)
        statement = _checked(connection, f"SELECT {casts} FROM (\n{query}\n) AS q({names})")  # noqa: S608
    return columns, _pages(connection.execute(statement), rows, zoned)


def _up_to_its_semicolon(query: str) -> str:
    """One statement without the semicolon that ends it, and without comments behind that."""
    text = query.encode()
    ends = (at for at, _ in duckdb.tokenize(query) if text[at : at + 1] == b";")
    return text[: next(ends, len(text))].decode()


def _pages(result: duckdb.DuckDBPyConnection, rows: int, zoned: Sequence[int]) -> Iterator[list[tuple[Any, ...]]]:
    while some := result.fetchmany(rows):
        cancellation.check()
        yield [_in_utc(row, zoned) for row in some] if zoned else some


def _bounded(pages: Iterator[list[tuple[Any, ...]]]) -> list[tuple[Any, ...]]:
    """The rows. Raises StoreError if they take more memory than an answer may."""
    rows: list[tuple[Any, ...]] = []
    size = 0
    for some in pages:
        size += sum(map(_size, some))
        if size > MAX_ANSWER_BYTES:
            raise StoreError(
                f"the answer is over {MAX_ANSWER_BYTES >> 20} MiB, after {quantity(len(rows), 'row')}",
                "Ask for less: name columns, add WHERE or LIMIT, or aggregate.",
            )
        rows += some
    return rows


def _size(value: Any) -> int:
    """The approximate size in bytes."""
    match value:
        case str() | bytes():
            return 60 + len(value)
        case list() | tuple():
            return 60 + sum(map(_size, value))
        case dict():
            return 240 + sum(map(_size, value.values()))
    return 40


def _in_utc(row: tuple[Any, ...], zoned: Sequence[int]) -> tuple[Any, ...]:
    values = list(row)
    for at in zoned:
        values[at] = _all_in_utc(values[at])
    return tuple(values)


def _all_in_utc(value: Any) -> Any:
    match value:
        case datetime():
            return value.replace(tzinfo=UTC)
        case list() | tuple():
            return type(value)(map(_all_in_utc, value))
        case dict():
            return {_all_in_utc(key): _all_in_utc(item) for key, item in value.items()}
    return value
