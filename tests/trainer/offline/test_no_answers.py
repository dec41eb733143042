"""Runs in which no model answered: there is nothing in them to imitate, and they are counted."""

from __future__ import annotations

from typing import Any

import pytest

from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Agent, Trajectory
from arttrace.system.errors import TrainingError
from trainer.offline.plan import plan_dpo, plan_sft, require_examples


@pytest.mark.parametrize(("plan_of", "silent"), [(plan_sft, 1), (plan_dpo, 2)])
def test_they_are_left_out_with_the_reason(plan_of: Any, silent: int) -> None:
    runs = [
        Trajectory(id, "r", scenario="s", agents=(Agent("root", "agent"),), rewards=(Reward(f"r-{id}", id, value),))
        for id, value in (("a", 1.0), ("b", 0.0))
    ]
    plan = plan_of([Group("s", tuple(runs))], None)
    assert plan.conversations_left_out == {"runs without an answer": silent}
    with pytest.raises(TrainingError, match=f"{silent} runs without an answer") as refused:
        require_examples(plan)
    assert "no model call was recorded: see `arttrace doctor`" in str(refused.value.hint)
