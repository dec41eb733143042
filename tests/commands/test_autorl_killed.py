"""`arttrace autorl` killed with SIGKILL in every stage: each time the same command goes on where it was."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from arttrace.commands.autorl.state import State
from arttrace.store import open_store
from arttrace.system.paths import DataDir

PROGRAM = Path(__file__).parents[1] / "support" / "autorl_killed.py"
OPTIONS = [
    *("Answer questions about things in one sentence.", "--base-model", "base", "--policy", "things", "--stand-in"),
    *("--scenarios", "6", "--held-out", "2", "--group-size", "2", "--groups", "2", "--steps", "2", "--json"),
]
POINTS = (
    "saved 1",  # the scenarios are written
    "asked 2",  # among the held-out runs before
    "gathered 1",
    "asked 3",  # among the runs of the first step
    "judging 1",
    "judged 1",
    "training 1",
    "trained 1",
    "saved 1",  # the step that was trained is noted
    "asked 1",  # the first run of the second step
    "trained 1",
    "asked 1",  # the first of the held-out runs after
    "saved 1",  # what was compared
)
"""Where each start dies, one after the other: within the stages and between them."""


SOME = ("saved 1", "asked 5", "judged 1", "trained 1", "asked 2")


@pytest.mark.parametrize("points", [SOME, pytest.param(POINTS, marks=pytest.mark.full)], ids=["some", "all"])
def test_killed_in_any_stage_it_goes_on_where_it_was(points: tuple[str, ...], tmp_path: Path) -> None:
    events, data = tmp_path / "events", tmp_path / "data"

    command = [sys.executable, str(PROGRAM), str(events), ",".join(points), *OPTIONS, "--dir", str(data)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    state = msgspec.json.decode(done.stdout, type=State)
    assert len(state.scenarios) == 6
    assert [(step.version, step.runs) for step in state.steps] == [("things@1", 4), ("things@2", 4)]
    assert all(one.before is not None and one.after is not None for one in state.comparisons)
    with open_store(DataDir(data)) as store:
        whole = [run for run in store.trajectories() if not run.incomplete]
    learned = [run.id for run in whole if "held out" not in str(run.group)]
    trained = [line.partition(" ")[2] for line in events.read_text().splitlines() if line.startswith("trained ")]
    assert sorted(id for ids in trained for id in ids.split(",")) == sorted(learned), "each is trained on once"
    assert (len(learned), len(whole)) == (2 * 4, 2 * 4 + 2 * 2), "no whole run is made again"
