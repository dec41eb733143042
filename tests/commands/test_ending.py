"""A command that is asked to end, or whose terminal is closed, leaves its store as Ctrl-C would."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from collector_process import ARTTRACE, environment
from simulated_agent import research_run

from arttrace.collector.server import serve
from arttrace.commands import cli
from arttrace.commands.shared.ending import ended_as_by_ctrl_c
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.system.processes import signals_after_imports

WAITS_S = 120
IN_A_TERMINAL = """
import fcntl, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
from arttrace.commands import main
main()
"""
AMID_AN_IMPORT = """
import signal, sys
from arttrace.__main__ import main

class Named:
    def __set_name__(self, owner, name):
        signal.raise_signal(number)

class AmidTheImport:
    def find_spec(self, name, *_):
        if name == imported:
            type("Holder", (), {"field": Named()})

imported, number = sys.argv.pop(), int(sys.argv.pop())
sys.meta_path.insert(0, AmidTheImport())
main()
"""
WAITING = "ends when the libraries that it is loading are loaded; Ctrl-C again does not wait\n"
JUDGED = ("score", "--judge", "openai/any", "--judge-base-url", "http://127.0.0.1:9/v1")
NONE_SCORED = f"\n{WAITING}0 of 1 group scored and stored; run again to continue.\n"
KEEPERS = (("view", "--port", "0"), ("collect", "--port", "0"))


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    found = DataDir(tmp_path / "data")
    with Store.open(found, create=True) as store:
        for name in ("run", "again"):
            store.append(research_run(name))
    return found


@pytest.fixture(autouse=True)
def as_a_terminal_starts_it() -> Iterator[None]:
    """Not ignored, whatever started the tests."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("command", "imported", "said", "number", "litellm"),
    [
        (("ls",), "arttrace.commands.inspect.ls", "", signal.SIGINT, ""),
        (("ls",), "arttrace.commands.inspect.ls", "", signal.SIGHUP, ""),
        (JUDGED, "litellm", NONE_SCORED, signal.SIGTERM, "an empty one"),
        pytest.param(JUDGED, "litellm", NONE_SCORED, signal.SIGTERM, "the real one", marks=pytest.mark.full),
        (("judge-check", *JUDGED[1:]), "litellm", f"\n{WAITING}", signal.SIGINT, "an empty one"),
    ],
    ids=["ls-2", "ls-1", "score-15", "score-15-real", "judge-check-2"],
)
def test_a_signal_amid_an_import_ends_the_command_when_it_is_done(
    command: tuple[str, ...], imported: str, said: str, number: signal.Signals, litellm: str, data: DataDir
) -> None:
    """An exception that is raised there comes out as another one (as of `__set_name__`), or as an abort of C++ code."""
    program = [sys.executable, "-c", AMID_AN_IMPORT, *command, str(int(number)), imported]
    empty = {}
    if litellm == "an empty one":  # the signal comes as litellm is looked for, and nothing of it is used any more
        (data.root / "litellm.py").touch()
        empty = {"PYTHONPATH": str(data.root)}
    done = subprocess.run(program, env=environment(data, **empty), capture_output=True, text=True, timeout=WAITS_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{said}\ninterrupted\n")


@pytest.mark.parametrize(
    ("command", "imported"),
    [
        ("ls", "arttrace.commands"),
        ("ls", "click"),
        ("ls", "arttrace.system.processes"),
        ("status", "importlib.metadata"),
        ("export --format parquet -o views", "pyarrow"),
    ],
)
def test_ctrl_c_while_the_command_line_is_imported_ends_it_in_a_line(
    command: str, imported: str, data: DataDir
) -> None:
    program = [sys.executable, "-c", AMID_AN_IMPORT, *command.split(), str(int(signal.SIGINT)), imported]
    asked = {"env": environment(data), "cwd": data.root}
    done = subprocess.run(program, **asked, capture_output=True, text=True, timeout=WAITS_S)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "\ninterrupted\n")


