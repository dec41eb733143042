"""Compiled CUDA kernels of one architecture: what others a library carries is blanked, and then packs to nothing.

A library holds its device code in ELF sections of containers; each container is a header and entries, one a kernel
image for an architecture, or PTX. The driver chooses an entry by its header alone. So the image of an entry that it
would not choose can be overwritten with zeros: nothing moves, no offset changes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_CONTAINER = struct.Struct("<IHHQ")
_ENTRY = struct.Struct("<HHIQIIHHI")
_MAGIC = 0xBA55ED50
_PTX, _MACHINE_CODE = 1, 2
_SECTIONS = (b".nv_fatbin", b"__nv_relfatbin")


@dataclass(frozen=True, slots=True)
class Entry:
    """One image: machine code or PTX for an architecture (90: compute capability 9.0), its place in the file."""

    machine_code: bool
    architecture: int
    start: int
    size: int


def containers(data: bytes | bytearray) -> Iterator[list[Entry]]:
    """The entries of each container of a shared library."""
    for start, size in _device_sections(data):
        at, end = start, start + size
        while at + _CONTAINER.size <= end:
            magic, _, header, length = _CONTAINER.unpack_from(data, at)
            if magic != _MAGIC:
                at += 8  # containers begin at multiples of eight
                continue
            yield list(_entries(data, at + header, at + header + length))
            at += header + length


def needless(entries: list[Entry], architecture: int) -> list[Entry]:
    """Those that a card of this architecture would not choose: machine code runs on its own major version from its
    minor one on, PTX on every later one, and is compiled where no machine code fits."""
    fitting = [
        one
        for one in entries
        if one.machine_code and one.architecture // 10 == architecture // 10 and one.architecture <= architecture
    ] or [one for one in entries if not one.machine_code and one.architecture <= architecture]
    best = max((one.architecture for one in fitting), default=None)
    chosen = [one for one in fitting if one.architecture == best]
    return [one for one in entries if one not in chosen]


def keep_architecture(library: Path, architecture: int) -> int:
    """Blank the images of all others in the file; how many bytes that were."""
    data = bytearray(library.read_bytes())
    blanked = 0
    for entries in containers(data):
        for one in needless(entries, architecture):
            data[one.start : one.start + one.size] = bytes(one.size)
            blanked += one.size
    if blanked:
        library.write_bytes(data)
    return blanked


def _entries(data: bytes | bytearray, at: int, end: int) -> Iterator[Entry]:
    while at < end:
        kind, _, header, size, _, _, _, _, architecture = _ENTRY.unpack_from(data, at)
        if kind in (_PTX, _MACHINE_CODE):
            yield Entry(kind == _MACHINE_CODE, architecture, at + header, size)
        at += header + size


def _device_sections(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Offset and size of each section with device code, by the table of a 64-bit ELF file."""
    if data[:5] != b"\x7fELF\x02":
        return
    (table,) = struct.unpack_from("<Q", data, 0x28)
    size, count, names = struct.unpack_from("<HHH", data, 0x3A)
    rows = [struct.unpack_from("<IIQQQQ", data, table + number * size) for number in range(count)]
    for name, _, _, _, start, length in rows:
        begin = rows[names][4] + name
        if bytes(data[begin : data.index(b"\0", begin)]) in _SECTIONS:
            yield start, length
