"""Whoever needs the store gets it, whatever other processes do with it at the same time."""

from __future__ import annotations

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from simulated_agent import research_run

from arttrace.records.reward import Reward
from arttrace.store import RemoteStore, Store, open_store
from arttrace.store.access import open_store as opening_module
from arttrace.store.access.owner_file import StoreOwner, write_owner
from arttrace.store.file import duckdb_file
from arttrace.store.file.connect import connect
from arttrace.store.server.owner import hold_store
from arttrace.system.errors import StoreError, StoreFull, StoreInUse
from arttrace.system.paths import DataDir

HOLD = """
import sys
from pathlib import Path
from arttrace.store.server.owner import hold_store
from arttrace.system.paths import DataDir

with hold_store(DataDir(Path(sys.argv[1])), create=True):
    print("ready", flush=True)
    sys.stdin.read()
"""

REWARD = """
import sys
from pathlib import Path
from arttrace.system.paths import DataDir
from arttrace.records.reward import Reward
from arttrace.store import open_store
from arttrace.store.access import open_store as opening_module
opening_module.PATIENCE_S = 300.0  # the others may be slow on a busy machine, and all have their turn
sys.stdin.read()
with open_store(DataDir(Path(sys.argv[1])), create=True) as store:
    store.append([Reward(id=sys.argv[2], trajectory_id="t", value=1.0)])
"""


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / "data")


def start(program: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@contextmanager
def holder(data: DataDir) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the store for long."""
    child = start(HOLD, data.root)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        yield child
    finally:
        child.kill()
        child.communicate()


def rewards(store: object) -> set[str]:
    return {id for (id,) in store.sql("SELECT id FROM rewards")[1]}  # type: ignore[attr-defined]


def reward(id: str) -> Reward:
    return Reward(id=id, trajectory_id="t", value=1.0)


def test_a_free_store_is_opened_and_nothing_is_reported(data: DataDir) -> None:
    with open_store(data, create=True) as store:
        assert isinstance(store, Store)
        assert not data.owner.exists()


def test_an_owner_is_asked_and_its_file_is_private(data: DataDir) -> None:
    with holder(data) as owner, open_store(data) as store:
        assert isinstance(store, RemoteStore)
        assert json.loads(data.owner.read_text())["pid"] == owner.pid
        assert stat.S_IMODE(data.owner.stat().st_mode) == 0o600
        owner.communicate()  # it ends in order
        assert not data.owner.exists()
        store.append([reward("late")])  # this process took over
        assert rewards(store) == {"late"}


@pytest.mark.parametrize("command", [["ls"], ["show", "a"], ["sql", "SELECT count(*) AS calls FROM calls"]])
def test_no_command_fails_because_another_holds_the_store(data: DataDir, command: list[str]) -> None:
    with hold_store(data, create=True) as store:
        store.append(research_run("a"))
        program = "from arttrace.commands import main; main()"
        arguments = [sys.executable, "-c", program, *command, "--json", "--dir", str(data.root)]
        done = subprocess.run(arguments, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        assert '"calls":' in done.stdout


def test_an_owner_that_is_killed_is_followed_by_the_one_that_asks(data: DataDir) -> None:
    with holder(data) as owner, open_store(data) as store:
        store.append([reward("before")])
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert data.owner.exists()  # stale
        store.append([reward("after")])
        assert rewards(store) == {"before", "after"}
        with holder_refused(data):
            pass
    with open_store(data) as store:
        assert rewards(store) == {"before", "after"}


def test_a_store_that_this_process_has_open_is_still_closed_to_others_once_it_was_asked_for_again(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that closes any file descriptor of a file loses all its locks on it."""
    monkeypatch.setattr("arttrace.store.file.connect._LOCK_PATIENCE_S", 0.1)
    Store.open(data, create=True).close()
    with Store.open(data):
        with pytest.raises(StoreInUse, match="is open in this process already"):
            Store.open(data)
        with holder_refused(data):
            pass


@contextmanager
def holder_refused(data: DataDir) -> Iterator[None]:
    """While this process holds the file after a takeover, it answers nobody; another sees it in use."""
    patience, opening_module.PATIENCE_S = opening_module.PATIENCE_S, 0.0
    try:
        program = "import sys, duckdb\ntry: duckdb.connect(sys.argv[1])\nexcept duckdb.IOException: print('in use')"
        shown = subprocess.run([sys.executable, "-c", program, str(data.store)], capture_output=True, text=True)
        assert shown.stdout == "in use\n"
        yield
    finally:
        opening_module.PATIENCE_S = patience


def test_the_next_owner_is_asked_when_one_dies(data: DataDir) -> None:
    with holder(data) as first, open_store(data) as store:
        store.append([reward("one")])
        first.kill()
        first.wait()
        with holder(data):
            store.append([reward("two")])
            assert rewards(store) == {"one", "two"}
            assert isinstance(store, RemoteStore)


def test_many_that_start_at_one_moment_all_get_it(data: DataDir) -> None:
    children = [start(REWARD, data.root, n) for n in range(4)]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    assert [child.wait() for child in children] == [0] * 4
    with open_store(data) as store:
        assert rewards(store) == {"0", "1", "2", "3"}


@pytest.mark.parametrize("content", ["", "{", "[]", '{"url": 5}', '{"url": "http://127.0.0.1:1", "pid": 1}'])
def test_a_broken_owner_file_is_ignored(data: DataDir, content: str) -> None:
    Store.open(data, create=True).close()
    data.owner.write_text(content)
    with open_store(data) as store:
        assert isinstance(store, Store)


def test_a_stale_owner_file_is_ignored_whoever_has_its_pid_and_port_now(data: DataDir, tmp_path: Path) -> None:
    Store.open(data, create=True).close()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"welcome to something else")

        def log_message(self, *_: object) -> None:
            pass

    foreign = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=foreign.serve_forever, args=(0.05,), daemon=True).start()
    try:
        for url in ("http://127.0.0.1:1", f"http://127.0.0.1:{foreign.server_port}"):
            write_owner(data, StoreOwner(url, os.getppid(), "token"))
            with open_store(data) as store:
                assert isinstance(store, Store)
        other = DataDir(tmp_path / "other")
        with hold_store(other, create=True):  # a directory copied while it was owned
            data.owner.write_bytes(other.owner.read_bytes())
            with open_store(data) as store:
                assert isinstance(store, Store)
    finally:
        foreign.shutdown()
        foreign.server_close()


