"""Each example's agent plays against its stand-in: the real client and the real capture, with a script for a model."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from statistics import stdev

import pytest
from example_modules import EXAMPLES, OWN_ENVIRONMENT

FOLDERS = {
    "2048": ["7", "4"],
    "email": ["What was decided on the Delta price Rome?"],
    "games/tic_tac_toe": [],
    "games/clues": ["3"],
    "games/codenames": ["3"],
    "frameworks/langgraph": ["How many of lamp are there?"],
    "frameworks/openai_agents": ["refund order 12"],
}
"""The arguments with which each agent.py is a program of its own."""
PLAY = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import train, arttrace, arttrace.loop as art
from trainer.demo.scripted import Scripted

arttrace.init(dir=sys.argv[2])
played = {}
for folder in sys.argv[3:]:
    task = train.load(folder)
    scripted = Scripted(task.stand_in)
    with scripted.served() as url:
        model = art.Model("stand-in", inference_base_url=url, inference_api_key="unused")
        groups = asyncio.run(train.gather(task, model, range(2), 4, "playing"))
    runs = [run for group in groups for run in group.captured]
    played[folder] = {
        "rewards": [built.reward for group in groups for built in group.built],
        "incomplete": [run.incomplete for run in runs if run.incomplete],
        "calls": sum(len(run.calls) for run in runs),
        "answered": len(scripted.demonstrations),
        "agents": sorted({agent.name for run in runs for agent in run.agents}),
        "figures": train.figures(groups),
        "with_errors": train.figures(groups, errors=True),
    }
print(json.dumps(played))
"""
AGENTS = {
    "games/codenames": {"giver", "guesser"},
    "frameworks/langgraph": {"clerk"},
    "frameworks/openai_agents": {"desk", "refunds", "shipping"},
}


def test_every_example_that_is_trained_is_here() -> None:
    assert (
        set(FOLDERS)
        == {str(found.parent.relative_to(EXAMPLES)) for found in EXAMPLES.glob("**/rollout.py")} - OWN_ENVIRONMENT
    )


def test_each_agent_plays_is_captured_and_rewarded(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PLAY, EXAMPLES, tmp_path, *FOLDERS],
        env={**os.environ, "TURNS": "4"}, capture_output=True, text=True, timeout=800,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for folder, played in json.loads(done.stdout.splitlines()[-1]).items():
        assert len(played["rewards"]) == 8, folder
        assert all(math.isfinite(reward) for reward in played["rewards"]), folder
        assert played["incomplete"] == [], folder
        # In self-play the opponent's calls are not recorded.
        unrecorded = played["answered"] - played["calls"]
        assert unrecorded > 0 if folder == "games/tic_tac_toe" else unrecorded == 0, folder
        assert AGENTS.get(folder, set()) <= set(played["agents"])
        assert played["figures"].startswith("reward ")
        assert "±" not in played["figures"]
        errors = [float(one.partition("±")[2]) for one in played["with_errors"].split("  ")]
        assert len(errors) == len(played["figures"].split("  "))
        assert errors[0] == pytest.approx(stdev(played["rewards"]) / math.sqrt(8), rel=0.1), folder


PROGRAMS = [pytest.param(one, marks=() if one in ("email", "games/codenames") else pytest.mark.full) for one in FOLDERS]


@pytest.mark.parametrize("folder", FOLDERS)
def test_no_agent_knows_of_arttrace(folder: str) -> None:
    assert "import arttrace" not in (EXAMPLES / folder / "agent.py").read_text(encoding="utf-8")


@pytest.mark.parametrize("folder", PROGRAMS)
def test_the_agent_is_a_program_of_its_own_and_prints_what_its_readme_shows(folder: str) -> None:
    command = [sys.executable, EXAMPLES / "stand_in.py", folder, *FOLDERS[folder]]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert f"\n{done.stdout}```" in (EXAMPLES / folder / "README.md").read_text(encoding="utf-8")


TINY_SCENARIOS = """
import asyncio, json, sys
sys.path.insert(0, sys.argv[1])
import train, arttrace, arttrace.loop as art
from trainer.demo.scripted import Scripted

arttrace.init(dir=sys.argv[2])
task = train.load("games/tic_tac_toe", tiny=True)
first_free = Scripted(lambda body: {
    "role": "assistant", "content": next(c for c in body["messages"][-1]["content"].split() if c.isdigit())
})
with first_free.served() as url:
    model = art.Model("stand-in", inference_base_url=url, inference_api_key="unused")
    groups = asyncio.run(train.gather(task, model, range(6), 3, "playing"))
assert "torch" not in sys.modules, "whose import takes longer than the games"
print(json.dumps([
    [len(first_free.demonstrations), sum(len(run.calls) for group in groups for run in group.captured)],
    [[one.reward for one in group.built] for group in groups],
]))
"""


def test_a_tiny_model_plays_a_random_player_whose_moves_are_the_scenarios(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TINY_SCENARIOS, EXAMPLES, tmp_path], capture_output=True, text=True, timeout=800
    )
    assert done.returncode == 0, done.stderr
    [answered, calls], rewards = json.loads(done.stdout.splitlines()[-1])
    assert answered == calls  # no opponent asks the model
    assert all(len(set(group)) == 1 for group in rewards)  # the same moves meet the same answers
    assert len({group[0] for group in rewards}) > 1
