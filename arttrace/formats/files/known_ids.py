"""The ids that were read before: the last ones in memory, the others on disk, so that memory does not grow with the
length of a file."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

_IN_MEMORY = 32_768


class KnownIds:
    """Short values by hashes; what memory does not hold is in a temporary file of SQLite's, which goes with this
    object."""

    def __init__(self) -> None:
        self._in_memory: dict[bytes, str | int | None] = {}
        self._on_disk: sqlite3.Connection | None = None
        self.count = 0

    def add(self, ids: Iterable[bytes]) -> None:
        """Counts those that were not there."""
        new = [id for id in dict.fromkeys(ids) if id not in self._in_memory]
        if self._on_disk is None:
            self._in_memory.update(dict.fromkeys(new))
            self.count += len(new)
            self._bound()
        else:
            before = self._on_disk.total_changes
            self._on_disk.executemany("INSERT OR IGNORE INTO known VALUES (?, NULL)", ((id,) for id in new))
            self.count += self._on_disk.total_changes - before

    def adds(self, id: bytes) -> bool:
        """Counts it; whether it was not there."""
        before = self.count
        self.add([id])
        return self.count > before

    def __contains__(self, id: bytes) -> bool:
        """Whether it was added or kept."""
        if id in self._in_memory or self._on_disk is None:
            return id in self._in_memory
        return self._on_disk.execute("SELECT 1 FROM known WHERE id = ?", [id]).fetchone() is not None

    def get(self, id: bytes) -> str | int | None:
        """The value kept last; None where there is none."""
        if id in self._in_memory or self._on_disk is None:
            return self._in_memory.get(id)
        row = self._on_disk.execute("SELECT value FROM known WHERE id = ?", [id]).fetchone()
        return None if row is None else row[0]

    def keep(self, id: bytes, value: str | int) -> None:
        """Keeps a value; an earlier one gives way."""
        self._in_memory[id] = value
        self._bound()

    def _bound(self) -> None:
        if len(self._in_memory) <= _IN_MEMORY:
            return
        if self._on_disk is None:
            self._on_disk = sqlite3.connect("", isolation_level=None)
            self._on_disk.execute("PRAGMA journal_mode = OFF")
            self._on_disk.execute("CREATE TABLE known (id BLOB PRIMARY KEY, value) WITHOUT ROWID")
            self._on_disk.execute("BEGIN")
        self._on_disk.executemany("INSERT OR REPLACE INTO known VALUES (?, ?)", sorted(self._in_memory.items()))
        self._in_memory.clear()
