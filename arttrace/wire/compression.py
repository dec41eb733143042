"""Content-Encoding undone, also for a body that was cut, and never into more than a bound."""

from __future__ import annotations

import zlib
from collections.abc import Callable
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
            return _members(lambda: zlib.decompressobj(zlib.MAX_WBITS | 16), body)
        case "deflate":  # in practice zlib-wrapped or raw
            try:
                return _inflate(body, zlib.MAX_WBITS)
            except ValueError:
                return _inflate(body, -zlib.MAX_WBITS)
        case "br":
            return _bounded(_decompressor("brotli", "brotlicffi").Decompressor().process, body)
        case "zstd":
            return _members(_decompressor("zstandard").ZstdDecompressor().decompressobj, body)
    raise ValueError(f"unknown content encoding {name!r}")


def _inflate(body: bytes, window: int) -> bytes:
    inflater = zlib.decompressobj(window)
    try:
        data = inflater.decompress(body, MAX_BYTES)
    except zlib.error as error:
        raise ValueError(f"damaged compressed body: {error}") from None
    if inflater.unconsumed_tail:
        raise ValueError(f"a compressed body of more than {MAX_BYTES} bytes")
    return data


def _members(new: Callable[[], Any], body: bytes) -> bytes:
    try:
        data, _ = undo_members(new, body, MAX_BYTES)
    except Exception as error:  # noqa: BLE001  each library raises its own type
        raise ValueError(f"damaged compressed body: {error}") from None
    if len(data) > MAX_BYTES:
        raise ValueError(f"a compressed body of more than {MAX_BYTES} bytes")
    return data


def undo_members(new: Callable[[], Any], body: bytes, bound: int) -> tuple[bytes, bool]:
    """What the gzip members or zstd frames of a body hold, one after the other, and whether the last one is whole.

    `new` makes a decompressor of one of them. It stops beyond `bound` bytes, without having read the rest. Raises what
    the decompressor raises, and ValueError for more than MAX_MEMBERS.
    """
    out: list[bytes] = []
    size = members = 0
    unpack: Any = None
    for start in range(0, len(body), _PIECE_BYTES):
        piece = body[start : start + _PIECE_BYTES]
        while piece:
            if unpack is None:
                piece = piece.lstrip(b"\0") if members else piece  # padding, as gzip itself lets pass
                if not piece:
                    break
                unpack, members = new(), members + 1
                if members > MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS} members")
            out.append(unpack.decompress(piece))
            size += len(out[-1])
            if size > bound:
                return b"".join(out), False
            piece = b""
            if unpack.eof:
                piece, unpack = unpack.unused_data, None
    return b"".join(out), members > 0 and unpack is None


def _bounded(step: Any, body: bytes) -> bytes:
    out: list[bytes] = []
    size = 0
    for start in range(0, len(body), 4096):  # in pieces, so that a bomb is noticed before it has gone off
        try:
            out.append(step(body[start : start + 4096]))
        except Exception as error:  # noqa: BLE001  each library raises its own type
            raise ValueError(f"damaged compressed body: {error}") from None
        size += len(out[-1])
        if size > MAX_BYTES:
            raise ValueError(f"a compressed body of more than {MAX_BYTES} bytes")
    return b"".join(out)


def _decompressor(*modules: str) -> Any:
    for module in modules:
        try:
            return import_module(module)
        except ImportError:
            continue
    raise ValueError(f"the response was compressed, and {modules[0]} is not installed here")
