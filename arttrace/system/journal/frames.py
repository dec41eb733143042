"""The bytes of a segment: a header, then frames of marker, length, checksum and payload.

Header, 16 bytes: `ARTTRACE`, version (uint32), reserved (uint32). Frame: four marker bytes, length (uint32), CRC-32
over the length and what follows (uint32), then what is stored of the payload: all of it, or, where the length's highest
bit is set, what it has not in common with an earlier one (sharing.py), which only segments of version 2 hold. Integers
are little-endian. The marker lets a reader find the next whole frame after a damaged one.
"""

from __future__ import annotations

import struct
import zlib
from typing import Final

VERSIONS: Final = (1, 2)
HEADER: Final = struct.pack("<8sII", b"ARTTRACE", VERSIONS[0], 0)
SHARING_HEADER: Final = struct.pack("<8sII", b"ARTTRACE", VERSIONS[1], 0)
MARKER: Final = b"\xa7\x0ff\xd5"
MAX_PAYLOAD: Final = 1 << 30

_FIELDS: Final = struct.Struct("<4sII")
FRAME_OVERHEAD: Final = _FIELDS.size
_LEANS: Final = 1 << 31


def encode_frame(stored: bytes, *, leans: bool = False) -> bytes:
    """One frame of a payload, or of what is stored of one that leans. Raises ValueError for more than 1 GiB."""
    if len(stored) > MAX_PAYLOAD:
        raise ValueError(f"a journal payload of {len(stored)} bytes is over the limit of {MAX_PAYLOAD}")
    length = len(stored) | _LEANS if leans else len(stored)
    return _FIELDS.pack(MARKER, length, _checksum(length, stored)) + stored


def frame_leans(data: bytes, start: int) -> bool:
    """Whether the whole frame at `start` holds a payload that leans on another one."""
    length: int = _FIELDS.unpack_from(data, start)[1]
    return length >= _LEANS


def header_version(data: bytes) -> int | None:
    """The version in a segment's first 16 bytes, or None when they are no such header."""
    if len(data) < len(HEADER) or data[:8] != HEADER[:8]:
        return None
    return int.from_bytes(data[8:12], "little")


def frame_end(data: bytes | memoryview, start: int) -> int | None:
    """Where the whole, undamaged frame at `start` ends, or None when there is none."""
    if start + FRAME_OVERHEAD > len(data):
        return None
    marker, length, checksum = _FIELDS.unpack_from(data, start)
    end: int = start + FRAME_OVERHEAD + (length & ~_LEANS)
    if marker != MARKER or end > len(data):
        return None
    with memoryview(data) as view, view[start + FRAME_OVERHEAD : end] as stored:
        return end if _checksum(length, stored) == checksum else None


def claimed_size(data: bytes, start: int) -> int | None:
    """The size that the frame at `start` gives itself, whether or not it is all there; None when none begins there."""
    if start + FRAME_OVERHEAD > len(data):
        return None
    marker, length, _ = _FIELDS.unpack_from(data, start)
    return FRAME_OVERHEAD + (int(length) & ~_LEANS) if marker == MARKER else None


def next_frame(data: bytes, start: int) -> int | None:
    """The first offset from `start` on at which a whole, undamaged frame begins, or None."""
    while (start := data.find(MARKER, start)) >= 0:
        if frame_end(data, start) is not None:
            return start
        start += 1
    return None


def _checksum(length: int, stored: bytes | memoryview) -> int:
    return zlib.crc32(stored, zlib.crc32(length.to_bytes(4, "little")))
