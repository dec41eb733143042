"""The ids that were read before, kept on disk: memory does not grow with a file's length."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable


class KnownIds:
    """Short values by hashes, in a temporary file of SQLite's, which goes with this object."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None)
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("CREATE TABLE known (id BLOB PRIMARY KEY, value) WITHOUT ROWID")
        self._table.execute("BEGIN")
        self.count = 0

    def add(self, ids: Iterable[bytes]) -> None:
        """Counts those that were not there."""
        before = self._table.total_changes
        self._table.executemany("INSERT OR IGNORE INTO known VALUES (?, NULL)", ((id,) for id in ids))
        self.count += self._table.total_changes - before

    def adds(self, id: bytes) -> bool:
        """Counts it; whether it was not there."""
        before = self.count
        self.add([id])
        return self.count > before

    def get(self, id: bytes) -> str | int | None:
        """The value kept last; None where there is none."""
        row = self._table.execute("SELECT value FROM known WHERE id = ?", [id]).fetchone()
        return None if row is None else row[0]

    def keep(self, id: bytes, value: str | int) -> None:
        """Keeps a value; an earlier one gives way."""
        self._table.execute("INSERT OR REPLACE INTO known VALUES (?, ?)", [id, value])
