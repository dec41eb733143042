"""Rows of verl's forms as a Parquet file, some at a time. Of all forms they alone need Arrow."""

from __future__ import annotations

from typing import Any, BinaryIO

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from arttrace.formats.datasets.forms import Form, Row, Unsuitable
from arttrace.store.bounded_parts import batched

_ROWS_OF_GROUP, _BYTES_OF_GROUP, _ROWS_AT_ONCE = 1000, 4 << 20, 100
_LARGE = "tool definitions with integers beyond 64 bits, which a Parquet column does not hold"
_TOOLS = "tool definitions that differ in shape from those of the first rows, which a Parquet column does not hold"

_CALL = pa.struct(
    [
        ("id", pa.string()),
        ("type", pa.string()),
        ("function", pa.struct([("name", pa.string()), ("arguments", pa.string())])),
    ]
)
_MESSAGES = pa.list_(
    pa.struct(
        [
            ("role", pa.string()),
            ("content", pa.string()),
            ("reasoning_content", pa.string()),
            ("tool_calls", pa.list_(_CALL)),
            ("tool_call_id", pa.string()),
            ("name", pa.string()),
        ]
    )
)
_COLUMNS: dict[Form, dict[str, pa.DataType]] = {
    Form.VERL_SFT: {
        "messages": _MESSAGES,
        "extra_info": pa.struct([("trajectory_id", pa.string()), ("agent_id", pa.string()), ("reward", pa.float64())]),
    },
    Form.VERL_RL: {
        "data_source": pa.string(),
        "prompt": _MESSAGES,
        "ability": pa.string(),
        "reward_model": pa.struct([("style", pa.string()), ("ground_truth", pa.string())]),
        "extra_info": pa.struct(
            [
                ("index", pa.string()),
                ("scenario", pa.string()),
                ("arguments", pa.string()),
                ("runs", pa.int64()),
                ("mean_reward", pa.float64()),
            ]
        ),
    },
}


class ParquetFile:
    """A file that is being written: rows of fixed columns; where the form has tools, of the type of those of the first
    row that has some."""

    def __init__(self, file: BinaryIO, form: Form) -> None:
        self._file = file
        self._columns = _COLUMNS[form]
        self._has_tools = form is Form.VERL_SFT
        self._tools: pa.DataType | None = None
        self._rows: list[bytes] = []  # a tenth of what they are as objects
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(self, row: Row) -> None:
        """Adds a row. Raises Unsuitable where the file cannot hold it."""
        if row.get("tools") and not self._takes(row["tools"]):
            raise Unsuitable(_TOOLS)
        self._rows.append(msgspec.msgpack.encode(row))
        self._bytes += len(self._rows[-1])
        if len(self._rows) >= _ROWS_OF_GROUP or self._bytes >= _BYTES_OF_GROUP:
            self._flush()

    def _takes(self, tools: list[Any]) -> bool:
        """Whether these come back from the column as they are; the first that do give it its type."""
        try:
            type = self._tools or (pa.array([tools]).type if self._writer is None else None)
            if type is None or pa.array([tools], type).to_pylist() != [tools]:
                return False
        except OverflowError:
            raise Unsuitable(_LARGE) from None
        except (pa.ArrowException, TypeError, ValueError):
            return False
        self._tools = type
        return True

    def _flush(self) -> None:
        columns = {**self._columns, **({"tools": self._tools} if self._has_tools and self._tools else {})}
        schema = pa.schema(list(columns.items()))
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._file, schema, compression="zstd")
        parts = [
            pa.Table.from_pylist([msgspec.msgpack.decode(row) for row in part], schema=schema)
            for part in batched(self._rows, _ROWS_AT_ONCE)
        ]
        self._writer.write_table(pa.concat_tables([schema.empty_table(), *parts]))
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        """Writes what is left."""
        if self._rows or self._writer is None:
            self._flush()
        if self._writer is not None:
            self._writer.close()
