"""Metrics: the plain numbers that a step leaves behind, by name; pure arithmetic on what the step saw.

Rewards are those of the consumed trajectories, means over a step those of the ones that this policy answered in; tokens
are those that it sampled, cost is in US dollars, staleness in steps, seconds end in `_s`.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Final

import msgspec

from arttrace.records.group import Group
from arttrace.records.reward import Judgement
from arttrace.records.values.equal_rewards import are_equal, exact_mean
from arttrace.rewards.combine import rewards_on_one_scale, trajectory_reward
from trainer.grpo.batch import TrainingBatch, agents_differ
from trainer.learner.interface import StepMetrics


class GroupReward(msgspec.Struct, frozen=True):
    """The rewards of one group: how many runs, their mean, and (largest - smallest); and whether agents were rewarded
    by themselves, and not alike."""

    key: str
    runs: int
    mean: float
    spread: float
    agents_differ: bool = False


def step_numbers(batch: TrainingBatch, learned: StepMetrics, judgements: Sequence[Judgement] = ()) -> dict[str, float]:
    """What a PolicyStep keeps of the step that trained on the batch."""
    numbers = {
        **(_of_teacher(batch) if batch.method == "distill" else _of_groups(batch)),
        "tokens_captured": float(batch.captured_tokens),
        "tokens_trained": float(batch.trained_tokens),
        "tokens_quarantined": float(batch.captured_tokens - batch.trained_tokens - batch.unrated_tokens),
        "calls_quarantined": float(sum(batch.quarantined.values())),
        "trajectories_left_out": float(sum(batch.left_out.values())),
        "staleness_mean": statistics.fmean(batch.staleness) if batch.staleness else 0.0,
        "staleness_max": float(max(batch.staleness, default=0)),
        **learned.numbers(),
        "tokens_per_second": batch.trained_tokens / learned.step_s if learned.step_s > 0 else 0.0,
    }
    if judgements:
        numbers["judge_tokens"] = float(sum(one.input_tokens + one.output_tokens for one in judgements))
        costs = [one.cost for one in judgements]
        if None not in costs:
            numbers["judge_cost"] = math.fsum(cost for cost in costs if cost is not None)
    return numbers


def _of_groups(batch: TrainingBatch) -> dict[str, float]:
    group_means = [statistics.fmean(group) for group in batch.rewards]
    advantages = [sample.advantage for sample in batch.samples]
    return {
        "groups": float(len(batch.rewards)),
        "groups_equal": float(batch.equal_groups),
        "groups_floored": float(batch.floored_groups),
        "reward_mean": batch.reward_mean,
        "reward_spread": batch.reward_spread,
        **_of_agents(batch.agent_rewards),
        "reward_group_mean_min": min(group_means, default=0.0),
        "reward_group_mean_max": max(group_means, default=0.0),
        "advantage_mean": statistics.fmean(advantages) if advantages else 0.0,
        "advantage_std": statistics.pstdev(advantages) if advantages else 0.0,
        "advantage_max": max(map(abs, advantages), default=0.0),
    }


def _of_teacher(batch: TrainingBatch) -> dict[str, float]:
    """The mean reward too, of the runs that have one, and how many these are."""
    rewarded = len(batch.policy_rewards)
    rewards = {"reward_mean": batch.reward_mean, "trajectories_rewarded": float(rewarded)} if rewarded else {}
    return {"teacher_kl": batch.teacher_kl, "tokens_unrated": float(batch.unrated_tokens), **rewards}


def group_rewards(groups: Sequence[Group]) -> Iterator[GroupReward]:
    """The rewards of each group that has any."""
    for group in groups:
        values = [reward for one in group.trajectories if (reward := trajectory_reward(one)) is not None]
        if values:
            spread = max(
                _spread([reward for _, reward in part]) for part in rewards_on_one_scale(group.trajectories)[0]
            )
            yield GroupReward(group.key, len(values), exact_mean(values), spread, agents_differ(group.trajectories))


def _spread(values: Sequence[float]) -> float:
    return 0.0 if are_equal(values) else max(values) - min(values)


OF_AN_AGENT: Final = "reward_mean/"
"""What stands before an agent's name where the number is the mean of the rewards that were given to it by itself."""
_MAX_AGENTS = 50


def _of_agents(rewards: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Names are written with what every tracker takes in a metric's name; those that become alike are numbered."""
    found: dict[str, float] = {}
    for name, values in islice(rewards.items(), _MAX_AGENTS):
        written = first = OF_AN_AGENT + (re.sub(r"[^\w. -]", "_", name)[:100] or "_")
        numbers = count(2)
        while written in found:
            written = f"{first} {next(numbers)}"
        found[written] = statistics.fmean(values)
    return found
