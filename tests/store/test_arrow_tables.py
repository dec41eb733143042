"""The tables from which DuckDB inserts: every value comes out as it went in, and pandas is not needed for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from arttrace.store.arrow_tables import arrow_table

VALUES: dict[str, list[Any]] = {
    "VARCHAR": ["a", None, "", "ü\0漢🙂", "x" * 70_000],
    "BIGINT": [0, None, 2**63 - 1, -(2**63), 7],
    "TINYINT": [None, 127, -128, 0, None],
    "DOUBLE": [0.5, None, float("inf"), -1e300, 3],
    "BLOB": [b"", None, b"\xff\0", bytes(range(256)), b"y"],
    "BIGINT[]": [[], None, [1], [2, 2**63 - 1], [-1]],
}
WRITES = """
import sys
sys.path[:0] = sys.argv[2:]
from pathlib import Path
from recorded_runs import recorded_groups
from arttrace.store import Store
from arttrace.system.paths import DataDir
with Store.open(DataDir(Path(sys.argv[1])), create=True) as store:
    store.append(recorded_groups(2, size=2))
    assert len(store.trajectories()) == 4
print("pandas" in sys.modules)
"""


def read(table: Any) -> list[tuple[Any, ...]]:
    with duckdb.connect() as connection:
        connection.register("given", table)
        rows: list[tuple[Any, ...]] = connection.execute("SELECT * FROM given").fetchall()
    return rows


@pytest.mark.parametrize("length", [0, 1, 5, 8, 9, 2000])
def test_every_value_comes_out_as_it_went_in(length: int) -> None:
    columns = {type: (values * (length // 5 + 1))[:length] for type, values in VALUES.items()}
    table = arrow_table({type: (type, values) for type, values in columns.items()})
    assert read(table) == list(zip(*columns.values(), strict=True))


def test_text_may_be_encoded_already() -> None:
    assert read(arrow_table({"a": ("VARCHAR", ["ü".encode(), None, b"", "b"])})) == [("ü",), (None,), ("",), ("b",)]


@pytest.mark.parametrize(
    ("type", "value"),
    [
        ("BIGINT", 2**63),
        ("TINYINT", 128),
        ("BIGINT", "1"),
        ("VARCHAR", "\ud800"),
        ("VARCHAR", b"\xff"),
        ("VARCHAR", 0),
        ("BLOB", False),
        ("BIGINT[]", 0),
    ],
)
def test_what_a_column_does_not_hold_is_refused(type: str, value: Any) -> None:
    with pytest.raises((OverflowError, TypeError, ValueError)):
        arrow_table({"a": (type, [value])})


def test_a_process_that_writes_loads_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    paths = [str(Path(__file__).parents[1] / "support")]
    command = [sys.executable, "-c", WRITES, str(tmp_path / "data"), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stdout + done.stderr
