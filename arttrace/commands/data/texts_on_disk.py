"""Ids without end, each once, in a temporary file: what has to be known of a whole store while it is exported."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator

from arttrace.store.bounded_parts import sized_parts

_TABLE = "CREATE TABLE texts (at INTEGER PRIMARY KEY, text TEXT UNIQUE, size INTEGER, place INTEGER)"


class TextsOnDisk:
    """Distinct texts, each with a size and a place in the order; what comes again is as it came first. The file is
    SQLite's, which goes with this object."""

    def __init__(self) -> None:
        self._table = sqlite3.connect("", isolation_level=None)
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute(_TABLE)
        self._table.execute("BEGIN")

    def __len__(self) -> int:
        [(count,)] = self._table.execute("SELECT count(*) FROM texts")
        return int(count)

    def adds(self, text: str) -> bool:
        """Adds it at the end; whether it was not there."""
        before = self._table.total_changes
        self.add([(text, 1, 0)])
        return self._table.total_changes > before

    def add(self, texts: Iterable[tuple[str, int, int]]) -> None:
        """Adds each with its size and its place."""
        self._table.executemany("INSERT OR IGNORE INTO texts (text, size, place) VALUES (?, ?, ?)", texts)

    def total(self) -> int:
        """The sum of their sizes."""
        [(total,)] = self._table.execute("SELECT coalesce(sum(size), 0) FROM texts")
        return int(total)

    def parts(self, size: int) -> Iterator[list[str]]:
        """All in their order, in parts of about this size."""
        return sized_parts(self._table.execute("SELECT text, size FROM texts ORDER BY place, at"), size)
