"""What a journal segment holds, in batches of some megabytes, encoded for the tables. Pure but for reading the file."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import duckdb
import msgspec

from arttrace.formats.journal_entry import decode_payload, salvaged, stand_ins_in
from arttrace.records.record import PlainRecord, Record
from arttrace.records.span import SpanRow
from arttrace.store.rows.encode import EncodedSpan, encode_rows
from arttrace.store.transactions import is_ctrl_c
from arttrace.system.journal import LostStretch, Segment, read_segment
from arttrace.trajectories.identity.stand_ins import stand_in

_BATCH_BYTES = 8 << 20
_OF_THE_DATA = (duckdb.DataError, duckdb.IntegrityError, duckdb.InvalidInputException)
_OF_THE_MACHINE = (duckdb.Error, OSError, MemoryError, ImportError)


class SegmentBatch(msgspec.Struct, array_like=True):
    """Records of a segment up to the offset `end`, and what its reader found on the way there."""

    end: int
    last: bool = False
    finished: bool = False
    """Whether the segment's writer was done before it was read, so that after the last batch nothing follows."""
    spans: list[EncodedSpan] = []
    others: list[PlainRecord] = []
    refused: list[str] = []
    """Why records since the batch before are left out."""
    stand_ins: list[EncodedSpan] = []
    """What stands in for those of them that are spans (trajectories/identity/stand_ins.py)."""
    corrupt: int = 0
    """Damaged stretches since the batch before, and their bytes."""
    skipped_bytes: int = 0
    unreadable: str = ""
    unread: list[str] = []
    """Why something could not be read of which it is not known what was in it."""


def read_batches(segment: Segment, offset: int) -> Generator[SegmentBatch, None, None]:
    """The batches behind an offset, at least one. Of a segment that is gone (sealed under its other name meanwhile, or
    taken by the store's former owner) it is an empty one of a segment that is not finished. Raises OSError."""
    try:
        finished = segment.finished()  # asked before reading: nothing can be appended after a yes
        reader = read_segment(segment.path, offset, finished=finished)
        batch, size = SegmentBatch(offset, finished=finished), 0
        corrupt = skipped_bytes = 0
        for end, payload in reader:
            _add_damaged(batch, reader.damaged)
            _add(batch, payload)
            size += len(payload)
            batch.end = end
            if size >= _BATCH_BYTES:
                batch.corrupt, corrupt = reader.corrupt - corrupt, reader.corrupt
                batch.skipped_bytes, skipped_bytes = reader.skipped_bytes - skipped_bytes, reader.skipped_bytes
                yield batch
                batch, size = SegmentBatch(end, finished=finished), 0
        _add_damaged(batch, reader.damaged)
        batch.last, batch.unreadable = True, reader.unreadable
        if finished and reader.unreadable:
            _add_unread(batch, reader.unreadable, segment.path.read_bytes())
        batch.corrupt, batch.skipped_bytes = reader.corrupt - corrupt, reader.skipped_bytes - skipped_bytes
        yield batch
    except FileNotFoundError:
        yield SegmentBatch(offset, last=True)


def _add(batch: SegmentBatch, payload: bytes) -> None:
    """Adds the records of a payload, without those that cannot be encoded for the store."""
    try:
        records = decode_payload(payload)
    except Exception as error:
        if not is_of_the_data(error):
            raise
        why = f"{type(error).__name__} in a payload of {len(payload)} bytes"
        batch.refused.append(why)
        found = salvaged(payload, f"its entry in the journal cannot be read ({type(error).__name__})")
        _add_records(batch, found.records)
        batch.stand_ins += _encoded(found.stand_ins)
        if not found.whole:
            batch.unread.append(why)
    else:
        _add_records(batch, records)


def _add_damaged(batch: SegmentBatch, stretches: list[LostStretch]) -> None:
    for content, leans in stretches:
        why = f"{len(content)} damaged bytes"
        if leans:
            why = f"a record of {len(content)} bytes shares text with one that is lost, and cannot be put together"
        _add_unread(batch, why, content)
    stretches.clear()


def _add_unread(batch: SegmentBatch, why: str, content: bytes) -> None:
    batch.unread.append(why)
    batch.stand_ins += _encoded(stand_ins_in(content, f"the journal's bytes of it cannot be read ({why})"))


def _add_records(batch: SegmentBatch, records: Sequence[Record]) -> None:
    try:
        taken = list(encode_rows(records))
    except Exception as error:
        if not is_of_the_data(error):
            raise
        if len(records) == 1:
            [record] = records
            batch.refused.append(f"{type(error).__name__} in a {type(record).__name__}")
            if isinstance(record, SpanRow):
                batch.stand_ins += encoded_stand_in(
                    error,
                    trace_id=record.trace_id,
                    span_id=record.span_id,
                    parent_span_id=record.parent_span_id,
                    name=record.name,
                    start_ns=record.start_ns,
                    attributes=record.attributes,
                    links=[(link.trace_id, link.span_id) for link in record.links],
                )
        else:
            for record in records:
                _add_records(batch, [record])
    else:
        for one in taken:
            if isinstance(one, EncodedSpan):
                batch.spans.append(one)
            else:
                batch.others.append(one)


def encoded_stand_in(error: Exception, **read: Any) -> list[EncodedSpan]:
    """What stands in for a span that cannot be stored, from what `stand_in` takes of it; nothing where its trace is not
    known, or the same error meets the stand-in."""
    instead = stand_in(f"it cannot be stored ({type(error).__name__})", **read)
    return [] if instead is None else _encoded([instead])


def _encoded(stand_ins: Sequence[SpanRow]) -> list[EncodedSpan]:
    try:
        return [one for one in encode_rows(stand_ins) if isinstance(one, EncodedSpan)]
    except Exception as error:
        if not is_of_the_data(error):
            raise
        return []


def is_of_the_data(error: Exception) -> bool:
    """Whether it would come again with the same records, on a disk with room."""
    if is_ctrl_c(error):
        return False
    if isinstance(error, RuntimeError):
        return isinstance(error, (RecursionError, NotImplementedError))
    return isinstance(error, _OF_THE_DATA) or not isinstance(error, _OF_THE_MACHINE)
