"""A request's body, decompressed up to a bound: the specification counts decompressed bytes."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from arttrace.store.server.responses import RequestRefused
from arttrace.wire.compression import undo_members

MAX_BODY_BYTES = 64 << 20
MAX_RATIO = 500
"""Bound on decompressed over compressed bytes, for bodies over 1 MiB: beyond it is no trace but a bomb."""

_UNBOUNDED_RATIO_BYTES = 1 << 20
_ZLIB_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS, "zlib": zlib.MAX_WBITS}
"""Encodings that zlib undoes; "zlib" is what the OpenTelemetry Collector also calls "deflate" (RFC 9110, 8.4.1.2)."""


class Budget:
    """Bytes of requests in flight, of which there may be so many; threads may share it."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._lock = threading.Lock()

    def take(self, count: int) -> None:
        """Raises RequestRefused (503) when that is more than there is left."""
        with self._lock:
            if self.used + count > self.limit:
                raise RequestRefused(503, "the collector has as much in flight as it may: send it again")
            self.used += count

    def give_back(self, count: int) -> None:
        """What was taken."""
        with self._lock:
            self.used -= count


def undo(body: bytes, encoding: str, limit: int) -> bytes:
    """The body before its content encoding. Raises RequestRefused: 413 over the limit, 415 for an unknown encoding,
    400 when it is damaged."""
    if encoding in ("", "identity"):
        return body
    if encoding not in _ZLIB_BITS and encoding != "zstd":
        understood = "send gzip, zstd, deflate or none"
        raise RequestRefused(415, f"content encoding {encoding[:40]!r} is not understood: {understood}")
    bound = min(limit, max(_UNBOUNDED_RATIO_BYTES, MAX_RATIO * len(body)))
    decompressor = _decompressor(encoding)
    try:
        out, whole = undo_members(decompressor, body, bound)
    except Exception as error:
        raise RequestRefused(400, f"the body is no {encoding}: {error}") from error
    if len(out) > limit:
        raise RequestRefused(413, f"the body is over {limit} bytes after decompression: send smaller batches")
    if len(out) > bound:
        raise RequestRefused(
            413, f"the body unpacks to over {MAX_RATIO} times its size: send smaller batches, or no encoding"
        )
    if not whole:
        raise RequestRefused(400, f"the {encoding} body ends too early")
    return out


def _decompressor(encoding: str) -> Callable[[], Any]:
    if (bits := _ZLIB_BITS.get(encoding)) is not None:
        return lambda: zlib.decompressobj(wbits=bits)
    try:
        zstandard = import_module("zstandard")
    except ImportError:
        raise RequestRefused(415, "zstd is not installed beside the collector: send gzip or none") from None
    decompress: Callable[[], Any] = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj
    return decompress
