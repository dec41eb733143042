"""`arttrace run` where the program forks: the child that ends by os._exit has a run of its own, which is whole."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from asks_by_httpx import ASK, CAPTURED
from chat_server import ChatServer, serve
from forks import UNSAID
from spool import read_spans

from arttrace.trajectories import build_trajectories

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")

ARTTRACE = [sys.executable, "-c", "from arttrace.commands import main; main()"]
FORKING = """
if "parent first" in BEFORE:
    ask("parent first")
if (pid := os.fork()) == 0:
    ask("child")
    if (inner := os.fork()) == 0:
        ask("grandchild")
        ENDS
    os.waitpid(inner, 0)
    ask("child again")
    ENDS
assert os.waitpid(pid, 0)[1] == 0
ask("parent")
"""


@pytest.mark.parametrize("before", ["", "parent first"])
@pytest.mark.parametrize("ends", ["os._exit(0)", "raise SystemExit(0)"])
def test_a_forked_child_that_ends_at_once_ends_its_run(before: str, ends: str, tmp_path: Path) -> None:
    program = tmp_path / "forking.py"
    program.write_text(f"BEFORE = {before!r}{ASK}" + FORKING.replace("ENDS", ends))
    with serve() as server:
        shown = ended(tmp_path, program, server)
    runs = build_trajectories(read_spans(tmp_path / "data"))
    asked = sorted((run.incomplete, [call.call.messages[-1].text for call in run.calls]) for run in runs)
    parents = ["parent first", "parent"] if before else ["parent"]
    assert asked == [("", ["child", "child again"]), ("", ["grandchild"]), ("", parents)]
    assert f"{3} runs" in shown


def ended(directory: Path, program: Path, server: ChatServer) -> str:
    """Runs the program, and gives the line that it ended with."""
    env = {**os.environ, **UNSAID, **CAPTURED, "OPENAI_BASE_URL": server.url, "ARTTRACE_RAISE": "1"}
    command = [*ARTTRACE, "run", "--dir", str(directory / "data"), str(program)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr
