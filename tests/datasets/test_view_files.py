"""`arttrace export --format parquet`: every view of SQL as a file that others read."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from datasets import load_dataset
from stored_runs import store_runs

from arttrace.commands import cli
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.datasets import view_files


@pytest.mark.parametrize("rows_at_once", [50_000, 5])
def test_every_view_is_a_file_of_its_rows(rows_at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view_files, "ROWS_AT_ONCE", rows_at_once)
    data = DataDir(tmp_path / ".arttrace")
    store_runs(data, groups=3)
    args = ["export", "--format", "parquet", "-o", str(tmp_path / "out"), "--dir", str(data.root)]
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
