"""Lines of JSON over standard input and output, for a command that another process keeps running."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

_LOOK_EVERY_S = 0.2


@contextlib.contextmanager
def answers() -> Iterator[Callable[[msgspec.Struct], None]]:
    """Reserve standard output for answers: what libraries print goes to standard error meanwhile."""
    sys.stdout.flush()
    out = os.dup(1)
    os.dup2(2, 1)
    try:
        with os.fdopen(os.dup(out), "wb") as lines:

            def answer(one: msgspec.Struct) -> None:
                lines.write(msgspec.json.encode(one) + b"\n")
                lines.flush()

            yield answer
    finally:
        os.dup2(out, 1)
        os.close(out)


class LinesIn:
    """The lines of standard input until it ends, `stop` is set, or the process that started this one is gone: what it
    forked may hold the other end open. To be iterated over once."""

    def __init__(self, stop: threading.Event) -> None:
        self._stop = stop
        self._starter = os.getppid()
        self._lines: deque[bytes] = deque()
        self._unfinished = b""
        self._ended = False

    def __iter__(self) -> Iterator[bytes]:
        while not self._stop.is_set() and os.getppid() == self._starter:
            if not self._lines and not self._ended:
                self._read(_LOOK_EVERY_S)
            if self._lines:
                yield self._lines.popleft()
            elif self._ended:
                return

    def arrived(self) -> list[bytes]:
        """Those that are here by now and not iterated over yet."""
        self._read(0.0)
        return list(self._lines)

    def _read(self, within_s: float) -> None:
        if self._ended or not select.select([0], [], [], within_s)[0]:
            return
        chunk = os.read(0, 1 << 16)
        self._ended = not chunk
        *lines, self._unfinished = (self._unfinished + chunk).split(b"\n")
        self._lines.extend(lines)
