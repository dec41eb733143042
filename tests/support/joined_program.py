"""Programs that run beside a test and join its trajectory: how they are started, and what of them was recorded."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

from asks_by_httpx import ASK, CAPTURED
from forks import UNSAID
from spool import read_spans

from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]


def run(program: str, tmp_path: Path, *arguments: str, **environment: str) -> str:
    """What the program printed. It may `from asking import ask`, which asks a URL a text."""
    (tmp_path / "asking.py").write_text(f"{ASK}ask = ask_at\n")
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    env = {**os.environ, **UNSAID, **CAPTURED, "ARTTRACE_DIR": str(tmp_path / "d"), **environment}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "program.py"), *arguments], env=env, text=True, capture_output=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def one_trajectory(tmp_path: Path) -> Trajectory:
    (trajectory,) = build_trajectories(read_spans(tmp_path / "d"))
    assert trajectory.incomplete == ""
    return trajectory


def agents(trajectory: Trajectory) -> list[tuple[str, str | None, int]]:
    """Each agent's name, its parent's name and its number of calls."""
    names = {agent.id: agent.name for agent in trajectory.agents}
    return sorted(
        (agent.name, names.get(agent.parent_id or ""), sum(call.agent_id == agent.id for call in trajectory.calls))
        for agent in trajectory.agents
    )
