"""SQL of users over an open store: one query, which reads the store and nothing else.

It runs in a transaction that only reads, since a SELECT may hold a DELETE. Files and the network are out of its reach:
the store's connections are made so (see database.py).
"""

from __future__ import annotations

import contextlib
import re
from typing import Any

import duckdb

from arttrace.errors import StoreError

_READING = {duckdb.StatementType.SELECT, duckdb.StatementType.RELATION}
_explaining = re.compile(r"\s*EXPLAIN\s+(ANALYZE\s+)?", re.IGNORECASE)


def run_query(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Column names and rows. Raises StoreError when DuckDB refuses the query, or when it does not only read."""
    try:
        _check(connection, query)
        connection.execute("BEGIN TRANSACTION READ ONLY")
        try:
            return _columns_and_rows(connection, query)
        finally:
            with contextlib.suppress(duckdb.Error):  # a fatal error has ended it
                connection.execute("ROLLBACK")
    except duckdb.PermissionException as error:
        raise StoreError(
            f"the query failed: {error}",
            "Queries read the store only. Give other files to a DuckDB of your own, with what `arttrace sql --json` "
            "prints.",
        ) from error
    except duckdb.FatalException:
        raise
    except duckdb.Error as error:
        raise StoreError(f"the query failed: {error}") from error


def _check(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    statements = connection.extract_statements(query)
    if [one.type for one in statements] == [duckdb.StatementType.EXPLAIN]:  # with ANALYZE it is run
        statements = connection.extract_statements(_explaining.sub("", query, count=1))
    if len(statements) != 1 or statements[0].type not in _READING:
        raise StoreError("only one query that reads is run here", "Records enter through the journal.")


def _columns_and_rows(connection: duckdb.DuckDBPyConnection, query: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    result = connection.execute(query)
    columns = [(column[0], str(column[1])) for column in result.description or ()]
    zoned = [name for name, type in columns if type == "TIMESTAMP WITH TIME ZONE"]
    if zoned:  # DuckDB would need the package pytz to hand these over
        casts = ", ".join(f"{(name := _quoted(column))}::TIMESTAMP AS {name}" for column in zoned)
        result = connection.execute(
            f"SELECT * REPLACE ({casts}) FROM ({query.strip().rstrip(';')})"  # noqa: S608
        )
    return [name for name, _ in columns], result.fetchall()


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
