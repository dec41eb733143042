"""Errors of the machine (another user's file, a full disk), with cause and remedy."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from pathlib import Path

from arttrace.system.errors import ArttraceError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)


def machine_error(error: OSError) -> ArttraceError | None:
    """The error as one that is shown without a traceback, or None if the cause is not the machine's alone."""
    path = Path(os.fsdecode(error.filename)) if isinstance(error.filename, str | bytes) else None
    where = f"{path}: " if path is not None else ""
    said = f"{where}{error.strerror or error}"
    if error.errno in _FULL:
        hint = "Free disk space, then try again. What was stored before is not lost."
        return ArttraceError(said, hint)
    if path is None:
        return None
    if error.errno == errno.EROFS:
        return ArttraceError(said, "Choose a data directory that can be written: --dir, or ARTTRACE_DIR.")
    if error.errno == errno.ENOTDIR:
        return ArttraceError(said, "A file stands where a directory has to be. Choose another: --dir, or ARTTRACE_DIR.")
    if error.errno in _FORBIDDEN:
        return ArttraceError(
            said, f"{_owner(path)}Use it as the user who owns it, or choose another: --dir, ARTTRACE_DIR."
        )
    return None


def _owner(path: Path) -> str:
    """Whose the path is, or the nearest directory above it that can be seen."""
    if sys.platform == "win32":
        return ""
    import pwd

    for each in (path, *path.parents):
        with contextlib.suppress(OSError):
            owner = each.stat().st_uid
            name = str(owner)
            with contextlib.suppress(KeyError):
                name = pwd.getpwuid(owner).pw_name
            return "" if owner == os.geteuid() else f"{each} belongs to {name}. "
    return ""
