"""What is captured is for its user alone, whatever the umask, in stores that exist too."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_agent import research_run

import arttrace
from arttrace.records.record import encode_record
from arttrace.store import Store
from arttrace.store.server.owner import hold_store
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir

pytestmark = pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")

COMMAND = [sys.executable, "-c", "from arttrace.commands import main; main()"]
USERS_PROGRAM = """
from pathlib import Path
import arttrace, sys

@arttrace.trajectory
def main():
    Path(sys.argv[1]).write_text("the user's own")

main()
arttrace.flush()
"""


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def open_to_others(root: Path) -> list[str]:
    """What is under a directory, itself too, that others have any right to."""
    paths = [root, *root.rglob("*")]
    return [str(path) for path in paths if path.lstat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)]


def test_a_store_is_its_users_alone_from_its_first_byte(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "new" / "data")
    with hold_store(data, create=True) as store:
        assert open_to_others(data.root) == []
        store.append(research_run("a"))
        assert data.store.with_name("store.duckdb.wal").exists()
        assert not data.root.stat().st_mode & 0o077
        JournalWriter(data.spool).append(encode_record(research_run("b")[0]))
        store.ingest_spool()
        store.prune(before_ns=1)
    assert open_to_others(data.root) == []


def test_nothing_is_open_to_others_even_for_a_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But what DuckDB makes, as the umask says, in a directory that nobody else may enter."""
    made: list[tuple[str, int]] = []
    make_directory, open_file = os.mkdir, os.open

    def mkdir(path: Any, mode: int = 0o777, **more: Any) -> None:
        made.append((str(path), mode))
        make_directory(path, mode, **more)

    def opened(path: Any, flags: int, mode: int = 0o777, **more: Any) -> int:
        if flags & os.O_CREAT:
            made.append((str(path), mode))
        return open_file(path, flags, mode, **more)

    monkeypatch.setattr(os, "mkdir", mkdir)
    monkeypatch.setattr(os, "open", opened)
    data = DataDir(tmp_path / "new" / "data")
    arttrace.init(dir=data.root)
    with arttrace.trajectory(name="run"):
        pass
    arttrace.shutdown()
    with hold_store(data, create=True) as store:
        store.append(research_run("a"))
        store.ingest_spool()
    ours = [(path, mode) for path, mode in made if path.startswith(str(tmp_path / "new"))]
    assert {str(data.root), str(data.spool)} <= {path for path, _ in ours}
    assert [(path, oct(mode)) for path, mode in ours if mode & (stat.S_IRWXG | stat.S_IRWXO)] == []


def test_a_store_that_is_there_is_taken_from_others(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
    adapter = data.policies / "policy" / "policy@1" / "adapter.safetensors"
    adapter.parent.mkdir(parents=True)
    adapter.write_bytes(b"weights")
    for path in [data.root, *data.root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    (data.root / "link").symlink_to(tmp_path)
    Store.open(data).close()
    assert [path for path in open_to_others(data.root) if not path.endswith("link")] == []
    assert tmp_path.stat().st_mode & 0o700


def test_all_that_a_data_directory_of_any_name_holds_is_known_as_ours(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "captured")
    Store.open(data, create=True).close()
    known = [getattr(data, name) for name, made in vars(DataDir).items() if isinstance(made, property)]
    for path in [one for one in known if isinstance(one, Path) and not one.exists()]:
        path.write_text("{}") if path.suffix else path.mkdir()
    inside = data.receivers / "prompts"
    inside.write_text("captured")
    for path in [data.root, *data.root.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    Store.open(data).close()
    assert open_to_others(data.root) == []


def test_a_directory_that_is_not_ours_alone_stays_as_it_is(tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir(mode=0o755)
    (project / "agent.py").write_text("pass")
    data = DataDir(project)
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
    data.store.chmod(0o644)
    Store.open(data).close()
    assert open_to_others(project) == [str(project), str(project / "agent.py")]


def test_commands_and_what_they_start_keep_to_themselves_and_programs_of_the_user_do_not(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(USERS_PROGRAM)
    root, made = tmp_path / "data", tmp_path / "made"
    environment = {**os.environ, "ARTTRACE_DIR": str(root)}
    command = [*COMMAND, "run", "--", sys.executable, str(program), str(made)]
    subprocess.run(command, env=environment, check=True, timeout=120)
    assert stat.S_IMODE(made.stat().st_mode) == 0o644
    subprocess.run([*COMMAND, "ls"], env=environment, check=True, timeout=120, capture_output=True)
    exported = tmp_path / "spans.json"
    subprocess.run([*COMMAND, "export", "-o", str(exported)], env=environment, check=True, timeout=120)
    assert stat.S_IMODE(exported.stat().st_mode) == 0o600
    assert open_to_others(root) == []
