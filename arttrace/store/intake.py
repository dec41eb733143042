"""Journal segments into the store, each record once in effect, whoever dies when.

The offset up to which a segment was read is written in the transaction of its records; a segment whose writer is
done is removed after that. What could not be read is kept beside it under `.damaged`, never deleted.
"""

from __future__ import annotations

import contextlib
import gc
import logging
from collections.abc import Iterator
from pathlib import Path

import duckdb
import msgspec

from arttrace.formats.payload import decode_payload
from arttrace.journal import Segment, list_segments, read_segment
from arttrace.records.record import Record
from arttrace.store.writer import Writer

_log = logging.getLogger("arttrace")

_BATCH_BYTES = 8 << 20


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """A batch makes millions of objects and no cycles: looking for some would take a third of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def take_in(connection: duckdb.DuckDBPyConnection, writer: Writer, directory: Path) -> Iterator[int]:
    """Reads what is new in a journal's segments. Yields after each how many of its records were new to the store.
    Raises duckdb.Error when the store cannot be written; what was not stored is read again next time."""
    segments = list_segments(directory)
    known = dict(connection.execute('SELECT name, "offset" FROM ingested_segments').fetchall())
    for segment in segments:
        with _without_collection():
            new = _take_segment(connection, writer, segment, known.get(segment.name, 0))
        yield new


def _take_segment(connection: duckdb.DuckDBPyConnection, writer: Writer, segment: Segment, offset: int) -> int:
    try:
        finished = segment.finished()  # asked before reading: nothing can be appended after a yes
        reader = read_segment(segment.path, offset)
        new = unreadable = 0
        batch: list[Record] = []
        end, size = offset, 0
        for end, payload in reader:
            try:
                batch.extend(decode_payload(payload))
            except (msgspec.DecodeError, UnicodeDecodeError):
                unreadable += 1
            size += len(payload)
            if size >= _BATCH_BYTES:
                new += writer.write(batch, {segment.name: end})
                batch, size = [], 0
        if end > offset:
            new += writer.write(batch, {segment.name: end})
    except FileNotFoundError:  # sealed under its other name meanwhile, or taken by the store's former owner
        return 0
    damaged = reader.unreadable or reader.corrupt or unreadable
    if damaged:
        _log.warning(
            "journal segment %s: %d damaged stretches (%d bytes), %d unknown records%s",
            segment.path,
            reader.corrupt,
            reader.skipped_bytes,
            unreadable,
            f", {reader.unreadable}" if reader.unreadable else "",
        )
    if finished:
        if damaged:
            segment.path.rename(segment.path.with_suffix(".damaged"))
        else:
            segment.path.unlink(missing_ok=True)
        connection.execute("DELETE FROM ingested_segments WHERE name = ?", [segment.name])
    return new
