"""A reward by trajectory id from another process than the one that runs the trajectory, as the store has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.journal import list_segments
from arttrace.system.paths import DataDir

AGENT = """
import arttrace
@arttrace.trajectory
def agent():
    arttrace.reward(1, name="steps")
    print(arttrace.current_trajectory().id, flush=True)
    input()
agent()
"""
FEEDBACK = """
import sys, arttrace
arttrace.reward(0.25, name="stars", trajectory_id=sys.argv[1])
arttrace.reward(1, name="bought", trajectory_id=sys.argv[1])
"""


def start(program: str, data: Path, *arguments: str) -> subprocess.Popen[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ARTTRACE_")}
    environment = {**kept, "ARTTRACE_DIR": str(data), "ARTTRACE_RAISE": "1"}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str], given: str = "") -> None:
    process.communicate(given, timeout=120)
    assert process.returncode == 0


def stored(data: Path) -> Trajectory:
    with Store.open(DataDir(data), create=True) as store:
        (trajectory,) = store.trajectories()
        return trajectory


def rewards(trajectory: Trajectory) -> list[tuple[str, float]]:
    return [(reward.name, reward.value) for reward in trajectory.rewards]


@pytest.mark.parametrize("when", ["during the run", "after it", "after it was stored"])
def test_the_store_shows_it_on_the_trajectory(when: str, tmp_path: Path) -> None:
    agent = start(AGENT, tmp_path)
    assert agent.stdout is not None
    id = agent.stdout.readline().strip()
    if when != "during the run":
        finish(agent, "\n")
    if when == "after it was stored":
        assert rewards(stored(tmp_path)) == [("steps", 1)]
    finish(start(FEEDBACK, tmp_path, id))
    if when == "during the run":
        finish(agent, "\n")
    trajectory = stored(tmp_path)
    assert (trajectory.id, trajectory.incomplete) == (id, "")
    assert rewards(trajectory) == [("steps", 1), ("stars", 0.25), ("bought", 1)]


def test_one_that_is_stored_before_its_trajectory_waits_for_it(tmp_path: Path) -> None:
    run, here = DataDir(tmp_path / "run"), DataDir(tmp_path / "here")
    agent = start(AGENT, run.root)
    assert agent.stdout is not None
    finish(start(FEEDBACK, here.root, agent.stdout.readline().strip()))
    with Store.open(here, create=True) as store:
        assert store.trajectories() == []
    finish(agent, "\n")
    for segment in list_segments(run.spool):
        segment.path.rename(here.spool / segment.path.name)
    assert rewards(stored(here.root)) == [("steps", 1), ("stars", 0.25), ("bought", 1)]


def test_a_child_process_rewards_the_trajectory_it_was_started_in(tmp_path: Path) -> None:
    judge = "import arttrace; arttrace.reward(0.5, name='child'); print(arttrace.current_trajectory().id)"
    finish(
        start(
            f"""
import subprocess, sys
import arttrace
@arttrace.trajectory
def agent():
    shown = subprocess.run([sys.executable, "-c", {judge!r}], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == arttrace.current_trajectory().id
agent()
""",
            tmp_path,
        )
    )
    trajectory = stored(tmp_path)
    assert (rewards(trajectory), trajectory.incomplete) == ([("child", 0.5)], "")
