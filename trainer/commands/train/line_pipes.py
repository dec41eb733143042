"""Lines of JSON over standard input and output, for a command that another process keeps running."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
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


def lines_in(stop: threading.Event) -> Iterator[bytes]:
    """The lines of standard input until it ends, `stop` is set, or the process that started this one is gone: what it
    forked may hold the other end open."""
    unfinished, starter = b"", os.getppid()
    while not stop.is_set() and os.getppid() == starter:
        if not select.select([0], [], [], _LOOK_EVERY_S)[0]:
            continue
        chunk = os.read(0, 1 << 16)
        if not chunk:
            return
        *lines, unfinished = (unfinished + chunk).split(b"\n")
        yield from lines
