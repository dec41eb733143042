"""AutoRL on an MCP server with a real vLLM and a real step; writer and judge are stand-ins, named so.

The server answers over HTTP: one on stdio would be started for each run.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from program_over_http import answering
from tiny_model import make_base_model

from arttrace.commands.autorl import stand_in
from arttrace.commands.autorl.state import State
from arttrace.store import open_store
from arttrace.system.paths import DataDir

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(3600)]
SERVER = Path(__file__).parents[2] / "examples" / "mcp" / "server.py"


@pytest.fixture
def mcp() -> Iterator[str]:
    with answering(SERVER, "--http") as url:
        yield url


def test_from_words_to_a_trained_and_compared_policy(tmp_path: Path, mcp: str) -> None:
    data = tmp_path / "data"
    command = [
        *(Path(sys.executable).with_name("arttrace"), "autorl", "Answer travellers by the timetable.", "--json"),
        *("--base-model", make_base_model(tmp_path / "base"), "--policy", "clerk", "--dir", data, "--stand-in"),
        *("--mcp", mcp, "--scenarios", "3", "--held-out", "1", "--group-size", "3"),
        *("--groups", "2", "--steps", "1", "--max-turns", "2", "--max-tokens", "12", "--learning-rate", "1e-3"),
        *("--report-to", "tensorboard"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    assert stand_in.NOTE in done.stderr
    state = msgspec.json.decode(done.stdout, type=State)
    assert [(step.version, step.runs) for step in state.steps] == [("clerk@1", 6)]
    [compared] = state.comparisons
    assert compared.before is not None
    assert compared.after is not None
    with open_store(DataDir(data)) as store:
        runs = store.trajectories()
    assert {run.policy_versions for run in runs if "held out, clerk@1" in str(run.group)} == {("clerk@1",)}
    assert {str(call.call.tools[0]["function"]["name"]) for run in runs for call in run.calls} == {"stations"}
    assert list((DataDir(data).policies / "clerk" / "tensorboard").rglob("events.out.tfevents.*"))
