"""`-o -` and `-o /dev/stdout`: what a command writes to a file goes to standard output, with nothing else in it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from stored_runs import store_runs

from arttrace.system.paths import DataDir

COMMAND = [sys.executable, "-m", "arttrace"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    data = DataDir(tmp_path_factory.mktemp("output") / ".arttrace")
    store_runs(data, groups=2)
    return data


def written(data: DataDir, cwd: Path, *args: str) -> tuple[bytes, str]:
    """Standard output, a pipe, and standard error."""
    done = subprocess.run([*COMMAND, *args, "--dir", str(data.root)], cwd=cwd, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not [*cwd.iterdir()]
    return done.stdout, done.stderr.decode()


@pytest.mark.parametrize("name", ["-", "/dev/stdout"])
def test_rows_and_spans_go_to_standard_output(data: DataDir, tmp_path: Path, name: str) -> None:
    rows, said = written(data, tmp_path, "dataset", "--format", "trl-sft", "-o", name)
    lines = rows.decode().splitlines()
    if name == "-":
        assert said == "8 rows of 8 runs\n"
    else:
        assert lines.pop() == "8 rows of 8 runs in /dev/stdout"
    assert [set(json.loads(line)) for line in lines] == 8 * [{"messages", "tools"}]
    spans, _ = written(data, tmp_path, "export", "-o", name)
    first, *_ = spans.splitlines()
    assert "resourceSpans" in json.loads(first)


def test_parquet_goes_to_standard_output(data: DataDir, tmp_path: Path) -> None:
    rows, said = written(data, tmp_path, "dataset", "--format", "verl-sft", "-o", "-")
    assert said == "8 rows of 8 runs\n"
    path = tmp_path / "rows.parquet"
    path.write_bytes(rows)
    assert pq.read_table(path).num_rows == 8


@pytest.mark.parametrize("command", ["dataset --format trl-sft --held-out 0.5", "dataset --format trl-sft --json"])
def test_what_needs_another_file_beside_is_refused(data: DataDir, tmp_path: Path, command: str) -> None:
    args = [*COMMAND, *command.split(), "-o", "-", "--dir", str(data.root)]
    done = subprocess.run(args, cwd=tmp_path, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"name one with -o" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_a_reader_that_has_enough_ends_the_command(data: DataDir, tmp_path: Path) -> None:
    args = [*COMMAND, "dataset", "--format", "trl-sft", "-o", "-", "--dir", str(data.root)]
    with subprocess.Popen(args, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait() == 1
