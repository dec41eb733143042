"""`arttrace run` where a process is started badly: with closed standard streams, or in a directory that is gone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer, serve
from spool import finished_spans

ARTTRACE = [sys.executable, "-c", "from arttrace.commands import main; main()"]
AGENT = f"""{ASK}
import sys
print(ask("plan"))
sys.exit(7)
"""


@pytest.fixture
def server() -> Iterator[ChatServer]:
    with serve() as running:
        yield running


@pytest.fixture
def agent(tmp_path: Path) -> Path:
    path = tmp_path / "agent.py"
    path.write_text(AGENT)
    return path


@pytest.mark.skipif(os.name != "posix", reason="the shell closes them")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_stay_so(closed: str, tmp_path: Path, agent: Path, server: ChatServer) -> None:
    started = [*ARTTRACE, "run", "--dir", "data", "--", sys.executable, "agent.py"]
    env = {**os.environ, **CAPTURED, "OPENAI_BASE_URL": server.url}
    shell = ["sh", "-c", f'"$@" {closed}', "sh", *started]
    done = subprocess.run(shell, cwd=tmp_path, env=env, timeout=300)
    assert done.returncode == 7
    assert len(finished_spans(tmp_path / "data")) == 2


_BOOTSTRAP = find_spec("arttrace.capture.bootstrap")
_QUIET = "import sys; sys.exit(7)"
_RUN = [*ARTTRACE, "run", "--dir", "data", "--"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the device of Linux that is always full")
@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full"])
@pytest.mark.parametrize(
    "started",
    [[*_RUN, sys.executable, "-c", _QUIET], [*_RUN, "printf", "said"], [sys.executable, "-c", _QUIET]],
    ids=["python", "no python", "a python that cannot be captured"],
)
def test_what_cannot_be_said_on_standard_error_is_said_nowhere(
    redirected: str, started: list[str], tmp_path: Path
) -> None:
    env = dict(os.environ)
    if started[:2] == [sys.executable, "-c"] and started[2] == _QUIET:
        assert _BOOTSTRAP is not None
        assert _BOOTSTRAP.origin is not None
        (tmp_path / "arttrace.py").write_text("raise ImportError('not of this Python')")
        env["PYTHONPATH"] = os.pathsep.join([str(Path(_BOOTSTRAP.origin).parent), str(tmp_path)])
    shell = ["sh", "-c", f'"$@" {redirected}', "sh", *started]
    done = subprocess.run(shell, cwd=tmp_path, env=env, stdout=subprocess.PIPE, timeout=100)
    assert (done.returncode, done.stdout) == ((0, b"said") if "printf" in started else (7, b""))


def test_a_program_in_a_directory_that_is_gone_is_captured_and_nothing_is_printed_of_it(
    tmp_path: Path, agent: Path, server: ChatServer
) -> None:
    (tmp_path / "gone").mkdir()
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = True\n")
    agent.write_text(AGENT.replace("sys.exit(7)", "sys.exit(7 if theirs else 0)"))
    started = [*ARTTRACE, "run", "--quiet", "--dir", str(tmp_path / "data"), "--", sys.executable, str(agent)]
    env = {**os.environ, **CAPTURED, "OPENAI_BASE_URL": server.url}
    env["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    shell = ["sh", "-c", 'cd gone && rmdir ../gone && exec "$@"', "sh", *started]
    done = subprocess.run(shell, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (7, "")
    assert len(finished_spans(tmp_path / "data")) == 2
