"""Files as a whole: replaced atomically, and measured; what is said of one that cannot be written."""

from __future__ import annotations

import codecs
import contextlib
import errno
import os
import secrets
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from arttrace.system.errors import ArttraceError

_FAR = (500, 200)
_FULL_BELOW = 1 << 20


def replace_file(path: Path, content: bytes, *, durably: bool = True) -> None:
    """Replace a file by this content, durably and atomically: a reader sees either the old content or the new one. The
    file is readable by this user only. Raises OSError; the file is then unchanged.

    Not `durably` it waits for no disk: after a power failure the file may be empty.
    """
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            if durably:
                os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


@contextlib.contextmanager
def whole_file(path: Path | None) -> Iterator[BinaryIO]:
    """A file to write to, which replaces `path` when the block ends and it is on the disk; if the block raises, nothing
    changes. None is standard output, which is written directly.

    It is written beside the file that the name resolves to, under a name of its own: of several at a time the last one
    counts. A device or a pipe is written directly and never replaced. Raises OSError.
    """
    if path is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if path.exists() and not path.is_file():  # as it is named: what /dev/stdout resolves to may have no name
        with path.open("wb") as device:
            yield device
        return
    path = path.resolve()
    part = path.with_name(f".{path.name[:40]}-{secrets.token_hex(8)}.part")
    file = part.open("xb")
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def far_duplicate(fd: int) -> int:
    """The same file once more, by a number far from those that the system gives to whoever opens one.

    For what stays open: a program may close all files of its process, as daemons do, or one of them twice, and others
    open theirs in their place. Where so many numbers are not allowed it is one above the standard streams'.
    """
    if sys.platform == "win32":
        return os.dup(fd)
    else:  # noqa: RET505  what comes after such a test is none for the other system's types
        import fcntl

        for lowest in _FAR:
            with contextlib.suppress(OSError):
                return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)


def far_descriptor(fd: int) -> int:
    """The same, in the place of `fd`."""
    try:
        return far_duplicate(fd)
    finally:
        os.close(fd)


def written_text(file: Path) -> str:
    """The text that a person wrote into a file: in UTF-8, or in UTF-16 where a mark before it says so (PowerShell).
    Raises OSError, and UnicodeDecodeError for what is no text."""
    content = file.read_bytes()
    is_utf16 = content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return content.decode("utf-16" if is_utf16 else "utf-8-sig").replace("\r\n", "\n")


def not_written(output: Path | None, error: OSError, *, other: str = "Name another with -o") -> ArttraceError:
    """That a file or folder which a person named, or standard output, cannot be written, with the remedy; `other` says
    how to name another."""
    remedy = f"{other}, or give this user the right to write there."
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        remedy = "Free disk space, then run the same command again."
    elif error.errno == errno.ENOENT and output is not None and not output.parent.is_dir():
        remedy = f"Make its folder first: mkdir -p {shlex.quote(str(output.parent))}"
    return ArttraceError(f"{output or 'standard output'} cannot be written: {error.strerror or error}", remedy)


def disk_is_full(directory: Path) -> bool:
    """Whether the disk of a directory has next to no room: torch and safetensors give that names of their own."""
    import shutil  # slow to import, and every captured program imports this file

    try:
        return shutil.disk_usage(directory).free < _FULL_BELOW
    except OSError:
        return False


def directory_bytes(directory: os.PathLike[str], suffix: str = "") -> int:
    """The total size of the files directly inside a directory whose names end with `suffix`; 0 if there is no
    directory."""
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
    return total
