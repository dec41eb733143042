"""The records of one item of a file, until it is known that all of it is kept: prompts that each repeat a long
conversation may need gigabytes, and lie in a temporary file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import BinaryIO

from arttrace.records.record import Record, decode_record, encode_record
from arttrace.records.span import SpanRow

_IN_MEMORY = 64 << 20
"""Characters; each record beyond them is a line of the temporary file."""


class ItemRecords:
    """Records in the order in which they were appended; they can be read once all are there."""

    def __init__(self) -> None:
        self.characters = 0
        self._records: list[Record] = []
        self._beyond: BinaryIO | None = None
        self._count = 0

    def append(self, record: Record) -> None:
        """One more. Raises OSError where the disk takes no more."""
        self._count += 1
        self.characters += characters_of(record)
        if self.characters <= _IN_MEMORY:
            self._records.append(record)
            return
        if self._beyond is None:
            self._beyond = tempfile.TemporaryFile()  # noqa: SIM115 - closed with this
        self._beyond.write(encode_record(record) + b"\n")

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Record]:
        yield from self._records
        if self._beyond is not None:
            self._beyond.seek(0)
            yield from map(decode_record, self._beyond)


def characters_of(record: Record) -> int:
    """How much text it holds."""
    return record.characters if isinstance(record, SpanRow) else 0
