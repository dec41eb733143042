"""How many of something could not be read, in a file of the data directory, for whoever looks at the runs.

What cannot be read names no run, so that no run is known to lack what was in it.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import msgspec

from arttrace.system.files import replace_file
from arttrace.system.paths import DataDir

_SHOWN = 200
_EVERY_S = 1.0


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
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode(path.read_bytes(), type=Unread)
    return Unread()


def unread_in(data: DataDir) -> UnreadThere:
    """Those of a data directory."""
    return UnreadThere(*map(read_unread, (data.unread_requests, data.unread_spans, data.unread_entries)))


class UnreadCount:
    """Counts them in the file at `path`, which is at most a second behind; `counted` are those of this process."""

    def __init__(self, path: Path) -> None:
        self.counted = 0
        self._path = path
        self._lock = threading.Lock()
        self._found: Unread | None = None
        self._behind = False
        self._written: float | None = None
        self._later: threading.Timer | None = None

    def add(self, reason: str, count: int = 1) -> str:
        """So many more. Returns the reason as it is shown."""
        with self._lock:
            self.counted += count
            shown = reason[:_SHOWN].encode(errors="replace").decode()
            before = self._found or read_unread(self._path)
            self._found, self._behind = Unread(before.count + count, time.time_ns(), shown), True
            if self._written is None or time.monotonic() - self._written >= _EVERY_S:
                self._write()
            elif self._later is None:  # perhaps none follows that would write it
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
            if self._behind:
                self._write()

    def _write(self) -> None:
        self._written, self._behind = time.monotonic(), False
        with contextlib.suppress(OSError):  # a full disk is reported elsewhere
            replace_file(self._path, msgspec.json.encode(self._found))
