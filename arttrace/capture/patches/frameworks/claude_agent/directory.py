"""A directory that is its process's own, for the bodies that Claude Code writes; it is gone when the process is.

Beside it lies a file that its process holds a lock on: whoever makes the next directory removes those whose process was
killed.
"""

from __future__ import annotations

import os
import shutil
import weakref
from pathlib import Path

from arttrace.capture.base.ids import random_hex
from arttrace.system.journal.lock import acquire
from arttrace.system.private_files import make_directory

_LOCK = ".lock"


class OwnDirectory:
    """A new directory below `parent`, for this user alone. Raises OSError."""

    def __init__(self, parent: Path) -> None:
        make_directory(parent)
        _sweep(parent)
        while True:
            self.path = parent / random_hex(16)
            lock = _locked(self.path.with_suffix(_LOCK))
            if lock is not None:
                break
        self._finalizer = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        make_directory(self.path)

    def remove(self) -> None:
        """Remove it with all that is in it."""
        self._finalizer()


def _locked(file: Path) -> int | None:
    fd = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    if acquire(fd):
        return fd
    os.close(fd)
    return None


def _remove(path: Path, lock: int, pid: int) -> None:
    if pid != os.getpid():  # a forked child's end is not its parent's
        return
    shutil.rmtree(path, ignore_errors=True)
    path.with_suffix(_LOCK).unlink(missing_ok=True)
    os.close(lock)


def _sweep(parent: Path) -> None:
    for file in parent.glob(f"*{_LOCK}"):
        try:
            lock = _locked(file)
        except OSError:  # another user's
            continue
        if lock is not None:
            _remove(file.with_suffix(""), lock, os.getpid())
