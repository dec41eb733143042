"""`arttrace export --format parquet`: every view of SQL as a file that others read."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from collector_process import collecting
from datasets import load_dataset
from stored_runs import store_runs

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.store.access import any_store, queries
from arttrace.system.paths import DataDir
from arttrace.views.datasets import view_files


@pytest.mark.parametrize(("rows_at_once", "owned"), [(None, False), (5, True)])
def test_every_view_is_a_file_of_its_rows(
    rows_at_once: int | None, owned: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if rows_at_once:
        monkeypatch.setattr(queries, "_ROWS_OF_PAGE", rows_at_once)
        monkeypatch.setattr(any_store, "_LEAST_ROWS", rows_at_once)
        monkeypatch.setattr(view_files, "_ROWS_OF_GROUP", 3 * rows_at_once)
    data = DataDir(tmp_path / ".arttrace")
    store_runs(data, groups=3)
    args = ["export", "--format", "parquet", "-o", str(tmp_path / "out"), "--dir", str(data.root)]
    with collecting(data) if owned else nullcontext():
        done = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    files = sorted((tmp_path / "out").iterdir())
    assert {file.suffix for file in files} == {".parquet"}
    assert {"trajectories", "calls", "messages", "rewards", "consumption", "spans"} <= {file.stem for file in files}
    with Store.open(data) as store:
        for file in files:
            columns, rows = store.sql(f'SELECT * FROM "{file.stem}"')
            relation = duckdb.read_parquet(str(file))
            assert relation.columns == columns
            assert len(relation) == len(rows)
            assert f"{len(rows)} rows in {file}" in done.output
        ids = {id for (id,) in store.sql("SELECT id FROM trajectories")[1]}
        rewards = dict(store.sql("SELECT trajectory_id, value FROM rewards")[1])
    assert {id for (id,) in duckdb.sql(f"SELECT id FROM '{tmp_path}/out/trajectories.parquet'").fetchall()} == ids
    path = str(tmp_path / "out" / "rewards.parquet")
    loaded = load_dataset("parquet", data_files=path, cache_dir=str(tmp_path / "cache"))["train"]
    assert dict(zip(loaded["trajectory_id"], loaded["value"], strict=True)) == rewards


def test_a_folder_is_needed(tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", "--format", "parquet", "--dir", str(tmp_path)])
    assert done.exit_code == 2
    assert "pass --output" in done.output
