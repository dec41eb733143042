"""What a packed file holds, read piece by piece: gzip, zstd, bzip2 or xz, of one stream or of several behind each
other. It never unpacks to more than a bound, and says where it ends before its end."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable, Generator
from importlib import import_module
from typing import Any, BinaryIO

import msgspec

from arttrace.wire.compression import Unpacking

_LEAST_BYTES = 64 << 20
_WINDOW = 1 << 27  # of what was unpacked last; the largest that is held in memory
_PIECE_BYTES = 512
"""Of packed bytes: a block of 4 unpacks to 128 KiB with zstd, one of 45 to 900 kB with bzip2."""


class Unreadable(ValueError):
    """The file is in no known form."""


class Packing(msgspec.Struct, frozen=True):
    """A way to pack: its name, what files begin with, the endings of their names, the command that unpacks them, and
    how often its size a file of traces may be."""

    name: str
    mark: bytes
    endings: tuple[str, ...]
    command: str
    times: int
    new: Callable[[], Any]


def _zstd() -> Any:
    return import_module("zstandard").ZstdDecompressor(max_window_size=_WINDOW).decompressobj()


_EACH = (
    Packing("gzip", b"\x1f\x8b", (".gz",), "gunzip", 200, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)),
    Packing("zstd", b"\x28\xb5\x2f\xfd", (".zst", ".zstd"), "zstd -d", 1000, _zstd),
    Packing("bzip2", b"BZh", (".bz2",), "bzip2 -d", 1000, bz2.BZ2Decompressor),
    Packing("xz", b"\xfd7zX", (".xz",), "xz -d", 1000, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, 2 * _WINDOW)),
)


def packing_of(head: bytes) -> Packing | None:
    """How a file that begins so is packed; None where it is not."""
    return next((one for one in _EACH if head.startswith(one.mark)), None)


def without_ending(name: str) -> str:
    """A file's name without what says how it is packed."""
    return next((name.removesuffix(end) for one in _EACH for end in one.endings if name.endswith(end)), name)


class Unpacked(io.RawIOBase):
    """What a packed file of `size` bytes holds, as far as it can be unpacked; `cut` says why it ends there where that
    is not its end. Raises Unreadable where it unpacks to more than its bound, or its packing is not installed here."""

    def __init__(self, file: BinaryIO, packing: Packing, size: int) -> None:
        self._packing = packing
        self._left = max(_LEAST_BYTES, packing.times * size)
        self._pieces = self._unpack(file)
        self._ready = memoryview(b"")
        self.cut = ""

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: Any) -> int:
        """As of `io.RawIOBase`."""
        if not self._ready:
            self._ready = memoryview(next(self._pieces, b""))
        piece, self._ready = self._ready[: len(buffer)], self._ready[len(buffer) :]
        buffer[: len(piece)] = piece
        return len(piece)

    def _unpack(self, file: BinaryIO) -> Generator[bytes]:
        """Pieces, none of them empty."""
        packing = self._packing
        unpacking = Unpacking(packing.new)
        try:
            while packed := file.read(_PIECE_BYTES):
                for piece in unpacking.pieces(packed):
                    self._left -= len(piece)
                    if self._left < 0:
                        raise Unreadable(
                            f"it unpacks to over {packing.times} times its size, as no traces do; if it is meant so, "
                            f"use {packing.command} first"
                        )
                    if piece:
                        yield piece
        except Unreadable:
            raise
        except ImportError as error:
            raise Unreadable(
                f"it is packed with {packing.name}, and {error.name} is not installed: install it, or unpack the file "
                f"first (`{packing.command}`)"
            ) from error
        except Exception as error:  # noqa: BLE001  each library raises its own type
            self.cut = f"it is not a complete {packing.name} file: {error}"
        else:
            if not unpacking.is_whole:
                self.cut = f"it is not a complete {packing.name} file: it ends within its data"
