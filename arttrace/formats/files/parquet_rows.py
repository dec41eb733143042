"""Rows of a Parquet file, some at a time, with values as JSON has them: times are texts, whatever their unit."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from arttrace.formats.files.unpacked import Unreadable

_ROWS_AT_ONCE = 64


class ParquetRows:
    """An open file of `count` rows. Raises Unreadable where it is not a complete one."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            self._file = pq.ParquetFile(file)
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(error) from error
        self.count: int = self._file.metadata.num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Each row without its empty cells."""
        try:
            for batch in self._file.iter_batches(_ROWS_AT_ONCE):
                columns = [_readable(column) for column in batch.columns]
                for row in pa.RecordBatch.from_arrays(columns, names=batch.schema.names).to_pylist(
                    maps_as_pydicts="lossy"
                ):
                    yield {name: _plain(value) for name, value in row.items() if value is not None}
        except (pa.ArrowException, OSError) as error:
            raise _unreadable(error) from error


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def _unreadable(error: Exception) -> Unreadable:
    return Unreadable(f"it is not a complete Parquet file: {error}")


def _readable(column: pa.Array) -> pa.Array:
    wanted = _as_in_json(column.type)
    if wanted == column.type:
        return column
    return column.take(pa.array(range(len(column)))).cast(wanted, safe=False)  # a part of another is not always cast


def _as_in_json(kind: pa.DataType) -> pa.DataType:
    """The type with microseconds in place of nanoseconds, which Python's times do not have and pandas writes, and with
    doubles in place of decimals, which would be texts."""
    if pa.types.is_decimal(kind):
        return pa.float64()
    if pa.types.is_timestamp(kind) and kind.unit == "ns":
        return pa.timestamp("us", kind.tz)
    if pa.types.is_duration(kind) and kind.unit == "ns":
        return pa.duration("us")
    if pa.types.is_time64(kind) and kind.unit == "ns":
        return pa.time64("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_as_in_json(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(kind.key_type, _as_in_json(kind.item_type))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        made = pa.list_ if pa.types.is_list(kind) else pa.large_list
        return made(kind.value_field.with_type(_as_in_json(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(kind.value_field.with_type(_as_in_json(kind.value_type)), kind.list_size)
    return kind
