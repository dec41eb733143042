"""The daemon killed (SIGKILL) in every state, with the real command, learner, store and a judge over real HTTP."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import recorded_groups
from tiny_model import make_base_model

from arttrace.paths import DataDir
from arttrace.records.reward import Reward
from arttrace.rewards.prompt import parse_prompt
from arttrace.store import Store
from trainer.checkpoints import Checkpoints
from trainer.daemon.state import read_state

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.full,  # tests/e2e/test_daemon.py kills it in every state but "score", beside a real vLLM
    pytest.mark.skipif(sys.platform == "win32", reason="no fork on Windows"),
]

SCRIPT = Path(__file__).parents[1] / "support" / "killed_daemon.py"
KILLS = "starting:1,wait:1,score:2,batch:2,step:3,half:3,checkpoint:4,publish:4,record:5"
STEPS, GROUPS_PER_STEP = 5, 2
_ITS_OWN = ("_s", "tokens_per_second")  # seconds differ, and so do the judge's when a kill lost a judgement


def learned(checkpoints: Checkpoints) -> list[dict[str, float]]:
    """The curve: every number of every version that is no time."""
    return [
        {name: value for name, value in checkpoints.manifest(step).metrics.items() if not name.endswith(_ITS_OWN)}
        for step in checkpoints.steps()
    ]


def scores(request: dict[str, Any]) -> list[dict[str, Any]]:
    """A stand-in judge's: arbitrary, but the same for the same run whatever its place."""
    found = []
    for id, run in parse_prompt(request["messages"][1]["content"]).items():
        digest = hashlib.sha256(str(run["result"]).encode()).digest()
        found.append({"trajectory_id": id, "explanation": "", "score": digest[0] / 255})
    return found


def test_the_curve_with_a_kill_in_every_state_is_the_curve_without(
    tmp_path: Path, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(judge_server), "scores", staticmethod(scores))
    records = recorded_groups(STEPS * GROUPS_PER_STEP, size=3)
    for name in ("undisturbed", "killed"):
        with Store.open(DataDir(tmp_path / name), create=True) as store:
            store.append([record for record in records if not isinstance(record, Reward)])
    base_model = make_base_model(tmp_path / "base")
    config = tmp_path / "config.toml"
    config.write_text(
        f"""base_model = {str(base_model)!r}
        min_groups = {GROUPS_PER_STEP}
        group_size = 3
        max_steps = {STEPS}
        poll = 0.05
        judge = "openai/stand-in"
        judge_base_url = "{judge_server.url}"
        [learner]
        learning_rate = 0.01
        lora_rank = 8
        kl_weight = 0.1
        max_logprob_difference = 1000.0
        """
    )
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path), KILLS, "--config", str(config), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr

    undisturbed, killed = (
        Checkpoints(DataDir(tmp_path / name).policies, "policy") for name in ("undisturbed", "killed")
    )
    assert killed.steps() == list(range(1, STEPS + 1))
    assert learned(killed) == learned(undisturbed)
    assert len({curve["loss"] for curve in learned(killed)}) == STEPS
    for step in killed.steps():
        ours, theirs = (one.path(step) / "adapter_model.safetensors" for one in (killed, undisturbed))
        assert ours.read_bytes() == theirs.read_bytes(), f"the adapter of version {step}"
    assert not [path for path in killed.directory.iterdir() if path.name.startswith(".policy@")]

    consumed = [one.trajectory_id for step in killed.steps() for one in killed.manifest(step).consumed]
    assert sorted(consumed) == sorted(record.trajectory_id for record in records if isinstance(record, Reward))
    with Store.open(DataDir(tmp_path / "killed")) as store:
        assert [step.step for step in store.policy_steps("policy")] == killed.steps()
        assert store.trajectories(unconsumed_by="policy") == []
    state = read_state(killed.directory)
    assert state is not None
    assert (state.state, state.step, state.plan, state.set_aside) == ("stopped", STEPS, None, ())
