"""Captured data is readable by its user only: directories 0700 and files 0600, whatever the umask, existing ones
included.

On POSIX; on Windows nothing is changed."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

from arttrace.system.files import replace_file

_NAMES = (
    "spool",
    "outbox",
    "receivers",
    "claude-code",
    "journal",
    "policies",
    "autorl",
    "langfuse",
    "logs",
    "retained",
    "retention.json",
    "unread_requests.json",
    "unread_spans.json",
    "unread_entries.json",
    "owner.json",
    "serving.json",
    "serve.lock",
    "last_run",
    "viewer.key",
    "server.key",
)
_BEGINNINGS = ("store.duckdb", ".owner")
_OTHERS = stat.S_IRWXG | stat.S_IRWXO

_given_umask = -1


def only_for_its_user() -> None:
    """From here on this process, one of our commands, and those that it starts make files for their user alone."""
    global _given_umask
    if sys.platform != "win32":
        _given_umask = os.umask(_OTHERS)


def users_umask() -> int:
    """The umask for programs of the user's that are started: as it was; -1 (`subprocess` then leaves it) when it is."""
    return _given_umask


def make_directory(path: Path) -> bool:
    """Makes a directory and those above that are missing, for this user alone. Returns whether it is new.

    Raises OSError; where the system makes none at all, as in /proc, it is a PermissionError."""
    if path.is_dir():
        return False
    make_directory(path.parent)
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:  # another process was faster
        return False
    except FileNotFoundError:
        if not path.parent.is_dir():  # removed meanwhile
            raise
        raise PermissionError(errno.EPERM, "No directory can be made there", str(path)) from None
    return True


def kept_key(file: Path) -> str:
    """The key in a file: made once, for this user alone, so that clients and browsers keep theirs."""
    try:
        if key := file.read_text().strip():
            return key
    except OSError:
        pass
    key = secrets.token_urlsafe(24)
    with contextlib.suppress(OSError):  # where it cannot be kept it holds until this process ends
        make_directory(file.parent)
        replace_file(file, key.encode())
        tighten(file)
    return key


def tighten(path: Path) -> None:
    """Remove everybody else's access to a file or directory of this user."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):  # gone meanwhile, or a disk without modes
            found = path.lstat()
            if found.st_mode & _OTHERS and not stat.S_ISLNK(found.st_mode) and found.st_uid == os.geteuid():
                path.chmod(stat.S_IMODE(found.st_mode) & ~_OTHERS)


def tighten_data(root: Path) -> None:
    """The same of a data directory, and when it was open to others of all that is in it. One that holds files of other
    kinds as well, a project's own directory, say, stays as it is; what is ours in it does not."""
    if sys.platform != "win32":
        with contextlib.suppress(OSError):
            if not root.stat().st_mode & _OTHERS:
                return
            entries = list(root.iterdir())
            ours = [one for one in entries if one.name in _NAMES or one.name.startswith(_BEGINNINGS)]
            if root.name == ".arttrace" or len(ours) == len(entries):
                tighten(root)
                ours = entries
            for entry in ours:
                for path in _below(entry):
                    tighten(path)


def _below(path: Path) -> Iterator[Path]:
    yield path
    if path.is_dir() and not path.is_symlink():
        for folder, directories, files in os.walk(path):
            yield from (Path(folder, name) for name in (*directories, *files))
