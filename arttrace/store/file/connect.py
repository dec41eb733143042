"""Opening the DuckDB file: created if it is new, its lock and schema checked, an older schema migrated."""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from pathlib import Path
from typing import Any

import duckdb

from arttrace.store.file import migrations, reread
from arttrace.store.file.duckdb_file import FILES, connection_to, copy_beside, for_its_user, make, name_of, opening
from arttrace.store.file.failures import cannot_be
from arttrace.store.file.read_so_far import note_opening, reading_shown_to_others
from arttrace.store.rows import trace_links
from arttrace.store.rows.tables import VERSION
from arttrace.store.transactions import ctrl_c_as_usual
from arttrace.system.errors import StoreError, StoreInUse
from arttrace.system.private_files import make_directory, tighten_data

_LOCK_PATIENCE_S = 2.0
_OPEN_HERE = "the configuration has been locked"
_HELD = ("Could not set lock", _OPEN_HERE)
"""What DuckDB says of a file that another process has open, and of one that this process has open or is about to close.
"""
_HEADERS = 3 * 4096


def connect(path: Path) -> duckdb.DuckDBPyConnection:
    """An open store; made with this version's schema when the file is new, brought to it when it is older.

    Raises StoreInUse when another process holds it (after a short wait), StoreFull when the disk has no room, and
    StoreError when the file is no store or damaged, or when its schema is not known.
    """
    make_directory(path.parent)
    tighten_data(path.parent)
    deadline = time.monotonic() + _LOCK_PATIENCE_S
    while True:  # who has it open needs `opening` to close it
        try:
            with opening(path):
                connection = connect_while_opening(path, patience_s=0.0)
                note_opening(path)
                return connection
        except StoreInUse:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


@ctrl_c_as_usual()
def connect_while_opening(path: Path, *, patience_s: float = _LOCK_PATIENCE_S) -> duckdb.DuckDBPyConnection:
    """`connect` for whoever is inside `opening` already."""
    _remove_unborn(path)
    fresh = not path.exists()
    connection = _connect(path, patience_s)
    _remove_leftovers(path)
    try:
        schema = {} if fresh else _schema(connection, path)
        if not schema:
            make(connection)
        else:
            if schema["version"] != VERSION:
                migrations.to_current(connection, schema["version"], path)
                connection = _connect(path)
                schema = _schema(connection, path)
            migrations.renew_views(connection, schema)
            with reading_shown_to_others(path):
                reread.reread(connection, schema)
        for_its_user(path)
        return connection
    except duckdb.Error as error:
        connection.close()
        raise cannot_be("opened", path, error) from error
    except BaseException:
        connection.close()
        raise


def _remove_unborn(path: Path) -> None:
    """Removes a file that is shorter than DuckDB's headers: its maker died or had no room, and it holds nothing. Any
    other file is not opened: closing it would end the lock of an instance of DuckDB in this process that has it open,
    and another process would write the same file."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size < _HEADERS and path.read_bytes()[8:12] in (b"DUCK", b""):
            path.unlink()


def _remove_leftovers(path: Path) -> None:
    """Removes what a process that was killed had put beside the store, which this one alone has open: what a query
    had no memory for, and a copy that was not done."""
    shutil.rmtree(path.with_name(path.name + ".tmp"), ignore_errors=True)
    for ending in FILES:
        with contextlib.suppress(OSError):
            copy_beside(path).with_name(copy_beside(path).name + ending).unlink()


def _connect(path: Path, patience_s: float = _LOCK_PATIENCE_S) -> duckdb.DuckDBPyConnection:
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return _confined(connection_to(path), path)
        except duckdb.Error as error:
            if not any(one in str(error) for one in _HELD):
                raise cannot_be("opened", path, error) from error
            if time.monotonic() > deadline:
                raise _locked(path, error) from error
        time.sleep(0.05)


def _confined(connection: duckdb.DuckDBPyConnection, path: Path) -> duckdb.DuckDBPyConnection:
    """A connection that reaches the store, the copy that `Store.prune` makes beside it, and what DuckDB itself puts
    there; no other file, no network, and nothing undoes that. Whoever may query the store of a collector would read
    any file of its user otherwise."""
    if connection.execute("SELECT current_setting('enable_external_access')").fetchone() == (True,):
        allowed = [name_of(f"{one}{ending}") for one in (path, copy_beside(path)) for ending in FILES]
        connection.execute("SET allowed_paths = ?", [allowed])
        connection.execute("SET enable_external_access = false")
        connection.execute("PRAGMA disable_checkpoint_on_shutdown")  # see close_whole
        connection.execute("SET lock_configuration = true")
    return connection


def _locked(path: Path, error: duckdb.Error) -> StoreInUse:
    if _OPEN_HERE in str(error):
        return StoreInUse(f"the store {path} is open in this process already", "Share the open one, or close it first.")
    holder = re.search(r"held in (.+?) \(PID (\d+)\)", str(error))
    if holder is None:
        return StoreInUse(f"the store {path} is in use by another process", "Wait until it ends, then try again.")
    program, pid = holder.groups()
    return StoreInUse(
        f"the store {path} is in use by process {pid} ({program})",
        f"Wait until it ends, or stop it with `kill {pid}`; then try again.",
    )


def _schema(connection: duckdb.DuckDBPyConnection, path: Path) -> dict[str, Any]:
    """What the row of `arttrace_schema` says, by its columns, of which an older store has fewer. Empty for a file
    without tables and views, whose maker died before the first commit."""
    try:
        rows = connection.execute("SELECT * FROM arttrace_schema")
    except duckdb.CatalogException:
        if not _names(connection):
            return {}
        raise StoreError(
            f"{path} is a DuckDB file, but not a store of arttrace", "Pass another directory with --dir."
        ) from None
    names = [column[0] for column in rows.description or ()]
    found = [dict(zip(names, row, strict=True)) for row in rows.fetchall()]
    versions = [one.get("version") for one in found]
    if len(versions) != 1 or versions[0] not in (VERSION, *migrations.FROM):
        raise StoreError(
            f"the store {path} has schema version {', '.join(map(str, versions)) or 'none'}, this version of arttrace "
            f"knows version {VERSION}",
            "Use the version of arttrace that wrote it, or pass another directory with --dir.",
        )
    if versions[0] != 1 and "views" not in names and "links" not in _names(connection):
        trace_links.find(connection)
    return found[0]


def _names(connection: duckdb.DuckDBPyConnection) -> set[str]:
    """Of the tables and views."""
    query = """SELECT table_name FROM duckdb_tables() WHERE NOT internal
        UNION ALL SELECT view_name FROM duckdb_views() WHERE NOT internal"""
    return {name for (name,) in connection.execute(query).fetchall()}