def test_one_that_holds_the_file_and_answers_nobody_is_named(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_module, "PATIENCE_S", 0.0)
    with holder(data) as owner:
        data.owner.unlink()
        with pytest.raises(StoreInUse, match=f"process {owner.pid}"):
            open_store(data)


def test_threads_that_hold_it_one_after_the_other_all_get_it(data: DataDir, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than one waits for a holder that does not let go: as many groups as a gather reads back at once."""
    monkeypatch.setattr("arttrace.store.file.connect._LOCK_PATIENCE_S", 0.1)
    monkeypatch.setattr(opening_module, "PATIENCE_S", 0.5)

    def hold(_: int) -> None:
        with open_store(data, create=True):
            time.sleep(0.2)

    with ThreadPoolExecutor(10) as threads:
        assert list(threads.map(hold, range(10))) == [None] * 10


def test_no_store_is_no_store(data: DataDir) -> None:
    with pytest.raises(StoreError, match="no store in"):
        open_store(data)
    assert not data.root.exists()


def test_spans_sent_to_an_endpoint_are_asked_there(
    data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    collected = DataDir(tmp_path / "collected")
    monkeypatch.setenv("ARTTRACE_DIR", str(data.root))
    with hold_store(collected, create=True) as there:
        there.append(research_run("a"))
        owner = json.loads(collected.owner.read_text())
        monkeypatch.setenv("ARTTRACE_ENDPOINT", owner["url"])
        with pytest.raises(StoreError, match="asks for a key") as error:
            open_store(data)
        assert "ARTTRACE_API_KEY" in (error.value.hint or "")
        assert "--api-key-file" in (error.value.hint or "")  # it has no key: there is none to set
        monkeypatch.setenv("ARTTRACE_API_KEY", "another")
        with pytest.raises(StoreError, match="does not take the key of ARTTRACE_API_KEY"):
            open_store(data)
        monkeypatch.setenv("ARTTRACE_API_KEY", owner["token"])
        with open_store(data) as store:
            assert [one.id for one in store.summaries()] == ["a"]
    with pytest.raises(StoreError, match="does not answer") as error:
        open_store(data)
    assert "ARTTRACE_ENDPOINT" in (error.value.hint or "")
    assert not data.root.exists()


OPENS = """
import sys
from pathlib import Path
from arttrace.store.file.duckdb_file import opening

with opening(Path(sys.argv[1])):
    print("ready", flush=True)
    sys.stdin.read()
"""


def test_a_store_that_another_process_keeps_rewriting_is_not_opened(
    data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
    monkeypatch.setattr(duckdb_file, "_OPENING_PATIENCE_S", 0.1)
    other = start(OPENS, data.store)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(StoreInUse, match="another process is opening or rewriting the store"):
            Store.open(data)
    finally:
        other.communicate()
    with Store.open(data) as store:
        assert [one.id for one in store.summaries()] == ["a"]


@pytest.mark.parametrize("unclean", ["store.duckdb", "store.duckdb.new"])
def test_a_store_with_a_write_ahead_log_is_neither_replaced_nor_replaces(data: DataDir, unclean: str) -> None:
    """What stands in the log alone would be lost."""
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
    beside = duckdb_file.copy_beside(data.store)
    beside.write_bytes(b"another")
    data.store.with_name(f"{unclean}.wal").write_bytes(b"what is in no file yet")
    before = data.store.read_bytes()
    with pytest.raises(StoreError, match=f"{unclean} was not closed cleanly"):
        duckdb_file.replace(data.store, beside)
    assert (data.store.read_bytes(), beside.read_bytes()) == (before, b"another")


def test_a_journal_that_cannot_be_written_says_so_and_loses_nothing(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        store.append(research_run("a"))
    with Store.open(data) as store:
        journal = data.journal
        shutil.rmtree(journal, ignore_errors=True)
        journal.write_bytes(b"a file in its place")
        with pytest.raises(StoreFull, match=r"the journal in .* cannot be written(.|\n)*try again"):
            store.append(research_run("b"))
        assert [one.id for one in store.summaries()] == ["a"]
        journal.unlink()
        store.append(research_run("b"))
        assert {one.id for one in store.summaries()} == {"a", "b"}


def test_a_file_that_this_process_is_about_to_close_is_waited_for(tmp_path: Path) -> None:
    first = connect(tmp_path / "store.duckdb")
    threading.Timer(0.3, first.close).start()
    connect(tmp_path / "store.duckdb").close()


def test_what_a_killed_process_left_beside_the_store_is_removed(data: DataDir) -> None:
    """A query's, and half a copy of the store: gigabytes, of which the disk may be full."""
    spilled, copy = (data.store.with_name(f"store.duckdb{ending}") for ending in (".tmp", ".new"))
    Store.open(data, create=True).close()
    spilled.mkdir()
    for name in ("duckdb_temp_9379_0_owner", "duckdb_temp_9379_0_storage_DEFAULT-0.tmp"):
        (spilled / name).write_bytes(b"x")
    for path in (copy, copy.with_name("store.duckdb.new.wal")):
        path.write_bytes(b"x")
    with Store.open(data) as store:
        assert {path.name for path in data.root.glob("store*")} <= {
            "store.duckdb",
            "store.duckdb.wal",
            "store.duckdb.lock",
        }
        assert store.sql("SELECT 1")[1] == [(1,)]


IN_A_NOTEBOOK = """
import sys
from types import ModuleType, SimpleNamespace

kernel = SimpleNamespace(config={"IPKernelApp": {}})
sys.modules["IPython"] = ModuleType("IPython")
sys.modules["IPython"].get_ipython = lambda: kernel
sys.modules["ipywidgets"] = None  # nobody can import it
from pathlib import Path
from arttrace.store import Store
from arttrace.system.paths import DataDir

with Store.open(DataDir(Path(sys.argv[1])), create=True) as store:
    print(store.sql("SELECT 1")[1], store.sql("SELECT current_setting('enable_progress_bar')")[1])
"""


def test_a_notebook_without_ipywidgets_opens_a_store(tmp_path: Path) -> None:
    """DuckDB recognises a kernel, has no bar then, and refuses to be told so."""
    told = [sys.executable, "-c", IN_A_NOTEBOOK, str(tmp_path / "data")]
    ended = subprocess.run(told, capture_output=True, text=True, timeout=120)
    assert ended.stdout == "[(1,)] [(False,)]\n", ended.stderr


def test_a_store_that_could_not_be_set_up_is_not_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever keeps the error, as a notebook does, keeps what is in its frames."""

    def refuse(_path: Path) -> None:
        raise PermissionError("not its owner")

    path = tmp_path / "store.duckdb"
    with monkeypatch.context() as patched:
        patched.setattr(duckdb_file, "for_its_user", refuse)
        with pytest.raises(PermissionError) as kept:
            duckdb_file.connection_to(path)
    opened = "import sys, duckdb; duckdb.connect(sys.argv[1]).close()"
    assert subprocess.run([sys.executable, "-c", opened, str(path)], timeout=120).returncode == 0
    assert kept.value.__traceback__ is not None
