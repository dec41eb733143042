"""Requests that a collector refused as a whole, kept in the data directory for whoever looks at the runs.

Such a request names no trace that could be read, so that no run is known to lack what it held.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

import msgspec

from arttrace.records.values.units import quantity
from arttrace.system.files import replace_file
from arttrace.system.paths import DataDir

_FILE = "unread_requests.json"
_SHOWN = 200
_EVERY_S = 1.0


class Unread(msgspec.Struct, frozen=True):
    """How many requests there were, when the last one came, and why that was refused."""

    requests: int = 0
    last_ns: int = 0
    reason: str = ""

    def told(self) -> str:
        """What a person is told of them."""
        return (
            f"the collector refused {quantity(self.requests, 'request')} that it could not read (the last:"
            f" {self.reason}); what they held, and which runs lack it, cannot be known: see the senders' logs"
        )


def read_unread(data: DataDir) -> Unread:
    """Those of a data directory."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        return msgspec.json.decode((data.root / _FILE).read_bytes(), type=Unread)
    return Unread()


class UnreadRequests:
    """Counts them; `counted` are those of this process. The file is at most a second behind. `say` gets the first."""

    def __init__(self, data: DataDir, say: Callable[[str], None] = lambda line: None) -> None:
        self.counted = 0
        self._data = data
        self._say = say
        self._lock = threading.Lock()
        self._found = read_unread(data)
        self._written: float | None = None

    def add(self, reason: str) -> None:
        """One more."""
        with self._lock:
            self.counted += 1
            shown = reason[:_SHOWN].encode(errors="replace").decode()
            self._found = Unread(self._found.requests + 1, time.time_ns(), shown)
            if self._written is None or time.monotonic() - self._written >= _EVERY_S:
                self._write()
            first = self.counted == 1
        if first:
            self._say(f"a request is refused that cannot be read ({shown}): `arttrace ls` counts them")

    def close(self) -> None:
        """Makes the file say all."""
        with self._lock:
            if self.counted:
                self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        with contextlib.suppress(OSError):  # a full disk is told of by the answers to good requests
            replace_file(self._data.root / _FILE, msgspec.json.encode(self._found))
