"""Rows as tables of Arrow, from which DuckDB inserts fastest. Its library is loaded with the first: most commands write
nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from arttrace.system.processes import signals_after_imports

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_table(columns: Mapping[str, tuple[str, Sequence[Any]]]) -> pa.Table:
    """A table of columns of equal length: by its name each one's type, by DuckDB's word, and its values."""
    types = _types()
    import pyarrow as pa

    return pa.table({name: pa.array(values, types[type]) for name, (type, values) in columns.items()})


@cache
def _types() -> dict[str, pa.DataType]:
    with signals_after_imports(takes_long=False):
        import pyarrow as pa
    return {
        "VARCHAR": pa.string(),
        "BIGINT": pa.int64(),
        "TINYINT": pa.int8(),
        "DOUBLE": pa.float64(),
        "BLOB": pa.binary(),
        "BIGINT[]": pa.list_(pa.int64()),
    }
