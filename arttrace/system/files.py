"""Files as a whole: replaced at once, and measured."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO


def replace_file(path: Path, content: bytes) -> None:
    """Puts a file with this content in the place of the one that is there, durably and at once: whoever reads it finds
    the old content or the new one. It is readable by this user only. Raises OSError; the file is then as it was."""
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{secrets.token_hex(4)}")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write in, which takes the place of `path` when the block ends; if that raises, all is as it was.

    It is written beside what the name leads to. A device or a pipe is written itself: no file may take its place.
    Raises OSError.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with path.open("wb") as device:
            yield device
        return
    part = path.with_name(f".{path.name}.part")
    file = part.open("wb")
    try:
        with file:
            yield file
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def directory_bytes(directory: os.PathLike[str], suffix: str = "") -> int:
    """The size of the files right inside a directory whose names end so; 0 when it is not there."""
    total = 0
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.endswith(suffix):
                with contextlib.suppress(FileNotFoundError):
                    total += entry.stat().st_size
    return total
