"""Decoding of Content-Encoding, also for a body that was cut off, and never beyond a bound."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

MAX_BYTES = 256 << 20
MAX_MEMBERS = 1 << 16
"""Bound on the gzip members or zstd frames of one body."""

_PIECE_BYTES = 2048
"""Of compressed bytes: a zstd block of 4 bytes unpacks to 128 KiB, so a piece to 64 MiB at most."""


def decompress(body: bytes, encoding: str) -> bytes:
    """The body as it was before its content encodings (comma-separated, outermost last).

    A body that was cut gives what its beginning holds. Raises ValueError for an encoding that is unknown or not
    installed here, for damaged data, and for more than 256 MiB.
    """
    for name in reversed([part.strip().lower() for part in encoding.split(",") if part.strip()]):
        if name != "identity":
            body = _undo(name, body)
    return body


def _undo(name: str, body: bytes) -> bytes:
    match name:
        case "gzip" | "x-gzip":
            return _bounded(lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), body)
        case "deflate":  # in practice zlib-wrapped or raw
            try:
                return _bounded(zlib.decompressobj, body, several=False)
            except ValueError:
                return _bounded(lambda: zlib.decompressobj(-zlib.MAX_WBITS), body, several=False)
        case "br":
            return _bounded(lambda: _Brotli(_decompressor("brotli", "brotlicffi").Decompressor()), body)
        case "zstd":
            return _bounded(_zstd(), body)
    raise ValueError(f"unknown content encoding {name!r}")


def _bounded(new: Callable[[], Any], body: bytes, *, several: bool = True) -> bytes:
    try:
        data, _ = undo_members(new, body, MAX_BYTES, several=several)
    except Exception as error:  # noqa: BLE001  each library raises its own type
        raise ValueError(f"damaged compressed body: {error}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(
            f"a compressed body of more than {MAX_BYTES >> 20} MiB: ask for less at once, or for an answer that is not "
            "compressed (`Accept-Encoding: identity`)"
        )
    return data


class _Brotli:
    """Brotli's decompressor with the methods of zlib's: a body is one stream."""

    eof = False

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def decompress(self, piece: bytes) -> bytes:
        data: bytes = self._stream.process(piece)
        return data


class Unpacking:
    """The gzip members, zstd frames or such streams of a body, one after the other, as their bytes come.

    `new` makes a decompressor of one of them. Where there cannot be `several`, what follows the first is left out.
    """

    def __init__(self, new: Callable[[], Any], *, several: bool = True) -> None:
        self._new, self._several = new, several
        self._unpack: Any = None
        self.members = 0

    @property
    def is_whole(self) -> bool:
        """Whether the last one came to its end."""
        return self.members > 0 and self._unpack is None

    def pieces(self, packed: bytes) -> Iterator[bytes]:
        """What the next bytes hold. Raises what the decompressor raises."""
        while packed and (self._several or not self.is_whole):
            if self._unpack is None:
                packed = packed.lstrip(b"\0") if self.members else packed  # padding, as gzip itself lets pass
                if not packed:
                    return
                self._unpack = self._new()
                self.members += 1
            yield self._unpack.decompress(packed)
            packed = b""
            if self._unpack.eof:
                packed, self._unpack = self._unpack.unused_data, None


def undo_members(new: Callable[[], Any], body: bytes, bound: int, *, several: bool = True) -> tuple[bytes, bool]:
    """What the gzip members or zstd frames of a body hold, one after the other, and whether the last one is whole;
    where there cannot be `several`, what follows the first is left out.

    `new` makes a decompressor of one of them. It stops beyond `bound` bytes, without having read the rest. Raises what
    the decompressor raises, and ValueError for more than MAX_MEMBERS.
    """
    out: list[bytes] = []
    size = 0
    unpacking = Unpacking(new, several=several)
    for start in range(0, len(body), _PIECE_BYTES):
        for piece in unpacking.pieces(body[start : start + _PIECE_BYTES]):
            out.append(piece)
            size += len(piece)
            if size > bound:
                return b"".join(out), False
            if unpacking.members > MAX_MEMBERS:
                raise ValueError(f"it has more than {MAX_MEMBERS} members")
    return b"".join(out), unpacking.is_whole


def _zstd() -> Callable[[], Any]:
    """What makes a decompressor of one frame: by what httpx2 and urllib3 ask servers for zstd with, else zstandard."""
    for module in ("compression.zstd", "backports.zstd"):  # the first is Python's own from 3.14 on
        with contextlib.suppress(ImportError):
            made: Callable[[], Any] = import_module(module).ZstdDecompressor
            return made
    return _decompressor("zstandard").ZstdDecompressor().decompressobj  # type: ignore[no-any-return]


def _decompressor(*modules: str) -> Any:
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise ValueError(f"the response was compressed, and {modules[0]} is not installed here")
