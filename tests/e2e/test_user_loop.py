"""The loop as a user types it: serve, run an agent, look, score, train, and the next call is the new version's.

Every step is the real command in a process of its own; only the judge stands in for a model.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from arttrace.paths import DataDir
from arttrace.store import Store

pytestmark = pytest.mark.e2e

EXAMPLES = Path(__file__).parents[2] / "examples"
ARTTRACE = (sys.executable, "-c", "from arttrace.commands import main; main()")
QUESTIONS = ("imported mango", "frozen bean")
RUNS = 12


@dataclass
class Site:
    """A directory to work in, and the environment that the printed instructions give an agent."""

    folder: Path
    env: dict[str, str]

    def sh(self, *command: str | Path, code: int = 0) -> str:
        """What a command that ends with `code` printed."""
        done = subprocess.run(
            list(map(str, command)), cwd=self.folder, env=self.env, capture_output=True, text=True, timeout=240
        )
        assert done.returncode == code, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout if code == 0 else done.stderr

    def arttrace(self, *arguments: str | Path, code: int = 0) -> str:
        return self.sh(*ARTTRACE, *arguments, code=code)

    def listed(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.arttrace("ls", "--json", "--limit", "200"))
        return found


@pytest.fixture(scope="module")
def site(demo_base_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("user")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "ARTTRACE_")) and k != "MODEL"}
    command = (*ARTTRACE, "serve", "--base-model", demo_base_model, "--port", "0", "--json")
    with (folder / "serve.err").open("w") as log:
        server = subprocess.Popen(
            list(map(str, command)), cwd=folder, env=env, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        assert server.stdout is not None
        ready = server.stdout.readline()
        assert ready, (folder / "serve.err").read_text()
        env |= {"OPENAI_BASE_URL": f"{json.loads(ready)['url']}/v1", "OPENAI_API_KEY": "arttrace"}
        yield Site(folder, env)
    finally:
        server.send_signal(signal.SIGINT)
        assert server.wait(60) in (0, 130)
    assert not (folder / ".arttrace" / "serving.json").exists()


@pytest.fixture
def judge_url() -> Iterator[str]:
    with subprocess.Popen(
        [sys.executable, "-m", "trainer.demo.stand_in_judge"], stdout=subprocess.PIPE, text=True
    ) as judge:
        assert judge.stdout is not None
        assert "stand-in" in judge.stdout.readline()
        yield judge.stdout.readline().split()[-1]
        judge.send_signal(signal.SIGINT)


def test_the_loop_of_a_users_own_program(site: Site, judge_url: str) -> None:
    for question in QUESTIONS:
        answers = site.sh(sys.executable, EXAMPLES / "quickstart" / "agent.py", question, str(RUNS)).splitlines()
        assert len(answers) == RUNS
        assert sum(answer.startswith(question) for answer in answers) > RUNS / 2
    market = EXAMPLES / "market" / "agent.py"
    assert "fresh apple" in site.arttrace("run", "--", sys.executable, market, "fresh apple and canned bean")

    runs = site.listed()
    assert len(runs) == 2 * RUNS + 1
    assert not [run for run in runs if run["incomplete"]]
    assert all(run["captured_tokens"] == run["trained_tokens"] > 0 for run in runs)
    [planner] = [run for run in runs if "market" in run["entry"]]
    assert (planner["agents"], planner["calls"]) == (3, 6)
    assert "policy@0" in site.arttrace("ls")
    tree = site.arttrace("show", planner["id"][:8])
    assert tree.count("agent ask_checker  (inferred") == 2
    assert "tool ask_checker" in tree

    judge = ("--judge", "openai/stand-in-judge", "--judge-base-url", judge_url)
    scored = json.loads(site.arttrace("score", *judge, "--json"))
    assert (scored["scored_now"], scored["singletons"], scored["failed"]) == (2, 1, [])
    assert Counter(len(group["scores"]) for group in scored["groups"]) == {RUNS: 2}
    assert "0 of 2 groups scored now" in site.arttrace("score", *judge)
    rewards = {run["id"]: run["reward"] for run in site.listed()}
    assert rewards.pop(planner["id"]) is None
    assert {0.3, 1.0} <= set(rewards.values())

    trained = site.arttrace("train", "--steps", "1")
    assert trained.startswith(f"policy@1: {2 * RUNS} trajectories in 2 groups")
    assert "served: policy@1 answers from the next call on" in trained
    assert (site.folder / ".arttrace" / "policies" / "policy" / "policy@1" / "adapter_model.safetensors").is_file()

    before = time.time_ns()
    site.sh(sys.executable, EXAMPLES / "quickstart" / "agent.py", QUESTIONS[0])
    with Store.open(DataDir(site.folder / ".arttrace")) as store:
        [newest] = store.summaries(since_ns=before)
        answered_by = store.trajectory(newest.id).policy_versions
        [step] = store.policy_steps("policy")
    assert answered_by == ("policy@1",)
    assert len(step.consumed) == 2 * RUNS

    refused = site.arttrace("train", code=1)
    assert "nothing to train on" in refused
    assert "2 alone in its group" in refused