@pytest.mark.parametrize("script", ["arttrace", "art-server"])
def test_the_scripts_import_next_to_nothing_before_they_see_to_ctrl_c(script: str) -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    module = project["project"]["scripts"][script].partition(":")[0]
    program = f"import sys; before = set(sys.modules); import {module}; print(*sorted(set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, check=True).stdout
    assert "arttrace.__main__" in found.split()
    assert not {"arttrace.commands", "typing", "re", "importlib.metadata"} & set(found.split())


def left_behind(data: DataDir) -> set[str]:
    return {one.name for one in data.root.iterdir() if one.name.startswith(("owner", "store"))}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("command", KEEPERS, ids=lambda command: command[0])
def test_a_signal_to_all_of_its_processes_closes_the_store(
    command: tuple[str, ...], number: signal.Signals, data: DataDir
) -> None:
    """A shell sends it to the group, systemd to every process of a service."""
    with subprocess.Popen(
        [*ARTTRACE, *command],
        env=environment(data),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert "http://" in process.stdout.readline()
        try:
            os.killpg(process.pid, number)
            _, said = process.communicate(timeout=WAITS_S)
        finally:
            process.kill()
    assert process.returncode == 0, said
    assert "interrupted" not in said
    assert left_behind(data) == {"store.duckdb", "store.duckdb.lock"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_a_server_runs_ends_it_too(
    number: signal.Signals, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(data, 0, lambda *_: signal.raise_signal(number))
    monkeypatch.setattr("webbrowser.open", lambda _: signal.raise_signal(number))
    result = CliRunner().invoke(cli, ["view", "--open", "--port", "0", "--dir", str(data.root)])
    assert result.exit_code == 0, result.output
    assert left_behind(data) == {"store.duckdb", "store.duckdb.lock"}


@pytest.mark.parametrize("command", KEEPERS, ids=lambda command: command[0])
def test_a_terminal_that_is_closed_closes_the_store(command: tuple[str, ...], data: DataDir) -> None:
    """Nothing can be written to it then."""
    ours, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", IN_A_TERMINAL, *command],
        env=environment(data),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    ) as process:
        os.close(terminal)
        shown = b""
        while b"http://" not in shown:
            shown += os.read(ours, 4096)
        os.close(ours)
        try:
            assert process.wait(WAITS_S) == 0
        finally:
            process.kill()
    assert left_behind(data) == {"store.duckdb", "store.duckdb.lock"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_server_for_an_mcp_client_does_not_wait_for_its_next_line(number: signal.Signals, data: DataDir) -> None:
    initialize = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    order = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize}
    with subprocess.Popen(
        [*ARTTRACE, "mcp"], env=environment(data), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            print(json.dumps(order), file=process.stdin, flush=True)
            assert '"id":1' in process.stdout.readline().replace(" ", "")
            process.send_signal(number)
            assert process.wait(WAITS_S) == 0
        finally:
            process.kill()


def test_a_closed_terminal_is_reported_once_however_often_it_is_sent() -> None:
    heard = []
    before = signal.signal(signal.SIGTERM, lambda *_: heard.append("SIGTERM"))
    try:
        with ended_as_by_ctrl_c():
            for _ in range(3):
                signal.raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert heard == ["SIGTERM"]


def test_what_nohup_started_stays() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with ended_as_by_ctrl_c():
        signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_without_a_handler_of_the_command_it_is_ctrl_c() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        with ended_as_by_ctrl_c(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
        assert signal.getsignal(number) is signal.SIG_DFL


def test_of_imports_that_wait_in_each_other_one_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    def load() -> None:
        with signals_after_imports(), signals_after_imports():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        load()
    assert capsys.readouterr().err == f"\n{WAITING}"


def test_a_second_signal_does_not_wait_for_imports() -> None:
    reached = []

    def load() -> None:
        with signals_after_imports():
            reached.append("before")
            signal.raise_signal(signal.SIGTERM)
            reached.append("after the first")
            signal.raise_signal(signal.SIGINT)
            reached.append("after the second")

    before = signal.getsignal(signal.SIGINT)
    with ended_as_by_ctrl_c(), pytest.raises(KeyboardInterrupt):
        load()
    assert reached == ["before", "after the first"]
    assert signal.getsignal(signal.SIGINT) is before
