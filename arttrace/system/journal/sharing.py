"""What a payload has in common with an earlier one of its segment: found when it is written, put back when it is read.

Stored of a payload that leans on another, its base: the base's offset in the segment (uint64), the payload's length and
CRC-32 (uint32 each) and the number of parts in common (uint16); for each the number of the payload's own bytes before
it, where it begins in the base, and its length (uint32 each); then the payload's own bytes. Its first `HEAD` bytes are
always its own: they say of what it is where the base is lost.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from arttrace.system.journal.frames import MAX_PAYLOAD

HEAD: Final = 128

_FIELDS: Final = struct.Struct("<QIIH")
_PART: Final = struct.Struct("<III")
_MAX_PARTS: Final = 64
_LEAST_PART: Final = 48
_NEEDLE: Final = 32
_STRIDE: Final = 256  # of fewer bytes it is asked at once where they differ
_STEPS: Final = (0, 32, 96, 256, 1024, 4096, 16384, 65536)
"""How much of the base may be left out in the payload, where they differ."""
_NEAR_STEPS: Final = _STEPS[:4]
_NEAR: Final = 1024
"""How much of the payload may stand there in its place, where it is looked for at little cost."""


class CommonPart(NamedTuple):
    """The bytes that a payload has from `start` on, and its base from `base_start` on."""

    start: int
    base_start: int
    length: int


class Leaning(NamedTuple):
    """What is stored of a payload that leans on a base."""

    base_offset: int
    length: int
    checksum: int
    parts: Sequence[tuple[int, int, int]]
    own: memoryview


def common_parts(payload: bytes, base: bytes, *, searches: int) -> list[CommonPart]:
    """Parts that both have, in order, behind the payload's head. A short text that is another one in the payload is
    stepped over at little cost; for up to `searches` others the rest of the payload is looked through."""
    with memoryview(base) as view:
        end = len(payload)
        tail = _same_before(payload, HEAD, end, view, 0, len(base))
        end, base_end = end - tail, len(base) - tail
        at, base_at = HEAD, min(HEAD, base_end)
        parts: list[CommonPart] = []
        for _ in range(_MAX_PARTS - 1):
            length = _same_from(payload, at, end, view, base_at, base_end)
            if length >= _LEAST_PART:
                parts.append(CommonPart(at, base_at, length))
            at, base_at = at + length, base_at + length
            met = _met(payload, at, min(end, at + _NEAR), view, base_at, base_end, _NEAR_STEPS)
            if met is None and searches > 0 and end > at + _NEAR:
                met = _met(payload, at, end, view, base_at, base_end, _STEPS)
                searches -= 1
            if met is None:
                break
            at, base_at = met
        if tail >= _LEAST_PART:
            parts.append(CommonPart(end, base_end, tail))
        return parts


def _met(
    payload: bytes, at: int, end: int, base: memoryview, base_at: int, base_end: int, steps: Sequence[int]
) -> tuple[int, int] | None:
    """Where both go on alike in the payload, before `end`, and in the base, so many bytes further on; None: nowhere."""
    for step in steps:
        after = base_at + step
        if after + _NEEDLE > base_end:
            break
        found = payload.find(base[after : after + _NEEDLE], at, end)
        if found >= 0:
            before = _same_before(payload, at, found, base, base_at, after) if step else 0
            return found - before, after - before
    return None


def own_bytes(payload: bytes, parts: Sequence[CommonPart]) -> int:
    """How many bytes are stored of a payload that has these parts in common with its base."""
    return _FIELDS.size + _PART.size * len(parts) + len(payload) - sum(part.length for part in parts)


def encode_leaning(payload: bytes, base_offset: int, parts: Sequence[CommonPart]) -> bytes:
    """What is stored of a payload that has `parts` in common with the whole one at `base_offset`."""
    stored, own, at = [_FIELDS.pack(base_offset, len(payload), zlib.crc32(payload), len(parts))], [], 0
    for start, base_start, length in parts:
        stored.append(_PART.pack(start - at, base_start, length))
        own.append(payload[at:start])
        at = start + length
    return b"".join((*stored, *own, payload[at:]))


def decode_leaning(stored: bytes) -> Leaning | None:
    """What was stored, or None where it is no such thing."""
    try:
        base_offset, length, checksum, count = _FIELDS.unpack_from(stored)
        parts = [_PART.unpack_from(stored, _FIELDS.size + number * _PART.size) for number in range(count)]
    except struct.error:
        return None
    return Leaning(base_offset, length, checksum, parts, memoryview(stored)[_FIELDS.size + count * _PART.size :])


def rebuilt(leaning: Leaning, base: bytes) -> bytes | None:
    """The payload as it was given to the writer, or None where it cannot be that."""
    length = len(leaning.own) + sum(length for _, _, length in leaning.parts)
    if length != leaning.length or length > MAX_PAYLOAD:
        return None
    payload = b"".join(_pieces(leaning, memoryview(base)))
    is_right = len(payload) == leaning.length and zlib.crc32(payload) == leaning.checksum
    return payload if is_right else None


def _pieces(leaning: Leaning, base: memoryview) -> Iterator[memoryview]:
    at = 0
    for own, base_start, length in leaning.parts:
        yield leaning.own[at : at + own]
        yield base[base_start : base_start + length]
        at += own
    yield leaning.own[at:]


def _same_from(payload: bytes, at: int, end: int, base: memoryview, base_at: int, base_end: int) -> int:
    """How many bytes are the same in both from there on."""
    most, same, step = min(end - at, base_end - base_at), 0, _STRIDE
    while same + step <= most and payload.startswith(base[base_at + same : base_at + same + step], at + same):
        same, step = same + step, step * 4
    step = min(step, most - same)
    while step > _STRIDE:
        half = step // 2
        if payload.startswith(base[base_at + same : base_at + same + half], at + same):
            same, step = same + half, step - half
        else:
            step = half
    differ = int.from_bytes(payload[at + same : at + same + step]) ^ int.from_bytes(
        base[base_at + same : base_at + same + step]
    )
    return same + step - (differ.bit_length() + 7) // 8


def _same_before(payload: bytes, start: int, at: int, base: memoryview, base_start: int, base_at: int) -> int:
    """How many bytes are the same in both before there."""
    most, same, step = min(at - start, base_at - base_start), 0, _STRIDE
    while same + step <= most and payload.endswith(base[base_at - same - step : base_at - same], 0, at - same):
        same, step = same + step, step * 4
    step = min(step, most - same)
    while step > _STRIDE:
        half = step // 2
        if payload.endswith(base[base_at - same - half : base_at - same], 0, at - same):
            same, step = same + half, step - half
        else:
            step = half
    differ = int.from_bytes(payload[at - same - step : at - same], "little") ^ int.from_bytes(
        base[base_at - same - step : base_at - same], "little"
    )
    return same + step - (differ.bit_length() + 7) // 8
