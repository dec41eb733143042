"""Runs in which no model answered: there is nothing in them to imitate, and they are counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from msgspec.structs import replace
from simulated_agent import Run, message, research_run

from arttrace.formats.datasets.forms import Form
from arttrace.records.group import Group
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Agent, Trajectory
from arttrace.system.errors import TrainingError
from arttrace.trajectories import build_trajectories
from arttrace.views.datasets.selection import DatasetSelection, Written, _pairs
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


def coordinated(id: str, reward: float) -> Trajectory:
    """A run whose root is code that starts an agent, and asks no model itself."""
    [run] = build_trajectories(research_run(id, scenario="s"))
    below = [replace(agent, parent_id=agent.parent_id or "code") for agent in run.agents]
    return replace(run, agents=(Agent("code", "team"), *below), rewards=(Reward(f"r-{id}", id, reward),))


@pytest.mark.parametrize(("plan_of", "empty"), [(plan_sft, 1), (plan_dpo, 2)])
def test_a_run_whose_answer_is_empty_is_no_run_without_a_call(plan_of: Any, empty: int) -> None:
    runs = []
    for id, value in (("a", 1.0), ("b", 0.0)):
        made = Run(id, scenario="s")
        made.chat("m1", [message("user", "hi")], {"role": "assistant", "parts": []}, at=10)
        [run] = build_trajectories(made.end(ENTRY_ARGUMENTS="{}", ENTRY_RESULT='""'))
        runs.append(replace(run, rewards=(Reward(f"r-{id}", id, value),)))
    plan = plan_of([Group("s", tuple(runs))], None)
    assert plan.conversations_left_out == {"empty answers": empty}
    with pytest.raises(TrainingError, match=f"{empty} empty answers") as refused:
        require_examples(plan)
    assert "arttrace doctor" not in str(refused.value.hint)


ROOT = "runs whose root agent called no model"


def test_runs_whose_sub_agents_alone_answered_are_no_runs_without_a_call() -> None:
    plan = plan_dpo([Group("s", (coordinated("a", 1.0), coordinated("b", 0.0)))], None)
    assert plan.conversations_left_out == {ROOT: 2}
    with pytest.raises(TrainingError, match=f"2 {ROOT}") as refused:
        require_examples(plan)
    assert "arttrace doctor" not in str(refused.value.hint)
    assert "--method sft imitates sub-agents too" in str(refused.value.hint)


@pytest.mark.parametrize("both", [True, False], ids=["both", "one"])
def test_each_run_of_a_pair_in_a_data_set_is_counted(both: bool) -> None:
    [other] = build_trajectories(research_run("b", scenario="s"))
    worse = coordinated("b", 0.0) if both else replace(other, rewards=(Reward("r-b", "b", 0.0),))
    written = Written()
    selection = DatasetSelection(form=Form.TRL_PREFERENCE)
    assert list(_pairs(selection, Group("s", (coordinated("a", 1.0), worse)), written)) == []
    expected = {ROOT: 2} if both else {ROOT: 1, "the other run of its pair is left out": 1}
    assert Counter(written.conversations_left_out) == expected
