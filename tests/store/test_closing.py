"""A store is closed by whoever opened it, and while nobody else opens it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from arttrace.records.reward import Reward
from arttrace.store.access.local import Store
from arttrace.store.file.duckdb_file import opening
from arttrace.system.paths import DataDir


def test_a_store_is_closed_while_nobody_opens_it(tmp_path: Path) -> None:
    """DuckDB reads a file's headers before it locks the file. Whoever had read them as the last one closed it went on
    from them, and what that one had stored was lost."""
    data = DataDir(tmp_path / "data")
    store = Store.open(data, create=True)
    store.append([Reward(id="one", trajectory_id="t", value=1.0)])
    closing = threading.Thread(target=store.close)
    with opening(data.store):
        closing.start()
        closing.join(1.0)
        assert closing.is_alive()
    closing.join(60)
    assert not closing.is_alive()
    with Store.open(data) as again:
        assert again.sql("SELECT id FROM rewards")[1] == [("one",)]


_NEVER_CLOSED = """
import sys
from pathlib import Path

from arttrace.records.reward import Reward
from arttrace.store.access.local import Store
from arttrace.system.paths import DataDir

store = Store.open(DataDir(Path(sys.argv[1])), create=True)
store.append([Reward(id="one", trajectory_id="t", value=1.0)])
"""


def test_a_store_that_a_program_never_closes_is_closed_like_any_other_as_the_program_ends(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    data.root.mkdir()
    program = subprocess.Popen(
        [sys.executable, "-c", f"{_NEVER_CLOSED}print(flush=True); sys.stdin.read()", str(data.root)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with program, opening(_stored(program, data)):
        assert program.stdin is not None
        program.stdin.close()
        with pytest.raises(subprocess.TimeoutExpired):
            program.wait(1.0)
    assert program.returncode == 0
    with Store.open(data) as again:
        assert again.sql("SELECT id FROM rewards")[1] == [("one",)]


def _stored(program: subprocess.Popen[bytes], data: DataDir) -> Path:
    assert program.stdout is not None
    program.stdout.readline()
    return data.store


@pytest.mark.parametrize("ends", ["sys.exit()", "store.close(); sys.exit()", "store.sql('SELECT 1')"])
def test_a_forked_process_leaves_the_file_of_a_store_as_it_is(tmp_path: Path, ends: str) -> None:
    """It checkpointed the other's file as it ended, or died."""
    forks = f"""
import os
files = [Path(f"{{DataDir(Path(sys.argv[1])).store}}{{ending}}") for ending in ("", ".wal")]
before = [one.read_bytes() for one in files]
forked = os.fork()
if not forked:
    {ends}
    sys.exit()
print(os.waitpid(forked, 0)[1], [one.read_bytes() for one in files if one.exists()] == before)
store.append([Reward(id="two", trajectory_id="t", value=1.0)])
"""
    root = tmp_path / "data"
    program = [sys.executable, "-c", _NEVER_CLOSED + forks, str(root)]
    ended = subprocess.run(program, capture_output=True, text=True, check=True, timeout=60)
    assert ended.stdout.split() == ["256" if "sql" in ends else "0", "True"]
    assert ("was opened by the process that this one was forked from" in ended.stderr) == ("sql" in ends)
    with Store.open(DataDir(root)) as again:
        assert sorted(again.sql("SELECT id FROM rewards")[1]) == [("one",), ("two",)]
