"""How many of something could not be read, in a file of the data directory, for whoever looks at the runs.

What cannot be read names no run, so that no run is known to lack what was in it.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.system.files import replace_file
from arttrace.system.journal import lock
from arttrace.system.paths import DataDir

_SHOWN = 200
_EVERY_S = 1.0
_PATIENCE_S = 2.0


class Unread(msgspec.Struct, frozen=True):
    """How many there were, when the last one came, and why that could not be read."""

    count: int = 0
    last_ns: int = 0
    reason: str = ""


class UnreadThere(msgspec.Struct, frozen=True):
    """What could not be read in a data directory: requests as a whole, spans of no known trace, entries of journals."""

    requests: Unread = Unread()
    spans: Unread = Unread()
    entries: Unread = Unread()


def read_unread(path: Path) -> Unread:
    """Those of a file; none where there is no such file."""
    with contextlib.suppress(OSError, *UNREADABLE):
        return msgspec.json.decode(path.read_bytes(), type=Unread)
    return Unread()


def unread_in(data: DataDir) -> UnreadThere:
    """Those of a data directory."""
    return UnreadThere(*map(read_unread, (data.unread_requests, data.unread_spans, data.unread_entries)))


class UnreadCount:
    """Counts them in the file at `path`, which is at most a second behind, whoever else counts in it too; `counted` are
    those of this process."""

    def __init__(self, path: Path) -> None:
        self.counted = 0
        self._path = path
        self._lock = threading.Lock()
        self._more = Unread()  # than the file says
        self._written: float | None = None
        self._later: threading.Timer | None = None

    def add(self, reason: str, count: int = 1) -> str:
        """So many more. Returns the reason as it is shown."""
        with self._lock:
            self.counted += count
            shown = reason[:_SHOWN].encode(errors="replace").decode()
            self._more = Unread(self._more.count + count, time.time_ns(), shown)
            if self._written is None or time.monotonic() - self._written >= _EVERY_S:
                self._write()
            if self._more.count and self._later is None:  # perhaps none follows that would write it
                self._later = threading.Timer(_EVERY_S, self.close)
                self._later.daemon = True
                self._later.start()
            return shown

    def close(self) -> None:
        """Makes the file say all."""
        with self._lock:
            if self._later is not None:
                self._later.cancel()
                self._later = None
            if self._more.count:
                self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        with contextlib.suppress(OSError), self._alone():  # a full disk is reported elsewhere
            there = read_unread(self._path)
            newest = max(there, self._more, key=lambda one: one.last_ns)
            of_all = msgspec.structs.replace(newest, count=there.count + self._more.count)
            replace_file(self._path, msgspec.json.encode(of_all))
            self._more = Unread()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else adds to the file meanwhile. Raises OSError where another does so all the time."""
        fd = os.open(self._path.with_name(f".{self._path.name}.lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            until = time.monotonic() + _PATIENCE_S
            while not lock.acquire(fd):
                if time.monotonic() > until:
                    raise TimeoutError(f"another process writes {self._path}")
                time.sleep(0.01)
            yield
        finally:
            os.close(fd)
