"""Journal segments into the store, each record once in effect, whoever dies when.

The offset up to which a segment was read is written in the transaction of its records; a segment whose writer is
done is removed after that. One that holds what could not be read or stored is kept under `.damaged`, never deleted;
under its old ending `.seg` it is taken in again, by a version that can.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from arttrace.formats.payload import decode_payload
from arttrace.journal import Segment, SegmentReader, list_segments, read_segment
from arttrace.records.record import Record
from arttrace.store.garbage import without_collection
from arttrace.store.interrupting import ctrl_c_as_usual
from arttrace.store.writer import Writer

_log = logging.getLogger("arttrace")

_BATCH_BYTES = 8 << 20
_OF_THE_DATA = (duckdb.DataError, duckdb.IntegrityError, duckdb.InvalidInputException)
_OF_THE_MACHINE = (duckdb.Error, OSError, MemoryError)


def take_in(connection: duckdb.DuckDBPyConnection, writer: Writer, directory: Path) -> Iterator[int]:
    """Reads what is new in a journal's segments. Yields after each how many of its records were new to the store.
    Raises duckdb.Error when the store cannot be written; what was not stored is read again next time."""
    segments = list_segments(directory)
    known = dict(connection.execute('SELECT name, "offset" FROM ingested_segments').fetchall())
    for segment in segments:
        with ctrl_c_as_usual():
            new = _take_segment(connection, writer, segment, known.get(segment.name, 0))
        yield new


@without_collection()
def _take_segment(connection: duckdb.DuckDBPyConnection, writer: Writer, segment: Segment, offset: int) -> int:
    try:
        finished = segment.finished()  # asked before reading: nothing can be appended after a yes
        reader = read_segment(segment.path, offset)
        refused: list[str] = []
        new = 0
        batch: list[Record] = []
        end, size = offset, 0
        for end, payload in reader:
            try:
                batch.extend(decode_payload(payload))
            except Exception as error:
                if not _is_of_the_data(error):
                    raise
                refused.append(f"{type(error).__name__} in a payload of {len(payload)} bytes")
            size += len(payload)
            if size >= _BATCH_BYTES:
                new += _store(writer, batch, segment, end, reader, refused)
                batch, size = [], 0
        if end > offset:
            new += _store(writer, batch, segment, end, reader, refused)
    except FileNotFoundError:  # sealed under its other name meanwhile, or taken by the store's former owner
        return 0
    damaged = reader.unreadable or reader.corrupt or refused
    if damaged:
        _log.warning(
            "journal segment %s: %d damaged stretches (%d bytes), %d records that cannot be read or stored%s%s; "
            "it is kept as %s",
            segment.path,
            reader.corrupt,
            reader.skipped_bytes,
            len(refused),
            f" ({refused[0]})" if refused else "",
            f", {reader.unreadable}" if reader.unreadable else "",
            segment.kept_as.name,
        )
    if finished:
        if damaged or segment.kept_as.exists():
            segment.path.replace(segment.kept_as)
        else:
            segment.path.unlink(missing_ok=True)
        connection.execute("DELETE FROM ingested_segments WHERE name = ?", [segment.name])
    return new


def _store(
    writer: Writer, batch: Sequence[Record], segment: Segment, end: int, reader: SegmentReader, refused: list[str]
) -> int:
    """Writes a batch and how far its segment was read. A record that cannot be stored, whatever the state of the disk,
    is left out. Returns how many records were new."""
    offsets = {segment.name: end}
    if reader.corrupt or refused:
        segment.kept_as.touch()
    try:
        return writer.write(batch, offsets)
    except Exception as error:
        if not _is_of_the_data(error):
            raise
        _log.warning(
            "journal segment %s: a record of %d cannot be stored (%s): they are stored in parts, to find it",
            segment.path,
            len(batch),
            type(error).__name__,
        )
    before = len(refused)
    new = _store_apart(writer, batch, refused)
    if len(refused) > before:
        segment.kept_as.touch()
    return new + writer.write((), offsets)


def _store_apart(writer: Writer, records: Sequence[Record], refused: list[str]) -> int:
    """Halves what cannot be written until it is one record. Who dies in between finds the others stored already when
    he reads them again: a record that is there stays once."""
    try:
        return writer.write(records)
    except Exception as error:
        if not _is_of_the_data(error):
            raise
        if len(records) == 1:
            refused.append(f"{type(error).__name__} in a {type(records[0]).__name__}")
            return 0
    middle = len(records) // 2
    return _store_apart(writer, records[:middle], refused) + _store_apart(writer, records[middle:], refused)


def _is_of_the_data(error: Exception) -> bool:
    """Whether it would come again with the same records, on a disk with room. DuckDB raises RuntimeError when it is
    interrupted."""
    if isinstance(error, RuntimeError):
        return isinstance(error, (RecursionError, NotImplementedError))
    return isinstance(error, _OF_THE_DATA) or not isinstance(error, _OF_THE_MACHINE)
