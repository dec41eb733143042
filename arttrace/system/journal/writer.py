"""Appending to a journal: one writer per process and directory, whole frames only, sealed when full."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from arttrace.system import native_threads
from arttrace.system.files import directory_bytes, far_descriptor, far_duplicate
from arttrace.system.journal import lock
from arttrace.system.journal.bases import WriterBases
from arttrace.system.journal.frames import HEADER, SHARING_HEADER, encode_frame
from arttrace.system.journal.reader import OPEN_SUFFIX, SEALED_SUFFIX
from arttrace.system.private_files import make_directory, tighten

_datasync = getattr(os, "fdatasync", os.fsync)

# How much a writer appends before it looks again at how much the directory holds: other processes write there too.
_ROOM_BYTES = 32 << 20


class JournalFull(OSError):
    """The journal's directory holds as much as it may; nothing was appended."""

    def __init__(self, directory: Path, limit: int) -> None:
        super().__init__(errno.ENOSPC, f"the journal holds its limit of {limit} bytes", str(directory))


class JournalWriter:
    """Appends payloads to segments of its own in `directory`, which several processes may share.

    What was appended is with the operating system when `append` returns, and so survives the death of the process;
    it is on the disk after `sync`, which `append` itself calls when the last one is `fsync_interval_s` seconds ago
    (0: every time, None: never). A segment is sealed at `max_segment_bytes`. `max_total_bytes` bounds the whole
    directory, to within 32 MiB for each process that writes there. Threads may share a writer, and append while `sync`
    waits for the disk; a forked child goes on in a segment of its own. A directory that is removed is made again;
    `removed` counts the payloads whose segment was removed while it was being written, whether or not somebody had read
    them. With `sharing` a payload is stored without what it has in common with an earlier one of its segment, of which
    up to 16 MiB are held for that; only readers since version 2 of segments read those.
    """

    def __init__(
        self,
        directory: Path,
        *,
        max_segment_bytes: int = 64 << 20,
        fsync_interval_s: float | None = 1.0,
        max_total_bytes: int | None = None,
        sharing: bool = False,
    ) -> None:
        self.directory = directory
        self._max_segment_bytes = max_segment_bytes
        self._fsync_interval_s = fsync_interval_s
        self._max_total_bytes = max_total_bytes
        self._bases = WriterBases() if sharing else None
        self._lock = native_threads.Lock()
        self._syncing = native_threads.Lock()  # taken before the other one
        self._synced_fd: int | None = None
        self._fd: int | None = None
        self._path = directory
        self._size = 0
        self._dirty = False
        self._last_sync = time.monotonic()
        self._room = 0
        self._payloads = 0
        self._failed: OSError | None = None
        self.removed = 0
        _writers.add(self)

    def append(self, *payloads: bytes) -> None:
        """Append payloads, all or none of them, in one write.

        Raises JournalFull at the directory's limit and OSError when the system refuses; nothing was appended then,
        and the next append tries again.
        """
        with self._lock:
            frames = self._frames(payloads)
            if self._fd is not None and self._size + len(frames) > self._max_segment_bytes > 0:
                self._seal()
                frames = self._frames(payloads)
            self._make_room(len(frames))
            self._append(payloads, frames)
            # Asked afterwards: in a process of many busy threads each call of the system may cost a long wait for the
            # interpreter, and what is written can be read meanwhile.
            if self._fd is not None and os.fstat(self._fd).st_nlink == 0:
                self._forget_removed()
                self._append(payloads, self._frames(payloads))
            self._dirty = True
            self._payloads += len(payloads)
            interval = self._fsync_interval_s
            if interval is not None and time.monotonic() - self._last_sync >= interval:
                self._sync()
                self._tell_failure()

    def sync(self) -> None:
        """Return when everything appended since the last sync is on the disk. Raises OSError when it may not be, also
        when that became known meanwhile, in sealing a segment. What was appended before is then to be appended again.
        """
        with self._syncing:
            with self._lock:
                self._last_sync = time.monotonic()
                segment = self._path
                if self._fd is not None and self._dirty:
                    try:
                        self._synced_fd, self._dirty = far_duplicate(self._fd), False
                    except OSError as error:
                        self._end_if_closed(self._fd, error)
            if self._synced_fd is not None:
                self._sync_beside_appends(self._synced_fd, segment)
            with self._lock:
                self._tell_failure()

    def _sync_beside_appends(self, fd: int, segment: Path) -> None:
        try:
            _datasync(fd)
        except OSError as error:
            with self._lock:
                is_current = self._fd is not None and self._path == segment
                # What was appended meanwhile may be lost as well, and its own `sync` is to say so: that of a segment
                # that was sealed has then succeeded, as the system reports an error once.
                if self._dirty or not is_current:
                    self._failed = error
                if is_current and self._fd is not None:
                    self._end_segment(self._fd)
            raise
        finally:
            self._synced_fd = None
            os.close(fd)

    def close(self) -> None:
        """Sync, seal and close the current segment; a later append opens a new one. Raises as `sync`."""
        with self._syncing, self._lock:
            self._seal()
            self._tell_failure()

    def _frames(self, payloads: Sequence[bytes]) -> bytes:
        """Payloads as they are written next: at the end of the open segment, or as the first of a new one."""
        if self._bases is None:
            return b"".join(map(encode_frame, payloads))
        if self._fd is None:
            self._bases.forget()
        return self._bases.frames(payloads, len(HEADER) if self._fd is None else self._size)

    def _append(self, payloads: Sequence[bytes], frames: bytes) -> None:
        try:
            self._write(self._current(), frames)
        except OSError as error:
            if error.errno == errno.EFBIG and self._payloads:
                self._seal()  # the file is as large as it may be, the disk is not full
            elif self._fd is not None:
                self._end_if_closed(self._fd, error)
            else:
                raise
            self._write(self._current(), self._frames(payloads))

    def _tell_failure(self) -> None:
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _current(self) -> int:
        return self._open() if self._fd is None else self._fd

    def _open(self) -> int:
        _make_directory(self.directory)
        tighten(self.directory)
        name = f"{time.time_ns():020d}-{os.getpid()}-{secrets.token_hex(4)}"
        path = self.directory / f"{name}{OPEN_SUFFIX}"
        fd = far_descriptor(
            os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
        )
        try:
            lock.acquire(fd)
            header = HEADER if self._bases is None else SHARING_HEADER
            if os.write(fd, header) < len(header):  # what came after half a header could not be read
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            _sync_directory(self.directory)
        except BaseException:
            os.close(fd)
            path.unlink(missing_ok=True)
            raise
        self._fd, self._path, self._size, self._payloads = fd, path, len(HEADER), 0
        return fd

    def _write(self, fd: int, frames: bytes) -> None:
        written = 0
        try:
            while written < len(frames):
                written += os.write(fd, frames[written:] if written else frames)
        except OSError as error:
            if error.errno != errno.EBADF:
                self._take_back(fd)
            raise
        self._size += len(frames)
        self._room -= len(frames)
        if self._bases is not None:
            self._bases.written()

    def _take_back(self, fd: int) -> None:
        """Cut off what was half written; where that fails too, leave the segment to the reader's torn tail."""
        try:
            os.ftruncate(fd, self._size)
        except OSError:
            self._seal()

    def _forget_removed(self) -> None:
        fd, self._fd, self._dirty = self._fd, None, False
        if fd is not None:
            os.close(fd)
        self.removed += self._payloads

    def _make_room(self, wanted: int) -> None:
        if self._max_total_bytes is None or self._room >= wanted:
            return
        room = self._max_total_bytes - directory_bytes(self.directory)
        self._room = min(room, max(wanted, _ROOM_BYTES))
        if room < wanted:
            raise JournalFull(self.directory, self._max_total_bytes)

    def _sync(self) -> None:
        """A flush that fails is kept for `sync` to raise, and ends the segment: the system may forget what it could not
        write, and the next flush of the same file succeed."""
        self._last_sync = time.monotonic()
        if self._fd is None or not self._dirty:
            return
        try:
            _datasync(self._fd)
        except OSError as error:
            if error.errno == errno.EBADF:
                self._end_if_closed(self._fd, error)
            else:
                self._failed = error
                self._end_segment(self._fd)
        self._dirty = False

    def _seal(self) -> None:
        self._sync()
        if self._fd is not None:
            self._end_segment(self._fd)

    def _end_segment(self, fd: int) -> None:
        self._fd, self._dirty = None, False
        if self._bases is not None:
            self._bases.forget()
        try:
            os.close(fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
        with contextlib.suppress(OSError):  # a reader took it in and removed it just now; or either name will do
            self._path.rename(self._path.with_suffix(SEALED_SUFFIX))

    def _end_if_closed(self, fd: int, error: OSError) -> None:
        """Where the program has closed this file with all others it has, what was written stands in the segment, which
        ends; any other error is raised."""
        if error.errno != errno.EBADF:
            raise error
        with contextlib.suppress(FileNotFoundError), self._path.open("rb+") as file:
            _datasync(file.fileno())
        self._end_segment(fd)

    def _after_fork_in_child(self) -> None:
        # The lock may have been held by a thread that does not exist here, and the segment is the parent's.
        self._lock, self._syncing = native_threads.Lock(), native_threads.Lock()
        for fd in (self._fd, self._synced_fd):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)
        self._synced_fd = None
        self._fd, self._dirty, self._room, self._failed = None, False, 0, None


_writers: weakref.WeakSet[JournalWriter] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for writer in list(_writers):
        writer._after_fork_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)


def _make_directory(directory: Path) -> None:
    if directory.is_dir():
        return
    _make_directory(directory.parent)
    make_directory(directory)
    _sync_directory(directory.parent)


def _sync_directory(directory: Path) -> None:
    """Make a new name in a directory durable, where the system can."""
    if os.name != "posix":
        return
    fd = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
