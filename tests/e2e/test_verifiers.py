"""A verifiers environment played on `arttrace serve`, trained on, and played again; and what `vf-eval` saves, imported.

verifiers and the environment are real, in an environment of their own; the model is tiny and knows no sums.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from example_modules import EXAMPLES
from own_environment import kept_environment
from tiny_model import make_base_model

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1800)]

FOLDER = EXAMPLES / "verifiers"
ARTTRACE = (sys.executable, "-m", "arttrace")
HARNESS = ("--env.agent.harness.id", "null", "--env.agent.runtime.type", "subprocess", "--sampling.max-tokens", "16")
PLAYED = ("sums-v1", "-n", "2", "-r", "4", *HARNESS)


def package() -> str:
    """What the example's README installs."""
    [found] = re.findall(r"\$ pip install (.+)", (FOLDER / "README.md").read_text(encoding="utf-8"))
    return found


@contextmanager
def served(data: Path) -> Iterator[str]:
    """`arttrace serve`, by its URL."""
    command = [*ARTTRACE, "serve", "--base-model", make_base_model(data.parent / "base"), "--dir", data, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield next(line for line in process.stdout if line.startswith("Ready: ")).split()[-1]
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=300)


def printed(*command: Any, cwd: Path) -> str:
    """What a command says that has to succeed."""
    env = {**os.environ, "PYTHONPATH": str(FOLDER)}
    done = subprocess.run(
        [str(each) for each in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return done.stdout


def version(run: dict[str, Any]) -> str:
    """The version that sampled a run."""
    [found] = run["policy_versions"]
    return str(found)


def test_an_environment_is_played_trained_on_and_played_again(tmp_path: Path) -> None:
    python, data = kept_environment("verifiers", package(), tmp_path) / "bin" / "python", tmp_path / "data"

    def listed(store: Path) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(
            printed(*ARTTRACE, "ls", "--json", "--limit", "99", "--dir", store, cwd=tmp_path)
        )
        return found

    with served(data) as url:
        play = (python, FOLDER / "rollouts.py", *PLAYED, "--client.base-url", url)
        assert re.match(r"turn 0: 8 of 8 episodes to train on, mean reward 0\.\d+$", printed(*play, cwd=tmp_path))
        runs = listed(data)
        assert all(run["incomplete"] == "" and run["error"] is None for run in runs)
        assert Counter(map(version, runs)) == {"policy@0": 8}
        assert sorted(Counter(run["group"] for run in runs).values()) == [4, 4]
        assert all(0 < run["reward"] <= 1.1 for run in runs)
        assert all(0 < run["trained_tokens"] <= 16 for run in runs)
        assert "policy@1: 8 trajectories in 2 groups" in printed(*ARTTRACE, "train", "--dir", data, cwd=tmp_path)

        assert "8 of 8 episodes" in printed(*play, cwd=tmp_path)
        assert Counter(map(version, listed(data))) == {"policy@0": 8, "policy@1": 8}

        for stage, timeout in (("setup", "0.0001"), ("scoring", "0.0000001")):  # before the first call, after the last
            late = printed(*play, f"--env.agent.timeout.{stage}", timeout, cwd=tmp_path)
            assert "0 of 8 episodes to train on, no reward" in late
        assert Counter(run["error"] is None for run in listed(data)) == {True: 16, False: 8}

        evaluate = (python.with_name("vf-eval"), *PLAYED, "-m", "policy:latest", "--no-push", "--no-rich")
        printed(*evaluate, "--client.base-url", url, "--client.api-key-var", "NO_KEY", "-o", "out", cwd=tmp_path)
    [traces] = (tmp_path / "out").glob("*/traces.jsonl")
    said = printed(*ARTTRACE, "import", traces, "--dir", tmp_path / "imported", cwd=tmp_path)
    assert "8 verifiers traces: 8 traces" in said
    imported = listed(tmp_path / "imported")
    assert sorted(Counter(run["group"] for run in imported).values()) == [4, 4]
    assert all(run["incomplete"] == "" and 0 < run["reward"] <= 1.1 for run in imported)
