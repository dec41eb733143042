"""Reading segments: every whole frame from an offset on, with a count of what could not be read.

A segment is read piece by piece, so that memory does not grow with it; only one that is damaged is looked through as a
whole from there on.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, NamedTuple

from arttrace.system.journal import lock
from arttrace.system.journal.bases import ReaderBases
from arttrace.system.journal.frames import (
    FRAME_OVERHEAD,
    HEADER,
    VERSIONS,
    claimed_size,
    frame_end,
    frame_leans,
    header_version,
    next_frame,
)
from arttrace.system.journal.sharing import decode_leaning, rebuilt

OPEN_SUFFIX = ".open"
SEALED_SUFFIX = ".seg"
DAMAGED_SUFFIX = ".damaged"

_PIECE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """One segment file. `name` stays the same when the writer seals it, so offsets are kept by name."""

    path: Path

    @property
    def name(self) -> str:
        """The file's name without its suffix, unique, in order of creation."""
        return self.path.stem

    @property
    def kept_as(self) -> Path:
        """Where it is kept when some of it cannot be used. An empty file there, made before the offset behind the
        damage is written, says so however many passes later the segment is done."""
        return self.path.with_suffix(DAMAGED_SUFFIX)

    def finished(self) -> bool:
        """Whether nothing will be appended any more: sealed, or its writer is gone."""
        if self.path.suffix == SEALED_SUFFIX:
            return True
        try:
            fd = os.open(self.path, os.O_RDWR)
        except FileNotFoundError:
            return True
        try:
            # A writer locks its new segment before it writes the header: without one it is only being born.
            return os.fstat(fd).st_size >= len(HEADER) and lock.acquire(fd)
        finally:
            os.close(fd)


def list_segments(directory: Path) -> list[Segment]:
    """The segments of a journal, oldest first; none when the directory does not exist."""
    try:
        paths = [path for path in directory.iterdir() if path.suffix in (OPEN_SUFFIX, SEALED_SUFFIX)]
    except FileNotFoundError:
        return []
    return [Segment(path) for path in sorted(paths)]


class LostStretch(NamedTuple):
    """Bytes of a segment that no payload could be made of. `leans`: they are a whole frame, whose payload has the rest
    of its text in an earlier one that is lost."""

    content: bytes
    leans: bool = False


class SegmentReader:
    """Iterates over (end offset, payload) of one segment's whole frames; then the counts below are final.

    `corrupt` is the number of damaged stretches that were skipped and `skipped_bytes` their size; a whole frame whose
    payload leans on one that is lost is such a stretch of its own. `torn_bytes` is what lies after the last frame that
    could be read: a frame being written now, or one whose writer died. Where the writer is done (`finished`), what lies
    there with all of its bytes is a damaged stretch. `damaged` has those stretches that the caller has not taken out
    yet. `unreadable` says why nothing could be read (no segment, a newer version), or is empty. Nothing here
    raises for what the file holds.
    """

    def __init__(self, path: Path, offset: int = 0, *, finished: bool = False) -> None:
        self.path = path
        self.offset = offset
        self.finished = finished
        self.damaged: list[LostStretch] = []
        self.corrupt = 0
        self.skipped_bytes = 0
        self.torn_bytes = 0
        self.unreadable = ""
        self._bases = ReaderBases()
        self._lost: list[LostStretch] = []  # damaged stretches behind the last frame that could be read

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        with self.path.open("rb") as file:
            head = file.read(len(HEADER))
            version = header_version(head)
            if version not in VERSIONS:
                if len(head) >= len(HEADER):
                    found = "not a segment of arttrace" if version is None else f"segment version {version}"
                    self.unreadable = f"{found}; this version reads {' and '.join(map(str, VERSIONS))}"
                self.torn_bytes = len(head)
                return
            base = max(self.offset, len(HEADER))
            file.seek(base)
            yield from self._frames(file, base, os.fstat(file.fileno()).st_size - base)

    def _frames(self, file: BinaryIO, base: int, left: int) -> Iterator[tuple[int, bytes]]:
        """The frames of the `left` bytes that follow in a file from `base` on."""
        data, at = b"", 0
        while at < len(data) or left > 0:
            end = frame_end(data, at)
            if end is not None:
                stored = data[at + FRAME_OVERHEAD : end]
                payload = self._rebuilt(stored, file, base + at) if frame_leans(data, at) else stored
                if payload is None:
                    self._lost.append(LostStretch(data[at:end], leans=True))
                else:
                    self._count_lost()
                    yield base + end, payload
                at = end
            elif left > 0:
                wanted = min(_wanted(data, at, left), left)
                piece = file.read(wanted)
                left = left - wanted if len(piece) == wanted else 0  # cut off meanwhile by its writer
                data, base, at = data[at:] + piece, base + at, 0
            else:
                found_at = next_frame(data, at + 1)
                if found_at is None and not (self.finished and self._is_whole(data, at)):
                    self.torn_bytes = len(data) - at
                    break
                found_at = len(data) if found_at is None else found_at
                self._lost.append(LostStretch(data[at:found_at]))
                at = found_at
        if self.finished:
            self._count_lost()
        self.torn_bytes += sum(len(stretch.content) for stretch in self._lost)

    def _count_lost(self) -> None:
        self.corrupt += len(self._lost)
        self.skipped_bytes += sum(len(stretch.content) for stretch in self._lost)
        self.damaged += self._lost
        self._lost = []

    def _rebuilt(self, stored: bytes, file: BinaryIO, offset: int) -> bytes | None:
        """The payload of a leaning frame at `offset`, or None where its base is lost."""
        leaning = decode_leaning(stored)
        if leaning is None:
            return None
        base = self._bases.get(leaning.base_offset)
        if base is None:
            base = _payload_at(file, leaning.base_offset, offset)
            if base is None:
                return None
            self._bases.hold(leaning.base_offset, base)
        return rebuilt(leaning, base)

    def _is_whole(self, data: bytes, at: int) -> bool:
        """Whether nothing is missing behind the last whole frame, of a writer that is done. What it sealed it had
        written; where it died, what it wrote last may be cut off."""
        size = claimed_size(data, at)
        return self.path.suffix == SEALED_SUFFIX or (size is not None and at + size <= len(data))


def _payload_at(file: BinaryIO, offset: int, end: int) -> bytes | None:
    """The payload of the whole frame at an offset, of a file that is read further on from where it is; None where none
    is there that ends by `end`."""
    if offset >= end:
        return None
    position = file.tell()
    try:
        file.seek(offset)
        head = file.read(FRAME_OVERHEAD)
        size = claimed_size(head, 0)
        if size is None or offset + size > end or frame_leans(head, 0):
            return None
        frame = head + file.read(size - FRAME_OVERHEAD)
        return frame[FRAME_OVERHEAD:] if frame_end(frame, 0) == size else None
    finally:
        file.seek(position)


def _wanted(data: bytes, at: int, left: int) -> int:
    """How much more to read where no whole frame is: the rest of it, or all that is left when it is damaged."""
    there = len(data) - at
    if there < FRAME_OVERHEAD:
        return _PIECE_BYTES
    size = claimed_size(data, at)
    if size is None or not there < size <= there + left:
        return left
    return max(_PIECE_BYTES, size - there)


def read_segment(path: Path, offset: int = 0, *, finished: bool = False) -> SegmentReader:
    """The whole frames of a segment from `offset` on (0, or an end offset given earlier); `finished` as of `Segment`.
    Raises OSError only."""
    return SegmentReader(path, offset, finished=finished)
