"""Errors of the machine (another user's file, a full disk, a library that is not there), with cause and remedy."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sys
from pathlib import Path
from traceback import walk_tb

from arttrace.system.errors import ArttraceError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM)
_COPY = "To read one that cannot be written, copy it and pass the copy."


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
        return ArttraceError(
            said,
            f"Choose a data directory that can be written: --dir, or ARTTRACE_DIR. {_COPY}",
        )
    if error.errno == errno.ENOTDIR:
        return ArttraceError(said, "A file stands where a directory has to be. Choose another: --dir, or ARTTRACE_DIR.")
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        return ArttraceError(said, "No such path can be. Choose another: --dir, or ARTTRACE_DIR.")
    if error.errno in _FORBIDDEN:
        return ArttraceError(
            said, f"{_owner(path)}Use it as the user who owns it, or choose another: --dir, ARTTRACE_DIR. {_COPY}"
        )
    return None


_UNLOADABLE = re.compile(
    r"cannot open shared object file|undefined symbol|version `\S+' not found|invalid ELF header"  # Linux
    r"|Library not loaded|image not found|Symbol not found|DLL load failed"  # macOS, Windows
)


def library_error(error: ImportError | OSError) -> ArttraceError | None:
    """The error as one that is shown without a traceback, or None if it does not say that a compiled library cannot be
    loaded."""
    if not _UNLOADABLE.search(str(error)):
        return None
    frames = [str(frame.f_globals.get("__name__", "")).partition(".")[0] for frame, _ in walk_tb(error.__traceback__)]
    return cannot_import(next((name for name in reversed(frames) if name not in ("importlib", "ctypes")), ""), error)


def cannot_import(package: str, error: Exception) -> ArttraceError:
    """What a person is shown where a package that is installed cannot be imported for its compiled libraries."""
    if package == "torch":
        hint = (
            "This is a build for a card without its libraries, or for another machine: install torch's CPU build, or "
            'requirements/cuda.txt. docs/get-started.md says more under "Machines".'
        )
    else:
        hint = f"Install {package} again, with the packages that it needs, in a build for this machine."
    return ArttraceError(f"{package} is installed, and cannot be imported: {error}", hint)


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
