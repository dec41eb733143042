"""The process that `read_ahead` starts: it sends the batches of the segments that its input names, until that ends."""

from __future__ import annotations

import contextlib
import os
import struct
import sys
from pathlib import Path
from typing import IO, Final

import msgspec

from arttrace.store.ingest.batches import SegmentBatch, read_batches
from arttrace.store.ingest.pause_gc import gc_paused
from arttrace.system.journal import Segment
from arttrace.system.processes import leave_signals_to_the_parent

READY: Final = b"+"
"""What it says first."""
SIZE: Final = struct.Struct("<Q")
"""What stands before each message: the number of its bytes."""

Work = list[tuple[str, int]]
"""Paths of segments, each with the offset from which it is to be read."""


class BatchMessage(msgspec.Struct, array_like=True):
    """A batch of the segment `path` from `offset` on. Resource and scope of its spans, which many share, stand once:
    `origin_of` has the place in `origins` of each span's."""

    path: str
    offset: int
    batch: SegmentBatch
    origins: list[str]
    origin_of: list[int]


def packed(path: str, offset: int, batch: SegmentBatch) -> BatchMessage:
    """The message of a batch, which is used up."""
    places: dict[str, int] = {}
    origin_of = [places.setdefault(parts.origin, len(places)) for parts in batch.spans]
    for parts in batch.spans:
        parts.origin = ""
    return BatchMessage(path, offset, batch, list(places), origin_of)


def unpacked(message: BatchMessage) -> SegmentBatch:
    """The batch of a message."""
    for parts, place in zip(message.batch.spans, message.origin_of, strict=True):
        parts.origin = message.origins[place]
    return message.batch


def send(pipe: IO[bytes], data: bytes) -> None:
    """Raises OSError when nobody listens."""
    pipe.write(SIZE.pack(len(data)))
    pipe.write(data)
    pipe.flush()


@gc_paused()
def _read(work: Work, out: IO[bytes]) -> None:
    for path, offset in work:
        for batch in read_batches(Segment(Path(path)), offset):
            end = batch.end
            send(out, msgspec.msgpack.encode(packed(path, offset, batch)))
            offset = end


def main() -> None:
    """Reads the segments that standard input names."""
    leave_signals_to_the_parent()
    source, out = sys.stdin.buffer, sys.stdout.buffer
    code = 0
    try:
        out.write(READY)
        out.flush()
        while head := source.read(SIZE.size):
            (size,) = SIZE.unpack(head)
            _read(msgspec.msgpack.decode(source.read(size), type=Work), out)
    except BrokenPipeError:
        pass
    except Exception as error:  # noqa: BLE001 - what it does not send is read by the one that started it
        code = 1
        with contextlib.suppress(OSError):
            print(f"arttrace: the process that reads ahead failed: {type(error).__name__}", file=sys.stderr, flush=True)
    os._exit(code)  # what is left to be flushed has nobody who listens
