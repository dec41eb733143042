"""Journal segments into the store, each record once in effect, whoever dies when.

The offset up to which a segment was read is written in the transaction of its records; a segment whose writer is
done is removed after that. One that holds what could not be read or stored is kept under `.damaged`, never deleted;
under its old ending `.seg` it is taken in again, by a version that can.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import duckdb

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.units import quantity
from arttrace.store.ingest.batches import encoded_stand_in, is_of_the_data, read_batches
from arttrace.store.ingest.pause_gc import gc_paused
from arttrace.store.ingest.read_ahead import ReadAhead
from arttrace.store.ingest.writer import Writer
from arttrace.store.rows.encode import EncodedRecord, EncodedSpan
from arttrace.store.rows.tables import OPERATION, SPANS, TRAJECTORY_ID
from arttrace.store.unread import Unread, UnreadCount
from arttrace.system.journal import Segment, list_segments

_log = logging.getLogger("arttrace")
_READ = {
    name: list(SPANS.columns).index(name) for name in ("trace_id", "span_id", "parent_span_id", "name", "start_ns")
}
"""Where a row of `span_records` has what `stand_in` takes of a span."""


def unread_entries_message(unread: Unread) -> str:
    """The line that `ls` prints of what a store could not read of its journal."""
    return (
        f"the store could not read {quantity(unread.count, 'entry')} of its journal (the last: {unread.reason}); runs"
        " that they name are incomplete, which other runs lack it cannot be known: the segments are kept as .damaged"
    )


def ingest_segments(
    connection: duckdb.DuckDBPyConnection, writer: Writer, directory: Path, ahead: ReadAhead | None, unread: UnreadCount
) -> Iterator[int]:
    """Reads what is new in a journal's segments. Yields after each how many of its records were new to the store; what
    could not be read goes to `unread`. Raises duckdb.Error when the store cannot be written, and PermissionError, after
    all others are read, when a segment is another user's; what was not stored is read again next time."""
    known = dict(connection.execute('SELECT name, "offset" FROM ingested_segments').fetchall())
    work = [(segment, known.get(segment.name, 0)) for segment in list_segments(directory)]
    if ahead is not None:
        ahead.plan(work)
    barred: PermissionError | None = None
    for segment, offset in work:
        try:
            new = _take_segment(connection, writer, segment, offset, ahead, unread)
        except PermissionError as error:
            barred = error
        else:
            yield new
    if barred is not None:
        raise barred


@gc_paused()
def _take_segment(
    connection: duckdb.DuckDBPyConnection,
    writer: Writer,
    segment: Segment,
    offset: int,
    ahead: ReadAhead | None,
    unread: UnreadCount,
) -> int:
    refused: list[str] = []
    new = corrupt = skipped_bytes = 0
    batches_of = read_batches if ahead is None else ahead.batches
    with contextlib.closing(batches_of(segment, offset)) as batches:
        for batch in batches:
            refused += batch.refused
            corrupt += batch.corrupt
            skipped_bytes += batch.skipped_bytes
            if corrupt or refused:
                segment.kept_as.touch()
            if batch.stand_ins:
                _store_apart(writer, batch.stand_ins, [])  # counted as the records that they stand in for
            if batch.end > offset:
                offset = batch.end
                new += _store(writer, [*batch.spans, *batch.others], segment, offset, refused)
            for why in batch.unread:
                unread.add(why)
    unread.close()
    damaged = batch.unreadable or corrupt or refused
    if damaged:
        _log.warning(
            "journal segment %s: %d damaged stretches (%d bytes), %d records that cannot be read or stored%s%s; "
            "it is kept as %s",
            segment.path,
            corrupt,
            skipped_bytes,
            len(refused),
            f" ({refused[0]})" if refused else "",
            f", {batch.unreadable}" if batch.unreadable else "",
            segment.kept_as.name,
        )
    if batch.finished:
        if damaged or segment.kept_as.exists():
            segment.path.replace(segment.kept_as)
        else:
            segment.path.unlink(missing_ok=True)
        connection.execute("DELETE FROM ingested_segments WHERE name = ?", [segment.name])
    return new


def _store(writer: Writer, batch: Sequence[EncodedRecord], segment: Segment, end: int, refused: list[str]) -> int:
    """Writes a batch and how far its segment was read. A record that cannot be stored, whatever the state of the disk,
    is left out. Returns how many records were new."""
    offsets = {segment.name: end}
    try:
        return writer.write(batch, offsets)
    except Exception as error:
        if not is_of_the_data(error):
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


def _store_apart(writer: Writer, records: Sequence[EncodedRecord], refused: list[str]) -> int:
    """Halves what cannot be written until it is one record. Who dies in between finds the others stored already when
    he reads them again: a record that is there stays once."""
    try:
        return writer.write(records)
    except Exception as error:
        if not is_of_the_data(error):
            raise
        if len(records) == 1:
            [record] = records
            kind = SpanRow if isinstance(record, EncodedSpan) else type(record)
            refused.append(f"{type(error).__name__} in a {kind.__name__}")
            if isinstance(record, EncodedSpan) and record.columns[OPERATION] != semconv.OPERATION_REFUSED:
                read = {name: record.columns[at] for name, at in _READ.items()}
                named = record.columns[TRAJECTORY_ID]
                said = {semconv.OPERATION_NAME: record.columns[OPERATION], semconv.TRAJECTORY_ID: named}
                if named == record.trace_id:  # as of a span that names none: its parent's counts
                    del said[semconv.TRAJECTORY_ID]
                links = record.span.links if record.span is not None else ()
                ties = [(link.trace_id, link.span_id) for link in links]
                for one in encoded_stand_in(error, **read, attributes=said, links=ties):
                    _store_apart(writer, [one], [])
            return 0
    middle = len(records) // 2
    return _store_apart(writer, records[:middle], refused) + _store_apart(writer, records[middle:], refused)
