"""The rows that DuckDB inserts, as tables or as parameters: every value comes out as it went in, pandas is not needed,
and few rows need neither Arrow nor numpy."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import pytest

from arttrace.store.arrow_tables import arrow_table
from arttrace.store.ingest.given_rows import GivenRows

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
        ("BIGINT", 1.5),
        ("DOUBLE", "1"),
        ("BIGINT[]", [2**63]),
    ],
)
def test_what_a_column_does_not_hold_is_refused(type: str, value: Any) -> None:
    with pytest.raises((OverflowError, TypeError, ValueError)):
        arrow_table({"a": (type, [value])})
    with duckdb.connect() as connection, pytest.raises((OverflowError, TypeError, ValueError)):
        GivenRows().query(connection, "SELECT * FROM {given}", {"a": (type, [value])})


def test_a_process_that_writes_loads_no_pandas(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    paths = [str(Path(__file__).parents[1] / "support")]
    command = [sys.executable, "-c", WRITES, str(tmp_path / "data"), *paths]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stdout + done.stderr


@pytest.mark.parametrize("before", [0, 500], ids=["parameters", "arrow"])
@pytest.mark.parametrize("length", [1, 5, 9])
def test_rows_that_are_given_come_out_as_they_went_in(length: int, before: int) -> None:
    columns = {f"a {type}": (type, (values * 2)[:length]) for type, values in VALUES.items()}
    with duckdb.connect() as connection:
        given = GivenRows()
        if before:
            given.query(connection, "SELECT count(*) FROM {given}", {"n": ("BIGINT", range(before))})
        found = given.query(connection, "SELECT * FROM {given}", columns)
    assert found == list(zip(*(values for _, values in columns.values()), strict=True))
    assert [*map(type, found[0])] == [*map(type, next(zip(*(values for _, values in columns.values()), strict=True)))]


def test_text_that_is_given_may_be_encoded_already() -> None:
    with duckdb.connect() as connection:
        found = GivenRows().query(
            connection, "SELECT * FROM {given}", {"a": ("VARCHAR", ["ü".encode(), None, b"", "b"])}
        )
    assert found == [("ü",), (None,), ("",), ("b",)]


IMPORTS = """
import sys
from arttrace.commands import cli
cli(["import", *sys.argv[1:]], standalone_mode=False)
print([name for name in ("numpy", "pandas", "pyarrow") if name in sys.modules])
"""


@pytest.mark.parametrize(("runs", "loaded"), [(1, []), (400, ["numpy", "pyarrow"])])
def test_a_small_import_loads_neither_arrow_nor_numpy(runs: int, loaded: list[str], tmp_path: Path) -> None:
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
    file = tmp_path / "runs.jsonl"
    file.write_text("\n".join(json.dumps({"messages": said, "reward": n}) for n in range(runs)))
    for _ in range(2):  # the second time nothing is new
        command = [sys.executable, "-c", IMPORTS, str(file), "--dir", str(tmp_path / "data")]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        assert done.stdout.splitlines()[-1] == str(loaded)
