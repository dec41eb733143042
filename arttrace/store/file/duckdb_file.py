"""The DuckDB file as a whole: created, and replaced atomically, while no other process can open it."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb

from arttrace.store.file import reread
from arttrace.store.file.read_so_far import lock_file, read_so_far
from arttrace.store.file.reading import Elsewhere
from arttrace.store.rows import tables, views
from arttrace.system.errors import StoreError, StoreInUse
from arttrace.system.journal import lock
from arttrace.system.private_files import tighten

# The default of 16 MB stalls ingest with a checkpoint every few thousand spans; what waits for one lies in memory.
_SETTINGS: dict[str, Any] = {"checkpoint_threshold": "64MB", "memory_limit": "25%"}
FILES = ("", ".wal", ".wal.checkpoint", ".wal.recovery")
"""What DuckDB makes of a store, by what is added to its name."""
_OPENING_PATIENCE_S = 30.0


@contextlib.contextmanager
def opening(path: Path) -> Iterator[None]:
    """Nobody else opens the store meanwhile: for as long as it is opened or closed, or its file is replaced by another.
    Whoever does is waited for, and longer while it says that it reads runs again, and gets further."""
    fd = os.open(lock_file(path), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        waiting = Elsewhere(_OPENING_PATIENCE_S)
        while not lock.acquire(fd):
            waiting.at(read_so_far(path))
            if waiting.is_over:
                raise StoreInUse(
                    f"another process is opening or rewriting the store {path}", "Wait until it is done; try again."
                )
            time.sleep(0.02)
        waiting.end()
        yield
    finally:
        os.close(fd)


def identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file, which stay while a process has it open; None where there is none of that name."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def close_whole(connection: duckdb.DuckDBPyConnection, path: Path, opened: tuple[int, int] | None) -> None:
    """Closes a store, its log taken into the file, if that is still the one of the identity `opened`. Of a store that
    was removed DuckDB would remove the log of the one that is in its place, with all that is in it."""
    if opened is not None and identity(path) == opened:
        with contextlib.suppress(duckdb.Error):  # as where the disk is full: whoever opens it next reads the log
            connection.execute("CHECKPOINT")
    connection.close()


def copy_beside(path: Path) -> Path:
    """Where a store is written anew before it takes the place of the other."""
    return path.with_name(path.name + ".new")


def replace(path: Path, by: Path) -> None:
    """Puts a closed store in the place of another closed one, at once and durably. Call it inside `opening`."""
    for one in (path, by):
        if one.with_name(one.name + ".wal").exists():
            raise StoreError(f"the store {one} was not closed cleanly: it is left as it is", "Open it, then try again.")
    fd = os.open(by, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    by.replace(path)


def bytes_in_use(connection: duckdb.DuckDBPyConnection, database: str | None = None) -> int:
    """Of the connection's file, or of one that is attached, as of its last checkpoint. What is written anew leaves
    blocks free, which are used again later: the file may be twice as large."""
    query = """SELECT block_size * used_blocks FROM pragma_database_size()
        WHERE database_name = coalesce(?, current_database())"""
    [(size,)] = connection.execute(query, [database]).fetchall()
    return int(size)


def connection_to(path: Path) -> duckdb.DuckDBPyConnection:
    """A connection to a file, with our settings; its cursors have them too."""
    connection = duckdb.connect(name_of(path), config=_SETTINGS)
    try:
        # In `python -c` and notebooks it would go to stdout. In one without ipywidgets there is none, nor is it set.
        if connection.execute("SELECT current_setting('enable_progress_bar')").fetchone() == (True,):
            connection.execute("SET enable_progress_bar = false")
        connection.execute("SET GLOBAL TimeZone = 'UTC'")
        for_its_user(path)
    except BaseException:
        connection.close()  # whoever keeps the error would keep the file's lock
        raise
    return connection


def name_of(path: Path | str) -> str:
    """A file's name as DuckDB takes it: UTF-8, whatever Python takes names to be. An interpreter whose locale is C, and
    that is set to ignore it, reads a name in any other letters as bytes that it does not know."""
    try:
        return os.fsencode(path).decode()
    except UnicodeDecodeError:
        raise StoreError(
            f"DuckDB opens no file whose name is not UTF-8: {str(path)!a}", "Give another directory with --dir."
        ) from None


def for_its_user(path: Path) -> None:
    """Takes what DuckDB made of a store, as the umask says, from everybody but its user."""
    for ending in FILES:
        tighten(path.with_name(path.name + ending))


def create(path: Path) -> duckdb.DuckDBPyConnection:
    """A new, empty store in a file that nobody else knows of."""
    for leftover in (path, path.with_name(path.name + ".wal")):
        leftover.unlink(missing_ok=True)
    connection = connection_to(path)
    make(connection)
    for_its_user(path)
    return connection


def make(connection: duckdb.DuckDBPyConnection) -> None:
    """Tables and views of this version in an empty file."""
    version = f"INSERT INTO arttrace_schema (version) VALUES ({tables.VERSION});"  # noqa: S608
    connection.execute(f"BEGIN; {tables.create(*tables.ALL)} {version} {views.VIEWS} {reread.SAY} COMMIT")
