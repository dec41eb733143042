"""An advisory lock that says whether the writer of a segment is alive; the system drops it when the process ends."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from arttrace.system.processes import is_alive

if sys.platform == "win32":
    import msvcrt

    # Locks on Windows are mandatory for the bytes they cover: one byte that no segment ever reaches.
    _FAR = 1 << 62

    def acquire(fd: int) -> bool:
        """Take the lock on an open file, without waiting. False when someone else holds it."""
        position = os.lseek(fd, 0, os.SEEK_CUR)
        try:
            os.lseek(fd, _FAR, os.SEEK_SET)
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        finally:
            os.lseek(fd, position, os.SEEK_SET)
        return True

else:
    import fcntl

    def acquire(fd: int) -> bool:
        """Take the lock on an open file, without waiting. False when someone else holds it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def lives_and_holds(pid: int, path: Path) -> bool:
    """Whether the process of this number lives, and somebody holds the lock on the file, as far as that can be asked:
    the number of one that was killed may be another process's by now. Who wants the lock at this moment finds it taken.
    """
    if not is_alive(pid):
        return False
    try:
        with path.open("rb") as file:
            return not acquire(file.fileno())
    except OSError:
        return True
