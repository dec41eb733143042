"""The daemon's numbers as Prometheus reads them."""

from __future__ import annotations

import httpx
import pytest

from arttrace.system.errors import TrainingError
from trainer.daemon.prometheus import render, serving_metrics
from trainer.daemon.state import DaemonState, Queue


def test_metrics_for_prometheus() -> None:
    last = {
        "loss": 0.5,
        "reward_mean": 0.25,
        "reward_mean/helper": 0.5,
        "staleness_mean": 1.5,
        "step_s": 2.0,
        "publish_s": 0.125,
    }
    state = DaemonState(policy="policy", state="wait", step=3, queue=Queue(2, 1, {"too stale": 4}), last=last)
    with serving_metrics(lambda: render(state), 0) as port:
        answer = httpx.get(f"http://127.0.0.1:{port}/metrics")
        assert httpx.get(f"http://127.0.0.1:{port}/").status_code == 404
        with pytest.raises(TrainingError, match="cannot be used"), serving_metrics(bytes, port):
            pass
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    values = dict(line.rsplit(" ", 1) for line in answer.text.splitlines() if not line.startswith("#"))
    assert values['arttrace_train_step{policy="policy"}'] == "3"
    assert values['arttrace_train_state{policy="policy",state="wait"}'] == "1"
    assert values['arttrace_train_state{policy="policy",state="step"}'] == "0"
    assert values['arttrace_train_groups_ready{policy="policy"}'] == "2"
    assert values['arttrace_train_runs_left_out{policy="policy",reason="too stale"}'] == "4"
    assert values['arttrace_train_last_reward_mean{policy="policy"}'] == "0.25"
    assert values['arttrace_train_last_agent_reward_mean{policy="policy",agent="helper"}'] == "0.5"
    assert values['arttrace_train_last_staleness_mean{policy="policy"}'] == "1.5"
    assert values['arttrace_train_last_phase_seconds{policy="policy",phase="step"}'] == "2.0"
    assert values['arttrace_train_last_phase_seconds{policy="policy",phase="publish"}'] == "0.125"
    kinds = [line for line in answer.text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)), "one head for all samples of a name"


@pytest.mark.parametrize(
    ("state", "reason", "trouble"),
    [
        ("wait", "", 0),
        ("wait", "round skipped: all rewards within each group are equal", 0),
        ("wait", "the judge does not answer", 1),
        ("failed", "the disk is full", 1),
        ("stopped", "asked to stop", 0),
    ],
)
def test_a_solved_scenario_is_no_trouble(state: str, reason: str, trouble: int) -> None:
    lines = render(DaemonState(policy="policy", state=state, reason=reason, skips=1)).decode().splitlines()
    assert f'arttrace_train_in_trouble{{policy="policy"}} {trouble}' in lines
