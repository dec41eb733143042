"""What of a project's data has been sent to Langfuse, where it is seen there, and how far a pull came: small files in
the data directory.

They are written after what they say has happened, so that after a crash something is sent or read twice, which changes
nothing, and never left out.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import msgspec

from arttrace.capture.base.langfuse_project import Connection
from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.files import replace_file
from arttrace.system.paths import DataDir

_DIRECTORY = "langfuse"


class Sent(msgspec.Struct, frozen=True):
    """A run that Langfuse has: the revision of its spans, a hash of its scores, and what its page is named by."""

    id: str
    spans: str
    scores: str = ""
    page: str = ""


class SentRuns:
    """The runs that one project has, by id. Lines are appended; the last one of a run counts, and `unreadable` counts
    those that are damaged or were cut off: their runs are not known. They are looked up in a temporary table on disk,
    so that memory does not grow with their number."""

    def __init__(self, data: DataDir, connection: Connection) -> None:
        self._path = _file(data, f"sent-{connection.id}.jsonl")
        self._table = sqlite3.connect("")  # a temporary file, which goes with the connection
        self._table.execute("PRAGMA journal_mode = OFF")
        self._table.execute("CREATE TABLE sent (id TEXT PRIMARY KEY, spans TEXT, scores TEXT, page TEXT) WITHOUT ROWID")
        self.unreadable = 0
        with contextlib.suppress(FileNotFoundError), self._path.open("rb") as lines:
            self._keep(_decoded(lines, self._not_read))

    def get(self, id: str) -> Sent | None:
        """What is known of a run."""
        row = self._table.execute("SELECT id, spans, scores, page FROM sent WHERE id = ?", [id]).fetchone()
        return None if row is None else Sent(*row)

    def add(self, runs: list[Sent]) -> None:
        """Langfuse has acknowledged these. Durable when it returns."""
        if not runs:
            return
        _make(self._path.parent)
        with self._path.open("ab") as file:
            if file.tell():
                file.write(b"\n")  # ends a line that was cut off
            file.write(b"\n".join(msgspec.json.encode(one) for one in runs) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self._keep(runs)

    def _not_read(self) -> None:
        self.unreadable += 1

    def _keep(self, runs: Iterable[Sent]) -> None:
        rows = ((one.id, one.spans, one.scores, one.page) for one in runs)
        self._table.executemany("INSERT OR REPLACE INTO sent VALUES (?, ?, ?, ?)", rows)


def _decoded(lines: Iterable[bytes], not_read: Callable[[], None] = lambda: None) -> Iterator[Sent]:
    """What lines say; `not_read` is called for each that says nothing, as the last one of a process that was killed."""
    decode = msgspec.json.Decoder(Sent).decode
    for line in lines:
        try:
            one = decode(line)
        except UNREADABLE:
            if line.strip():
                not_read()
        else:
            yield one


class Project(msgspec.Struct, frozen=True):
    """Where a person sees a project: its server, and the id that the server has for it."""

    url: str
    id: str

    @property
    def traces(self) -> str:
        """The page of all its traces."""
        return f"{self.url}/project/{self.id}/traces"

    def save(self, data: DataDir, connection: Connection) -> None:
        """Replaces the file at once."""
        path = _file(data, f"project-{connection.id}.json")
        _make(path.parent)
        replace_file(path, msgspec.json.encode(self))


def links(data: DataDir, run: str) -> list[str]:
    """The pages on which Langfuse shows a run, one for each project that it was pushed to."""
    found, written = [], msgspec.json.encode(run)
    for path in sorted((data.root / _DIRECTORY).glob("project-*.json")):
        try:
            project = msgspec.json.decode(path.read_bytes(), type=Project)
            with path.with_name(path.name.replace("project-", "sent-") + "l").open("rb") as lines:
                sent = [one for one in _decoded(line for line in lines if written in line) if one.id == run]
        except (OSError, *UNREADABLE):
            continue
        if sent and sent[-1].page:
            found.append(f"{project.traces}/{sent[-1].page}")
    return found


class Cursor(msgspec.Struct, frozen=True):
    """How far a pull came: `since` and `to` bound the time it reads, so that what comes meanwhile does not move the
    pages; `phase` is "observations" or "scores"."""

    to: str
    phase: str = "observations"
    cursor: str | None = None
    observations: int = 0
    scores: int = 0
    already_stored: int = 0
    since: str | None = None


class PullCursor:
    """The cursor of one query that was not read to its end."""

    def __init__(self, data: DataDir, connection: Connection, query: str) -> None:
        self._path = _file(data, f"pull-{connection.id}-{query}.json")

    def load(self) -> Cursor | None:
        """None when there is nothing to go on with."""
        try:
            return msgspec.json.decode(self._path.read_bytes(), type=Cursor)
        except (FileNotFoundError, *UNREADABLE):
            return None

    def save(self, cursor: Cursor) -> None:
        """Replaces the file at once."""
        _make(self._path.parent)
        replace_file(self._path, msgspec.json.encode(cursor))

    def clear(self) -> None:
        """The query was read to its end."""
        self._path.unlink(missing_ok=True)


def _file(data: DataDir, name: str) -> Path:
    return data.root / _DIRECTORY / name


def _make(directory: Path) -> None:
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
