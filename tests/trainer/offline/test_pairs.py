"""Pairs of which one run cannot be trained on: the other is left out too, and both are counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from simulated_agent import Run, message
from tiny_model import make_base_model

from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.system.errors import TrainingError
from arttrace.trajectories.build import build_trajectories
from arttrace.trajectories.groups import group_trajectories
from trainer.offline.plan import plan_dpo, require_examples
from trainer.offline.step import load_tokenizer


def pair(scenario: str, worse: str) -> Group:
    """Two runs of a question: one is answered with yes, the other worse."""
    spans, rewards = [], []
    for number, answer in enumerate(("yes", worse)):
        run = Run(f"{scenario}-{number}", scenario=scenario)
        run.chat("m", [message("user", "A pear?")], message("assistant", answer), at=1)
        spans += run.end()
        rewards.append(Reward(id=f"r-{run.id}", trajectory_id=run.id, value=1.0 - number))
    (group,) = group_trajectories(build_trajectories(spans, rewards))
    return group


def test_a_run_whose_pair_is_left_out_is_counted_beside_it(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_base_model(tmp_path / "base"))
    short, long = pair("plum", "no"), pair("pear", "no " * 99)
    ((chosen, rejected),) = plan_dpo([short], tokenizer).dpo
    bound = max(len(chosen.token_ids), len(rejected.token_ids))
    plan = plan_dpo([short, long], tokenizer, max_length=bound)
    assert len(plan.dpo) == 1
    left_out = {f"longer than {bound} tokens": 1, "the other run of its pair is left out": 1}
    assert plan.conversations_left_out == left_out
    with pytest.raises(TrainingError, match=rf"of every pair one conversation at least is longer than {bound} tokens"):
        require_examples(plan_dpo([long], tokenizer, max_length=bound))
