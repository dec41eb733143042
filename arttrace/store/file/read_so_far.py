"""What those who wait for a store are told of the others, by its lock's file: its time is that of the last opening, and
it says how far the process that opens it now is with the runs that another version stored."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec

from arttrace.store.file.reading import Tell, also_reported
from arttrace.system.processes import is_alive


class _Said(msgspec.Struct, frozen=True):
    pid: int
    done: int
    total: int


def lock_file(path: Path) -> Path:
    """The file that is locked by whoever opens a store or replaces its file."""
    return path.with_name(path.name + ".lock")


def note_opening(path: Path) -> None:
    """The store is open now: to those who wait for it, a sign that others get it, and let go of it."""
    with contextlib.suppress(OSError):
        os.utime(lock_file(path))


def last_opening(path: Path) -> int:
    """When somebody last opened the store, in nanoseconds; 0 where nobody has."""
    try:
        return lock_file(path).stat().st_mtime_ns
    except OSError:
        return 0


def read_so_far(path: Path) -> tuple[int, int] | None:
    """How many runs of how many the process has read that opens this store now; None where none says."""
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        said = msgspec.json.decode(lock_file(path).read_bytes(), type=_Said)
        if is_alive(said.pid):
            return said.done, said.total
    return None


def reading_message(done: int, total: int) -> str:
    """What is said of it where there is no bar."""
    return f"runs that another version stored are read: {done} of {total}"


@contextlib.contextmanager
def reading_shown_to_others(path: Path) -> Iterator[None]:
    """In the body, which is inside `opening`, what is read is shown to those who wait for the store, too."""
    file = lock_file(path)

    def write(content: bytes) -> None:
        with contextlib.suppress(OSError):  # they wait without
            file.write_bytes(content)

    def telling(total: int) -> Tell:
        return lambda done: write(msgspec.json.encode(_Said(os.getpid(), done, total)))

    try:
        with also_reported(telling):
            yield
    finally:
        with contextlib.suppress(OSError):
            if file.stat().st_size:
                write(b"")
