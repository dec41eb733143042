"""Content-Encoding undone, also for a body that was cut, and never into more than a bound."""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any

MAX_BYTES = 256 << 20


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
            return _inflate(body, zlib.MAX_WBITS | 16)
        case "deflate":  # in practice zlib-wrapped or raw
            try:
                return _inflate(body, zlib.MAX_WBITS)
            except ValueError:
                return _inflate(body, -zlib.MAX_WBITS)
        case "br":
            return _bounded(_decompressor("brotli", "brotlicffi").Decompressor().process, body)
        case "zstd":
            return _bounded(_decompressor("zstandard").ZstdDecompressor().decompressobj().decompress, body)
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
