"""The DuckDB file: opened or made, its lock and schema checked, batches of records written in one transaction."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb

from arttrace.errors import StoreError, StoreInUse
from arttrace.records.policy import PolicyStep
from arttrace.records.record import Record
from arttrace.store import schema
from arttrace.store.rows import Row, Table, rows_by_table

# The default of 16 MB stalls ingest with a checkpoint every few thousand spans.
_SETTINGS: dict[str, Any] = {"checkpoint_threshold": "256MB"}
_LOCK_PATIENCE_S = 2.0


def connect(path: Path) -> duckdb.DuckDBPyConnection:
    """An open store; made with this version's schema when the file is new.

    Raises StoreError when another process holds it (after a short wait), when the file is no store, or when its
    schema is of another version.
    """
    fresh = not path.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    connection = _connect(path)
    try:
        _check_schema(connection, path, fresh)
    except BaseException:
        connection.close()
        raise
    return connection


def _connect(path: Path) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:
        try:
            return duckdb.connect(str(path), config=_SETTINGS)
        except duckdb.Error as error:
            if "lock" not in str(error):
                raise StoreError(
                    f"the store {path} cannot be opened: {_first_line(error)}",
                    "If it is damaged, move it away: `arttrace ls` makes a new one from what is still in the spool.",
                ) from error
            if time.monotonic() > deadline:
                raise _locked(path, error) from error
        time.sleep(0.05)


def _locked(path: Path, error: duckdb.Error) -> StoreInUse:
    holder = re.search(r"held in (.+?) \(PID (\d+)\)", str(error))
    if holder is None:
        return StoreInUse(f"the store {path} is in use by another process", "Wait until it ends, then try again.")
    program, pid = holder.groups()
    return StoreInUse(
        f"the store {path} is in use by process {pid} ({program})",
        f"Wait until it ends, or stop it with `kill {pid}`; then try again.",
    )


def _check_schema(connection: duckdb.DuckDBPyConnection, path: Path, fresh: bool) -> None:
    tables = {name for (name,) in connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()}
    if not tables and not fresh:
        views = connection.execute("SELECT count(*) FROM duckdb_views() WHERE NOT internal").fetchone()
        fresh = views == (0,)  # its maker died before the first commit
    if fresh:
        connection.execute(f"BEGIN; {schema.TABLES} {schema.VIEWS}")
        connection.execute("INSERT INTO arttrace_schema VALUES (?)", [schema.VERSION])
        connection.execute("COMMIT")
        return
    if "arttrace_schema" not in tables:
        raise StoreError(f"{path} is a DuckDB file, but no store of arttrace", "Pass another directory with --dir.")
    found = [version for (version,) in connection.execute("SELECT version FROM arttrace_schema").fetchall()]
    if found != [schema.VERSION]:
        raise StoreError(
            f"the store {path} has schema version {', '.join(map(str, found)) or 'none'}, this version of arttrace "
            f"knows version {schema.VERSION}",
            "Use the version of arttrace that wrote it, or pass another directory with --dir.",
        )


def write(
    connection: duckdb.DuckDBPyConnection, records: Sequence[Record], offsets: Mapping[str, int] | None = None
) -> int:
    """Stores the records that are not there yet, and how far the segments they came from were read, in one
    transaction. Returns how many records were new. Raises duckdb.Error; then nothing was stored, unless the commit
    itself failed (a full disk), after which the connection is to be closed and opened anew."""
    new = 0
    connection.execute("BEGIN")
    try:
        for table, rows in rows_by_table(records).values():
            known = _known(connection, table, list(rows))
            fresh = [row for digest, row in rows.items() if digest not in known]
            _insert(connection, table.name, list(table.columns.values()), [row for row, _ in fresh])
            consumed = [row for _, record in fresh if isinstance(record, PolicyStep) for row in _consumption(record)]
            _insert(connection, "consumption", ["VARCHAR", "BIGINT", "VARCHAR", "VARCHAR"], consumed)
            new += len(fresh)
        if offsets:
            names = list(offsets)
            connection.execute("DELETE FROM ingested_segments WHERE name IN (SELECT unnest(?::VARCHAR[]))", [names])
            _insert(connection, "ingested_segments", ["VARCHAR", "BIGINT"], list(offsets.items()))
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            connection.execute("ROLLBACK")
        raise
    return new


def _known(connection: duckdb.DuckDBPyConnection, table: Table, hashes: Sequence[str]) -> set[str]:
    query = f"SELECT content_hash FROM {table.name} WHERE content_hash IN (SELECT unnest(?::VARCHAR[]))"  # noqa: S608
    return {digest for (digest,) in connection.execute(query, [hashes]).fetchall()}


def _insert(connection: duckdb.DuckDBPyConnection, table: str, types: Sequence[str], rows: Sequence[Row]) -> None:
    """One statement for all rows, each column bound as one list: as fast as Arrow here, without its package."""
    if not rows:
        return
    columns = [list(column) for column in zip(*rows, strict=True)]
    values = ", ".join(f"unnest(?::{type}[])" for type in types)
    connection.execute(f"INSERT INTO {table} SELECT {values}", columns)


def _consumption(step: PolicyStep) -> list[Row]:
    return [(step.policy, step.step, item.trajectory_id, item.revision) for item in step.consumed]


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
