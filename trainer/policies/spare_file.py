"""Room for the next adapter: a file of its size, made while nobody waits, which it is written over.

Pages and blocks of a new file are found while it is written, and where others write to the disk its writer is made to
wait for them. What is written over pages that are there takes hardly longer than copying memory.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from pathlib import Path

ROOM = ".room"
"""Its name, beside the versions and then beside the adapter that takes its place."""
_LEAST = 8 << 20
"""Bytes of an adapter that is worth it."""
_PART = 4 << 20


class Room:
    """The file in a policy's directory. One process at a time makes versions there."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._unfinished = directory / f"{ROOM}.unfinished"
        self._making: threading.Thread | None = None
        self._given_up = threading.Event()

    def make(self, like: Path) -> None:
        """Begin to make room for a file as large as `like`. A full disk is no error, nor are too many threads: the next
        one is new then."""
        with contextlib.suppress(OSError, RuntimeError):
            size = like.stat().st_size
            if size >= _LEAST and shutil.disk_usage(self._directory).free > 8 * size:
                making = threading.Thread(target=self._make, args=(size,), name="arttrace-room", daemon=True)
                making.start()
                self._making = making

    def _make(self, size: int) -> None:
        with contextlib.suppress(OSError):
            with self._unfinished.open("wb", buffering=0) as file:
                while size > 0 and not self._given_up.is_set():
                    size -= file.write(bytes(min(size, _PART)))
            if size <= 0:
                self._unfinished.rename(self._directory / ROOM)
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)

    def take(self, directory: Path) -> None:
        """Put what was made into `directory`, where `write_tensors` finds it."""
        self._wait()
        with contextlib.suppress(OSError):
            self._unfinished.unlink(missing_ok=True)  # of a process that was killed
            (self._directory / ROOM).rename(directory / ROOM)

    def give_up(self) -> None:
        """Leave nothing unfinished, and no thread that writes: another process may make versions from now on."""
        self._given_up.set()
        self._wait()
        self._given_up.clear()

    def _wait(self) -> None:
        if self._making is not None:
            self._making.join()
            self._making = None
