"""The views of `arttrace sql` as Parquet files, one per view, some thousand rows at a time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from arttrace.store import AnyStore
from arttrace.store.rows.views import DESCRIBED
from arttrace.system.files import not_written, whole_file

_ROWS_OF_GROUP, _BYTES_OF_GROUP = 50_000, 16 << 20

_TYPES = {
    "BIGINT": pa.int64(),
    "INTEGER": pa.int64(),
    "UBIGINT": pa.uint64(),
    "DOUBLE": pa.float64(),
    "FLOAT": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
    "VARCHAR[]": pa.list_(pa.string()),
    "BIGINT[]": pa.list_(pa.int64()),
    "MAP(VARCHAR, DOUBLE)": pa.map_(pa.string(), pa.float64()),
}
"""Arrow's types of DuckDB's; others, JSON among them, are text."""


def write_views(store: AnyStore, folder: Path, progress: Callable[[str, int, int], None]) -> dict[str, int]:
    """Writes every view to `folder`; the rows that each has. `progress` gets a view, how many rows of it are written,
    and how many it has. A row that comes into the store meanwhile may be in one file and not in another. Raises
    ArttraceError where the folder cannot be written."""
    columns: dict[str, dict[str, str]] = {view.name: {} for view in DESCRIBED}
    names = ", ".join(f"'{name}'" for name in columns)
    _, found = store.sql(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "  # noqa: S608
        f"WHERE database_name = current_database() AND table_name IN ({names}) ORDER BY column_index"
    )
    for view, column, kind in found:
        columns[view][column] = kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return {view: _write(store, view, kinds, folder, progress) for view, kinds in columns.items()}
    except OSError as error:
        raise not_written(folder, error) from error


def _write(
    store: AnyStore, view: str, kinds: dict[str, str], folder: Path, progress: Callable[[str, int, int], None]
) -> int:
    schema = pa.schema([(name, _TYPES.get(kind, pa.string())) for name, kind in kinds.items()])
    [(total,)] = store.sql(f'SELECT count(*) FROM "{view}"')[1]  # noqa: S608
    key = "trajectory_id" if "trajectory_id" in kinds else next(iter(kinds))
    written = 0
    with (
        whole_file(folder / f"{view}.parquet") as file,
        pq.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        waiting = [schema.empty_table()]
        for rows in store.sql_pages(view, key):
            waiting.append(_table(rows, schema))
            written += len(rows)
            if sum(map(len, waiting)) >= _ROWS_OF_GROUP or sum(one.nbytes for one in waiting) >= _BYTES_OF_GROUP:
                writer.write_table(pa.concat_tables(waiting))
                waiting = [schema.empty_table()]
            progress(view, written, total)
        writer.write_table(pa.concat_tables(waiting))
    return written


def _table(rows: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    values = list(zip(*rows, strict=True)) or [() for _ in schema]
    arrays = [_array(column, field) for column, field in zip(values, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


def _array(values: tuple[Any, ...], field: pa.Field) -> pa.Array:
    if pa.types.is_map(field.type):
        return pa.array([list(one.items()) if isinstance(one, dict) else one for one in values], field.type)
    if pa.types.is_string(field.type):
        return pa.array([one if one is None or isinstance(one, str) else str(one) for one in values], field.type)
    return pa.array(values, field.type)
