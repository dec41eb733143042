"""A store of an older schema becomes one of this version, or stays what it was.

Version 1 is copied into a new file, checked, and put in its place. Versions 2 and 3 have the same rows: the views
change, the tables that only they need, and a span's time of arrival, in one transaction. When a span came is not known
of an older store: it counts as come now. Views that are not this version's are replaced in any store.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb

from arttrace.records.record import decode_record
from arttrace.records.values.units import quantity
from arttrace.store.file.duckdb_file import copy_beside, create, replace
from arttrace.store.ingest.writer import Writer
from arttrace.store.rows import span_membership, tables, views
from arttrace.store.rows.encode import encode_rows
from arttrace.system.errors import StoreError

FROM = (1, 2, 3)
"""The schema versions that are understood beside this one."""

_ROWS = 5_000
_ARRIVALS = """ALTER TABLE span_records ADD COLUMN arrived_ns BIGINT DEFAULT {now};
    ALTER TABLE span_records ALTER COLUMN arrived_ns DROP DEFAULT;"""
_SAYS_MORE = "".join(
    f"ALTER TABLE arttrace_schema ADD COLUMN IF NOT EXISTS {name} {type};"
    for name, type in tables.SCHEMA.columns.items()
    if name != "version"
)
_RECORDS = ("span_records", "reward_records", "judgement_records", "policy_step_records")


def to_current(old: duckdb.DuckDBPyConnection, version: int, path: Path) -> None:
    """Brings an open store of this version on, and closes it. Raises StoreError when something is missing in the copy;
    the store is then as it was."""
    if version == 1:
        _copy_all(old, path)
    else:
        placed = (tables.MEMBERSHIP, span_membership.FIND) if version == 2 else ((), span_membership.AGAIN)
        _replace_views(
            old,
            _ARRIVALS.format(now=time.time_ns()) + tables.create(tables.GROUPINGS, tables.REGROUPED, *placed[0]),
            placed[1],
        )
        old.close()


def renew_views(connection: duckdb.DuckDBPyConnection, schema: Mapping[str, Any]) -> None:
    """Gives a store of this version this version's views, if the row of `arttrace_schema` says that it has others."""
    if schema.get("views") != views.VIEWS_HASH:
        _replace_views(connection, fill=span_membership.AGAIN)


def _replace_views(connection: duckdb.DuckDBPyConnection, make: str = "", fill: str = "") -> None:
    stored = connection.execute("SELECT view_name FROM duckdb_views() WHERE NOT internal").fetchall()
    drops = " ".join(f"DROP VIEW {name};" for (name,) in stored)
    connection.execute(f"BEGIN; {drops} {make} {_SAYS_MORE} {views.VIEWS} {fill}")
    connection.execute("UPDATE arttrace_schema SET version = ?", [tables.VERSION])
    connection.execute("COMMIT")


def _copy_all(old: duckdb.DuckDBPyConnection, path: Path) -> None:
    target = copy_beside(path)
    new = create(target)
    try:
        writer = Writer(new)
        for table in _RECORDS:
            rows = old.execute(f"SELECT document FROM {table} ORDER BY rowid")  # noqa: S608
            while batch := rows.fetchmany(_ROWS):
                writer.write([*encode_rows(decode_record(document) for (document,) in batch)])
        _copy(old, new, "ingested_segments")
        _compare(old, new, path)
        new.execute("CHECKPOINT")
    except BaseException:
        new.close()
        target.unlink(missing_ok=True)
        raise
    new.close()
    old.execute("CHECKPOINT")
    old.close()
    replace(path, target)


def _copy(old: duckdb.DuckDBPyConnection, new: duckdb.DuckDBPyConnection, table: str) -> None:
    for row in old.execute(f"SELECT * FROM {table}").fetchall():  # noqa: S608
        new.execute(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608


def _compare(old: duckdb.DuckDBPyConnection, new: duckdb.DuckDBPyConnection, path: Path) -> None:
    for table, key in {
        **dict.fromkeys(_RECORDS, "content_hash"),
        "consumption": "(policy, step, trajectory_id)",
    }.items():
        query = f"SELECT count(DISTINCT {key}) FROM {table}"  # noqa: S608
        [(before,)], [(after,)] = (one.execute(query).fetchall() for one in (old, new))
        if after < before:
            raise StoreError(
                f"the store {path} could not be migrated to this version: {quantity(before - after, 'row')} of {table} "
                "missing",
                "It is left as it was. Please report this.",
            )
