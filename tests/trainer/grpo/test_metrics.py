"""Which version's runs a reward is of."""

from __future__ import annotations

import msgspec
import pytest

from arttrace.records.policy import Consumed, PolicyStep, version_rewards
from trainer.grpo.batch import TrainingBatch
from trainer.grpo.metrics import step_numbers
from trainer.learner.interface import StepMetrics
from trainer.policies.retention import Keep, to_prune


def step(number: int, reward: float, *, stale: float = 0.0, runs: float = 8.0) -> PolicyStep:
    metrics = {"reward_mean": reward, "staleness_mean": stale, "trajectories": runs}
    return PolicyStep(policy="p", step=number, adapter="", metrics=metrics)


def test_a_reward_is_of_the_version_that_sampled_the_runs() -> None:
    """After a rollback the runs are an older version's: the newest is not rewarded for them."""
    assert version_rewards([step(2, 0.5), step(1, 0.25)]) == {0: 0.25, 1: 0.5}
    rolled_back = [step(1, 0.25), step(2, 0.5), step(3, 0.75), step(4, 0.875, stale=2, runs=24)]
    assert version_rewards(rolled_back) == pytest.approx({0: 0.25, 1: (0.5 * 8 + 0.875 * 24) / 32, 2: 0.75})
    assert version_rewards([step(1, 1.0, stale=3)]) == {0: 1.0}


def test_imitation_has_no_reward() -> None:
    assert version_rewards([PolicyStep(policy="p", step=1, adapter="", metrics={"loss": 1.0}), step(2, 0.5)]) == {
        1: 0.5
    }


def test_a_distillation_weighs_by_the_runs_that_have_a_reward() -> None:
    """Of a hundred runs that it trained on one was rewarded; the best of the versions is kept by what they earned."""
    runs = [Consumed(str(number), "r") for number in range(100)]
    batch = TrainingBatch(method="distill", consumed=tuple(runs), policy_rewards=(1.0,))
    numbers = step_numbers(batch, StepMetrics(trajectories=len(runs)))
    distilled = PolicyStep(policy="p", step=2, adapter="", metrics=numbers, method="distill")
    earned = version_rewards([step(1, 0.0), distilled, step(3, 0.2, stale=1, runs=10), step(4, 0.5, runs=10)])
    assert earned[1] == pytest.approx((1 * 1.0 + 10 * 0.2) / 11)
    assert to_prune(range(1, 7), earned, Keep(best=1, latest=1)) == [1, 2, 4]


def test_a_fork_begins_with_no_reward_of_its_own() -> None:
    """Its first version has the numbers of the step that it was copied from, whose runs were another policy's."""
    forked = msgspec.structs.replace(step(3, 0.25), method="fork", forked_from="other@3")
    assert version_rewards([forked, step(4, 0.5)]) == {3: 0.5}


def test_each_agent_has_a_number_of_its_own_whatever_its_letters() -> None:
    rewards = {"a/b": (0.5,), "a_b": (0.25,), "写作": (0.0, 1.0), "研究": (1.0,)}
    numbers = step_numbers(TrainingBatch(agent_rewards=rewards), StepMetrics())
    assert {name: value for name, value in numbers.items() if name.startswith("reward_mean/")} == {
        "reward_mean/a_b": 0.5,
        "reward_mean/a_b 2": 0.25,
        "reward_mean/写作": 0.5,
        "reward_mean/研究": 1.0,
    }
