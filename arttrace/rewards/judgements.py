"""A judgement in the store: its key, which says that a group was judged, and the rewards that it makes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec.structs import replace

from arttrace.records.group import Group
from arttrace.records.message import canonical_json
from arttrace.records.record import Record
from arttrace.records.reward import JUDGE, Judgement, Reward, reward_clock
from arttrace.rewards.combine import Rewarded
from arttrace.rewards.judge_prompt import DEFAULT_RUBRIC
from arttrace.rewards.selection import judgeable

RULER = "ruler"
"""The name of its rewards."""


def rubric_hash(rubric: str) -> str:
    """32 hex digits that name a rubric; surrounding white space does not count."""
    return hashlib.blake2b(rubric.strip().encode(), digest_size=16).hexdigest()


def judgement_key(group: Group, judge_model: str, rubric: str = DEFAULT_RUBRIC, votes: int = 1) -> str:
    """The key under which a judgement is stored: equal keys mean that nothing needs to be judged again.

    Args:
        group: The runs. Their revisions are part of the key, their order is not; nor are runs that are not judged.
        judge_model: The judge, by litellm's name.
        rubric: What the judge is asked to reward; surrounding white space is ignored.
        votes: The number of times the judge is asked.

    Returns:
        32 hex digits.
    """
    judged, _ = judgeable(group)
    return key_of_runs([(one.id, one.revision) for one in judged.trajectories], judge_model, rubric, votes)


def key_of_runs(runs: Iterable[tuple[str, str]], judge_model: str, rubric: str, votes: int) -> str:
    """As judgement_key, from the ids and revisions of the runs alone."""
    document = [judge_model, rubric_hash(rubric), sorted(map(list, runs)), *([votes] if votes > 1 else [])]
    return hashlib.blake2b(canonical_json(document), digest_size=16).hexdigest()


def rewards_from(judgement: Judgement) -> list[Reward]:
    """The rewards of a judgement: one per judged trajectory, source "judge" and name "ruler".

    Args:
        judgement: What `ruler_score_group` or `score_groups` returned.

    Returns:
        Rewards in 0..1. Their ids make it harmless to store them twice, and let a later judgement of the same run
        replace this one's, at Langfuse too.
    """
    return [
        Reward(
            id=_reward_id(trajectory_id),
            trajectory_id=trajectory_id,
            value=score,
            name=RULER,
            source=JUDGE,
            explanation=judgement.explanations.get(trajectory_id, ""),
            judgement_id=judgement.id,
            time_ns=judgement.time_ns,
        )
        for trajectory_id, score in judgement.scores.items()
    ]


def to_store(judgement: Judgement) -> list[Record]:
    """The records of a judgement in the order to store them, for `store.append`.

    The judgement itself, whose presence means that its group needs no scoring, is the last: if writing stops half-way,
    no group is marked as judged without its rewards.
    """
    return [*rewards_from(judgement), judgement]


class ScoredRun(Rewarded, Protocol):
    """A Trajectory, or the summary of one."""

    @property
    def id(self) -> str: ...


def score_that_counts(run: ScoredRun) -> Reward | None:
    """The reward of a judgement that counts for a run."""
    return next((one for one in run.rewards if one.id == _reward_id(run.id)), None)


def counting_again(judgement: Judgement, counting: Mapping[str, Reward]) -> list[Reward]:
    """The rewards of a stored judgement that another one has replaced since, such as one by another rubric, with times
    by which they count again.

    Args:
        judgement: What its judge need not be asked for again.
        counting: The reward of each run that `score_that_counts`; a run without has had its own taken back.
    """
    return [
        replace(own, time_ns=reward_clock.now_ns(now.time_ns))
        for own in rewards_from(judgement)
        if (now := counting.get(own.trajectory_id)) is not None and now.judgement_id != judgement.id
    ]


def _reward_id(trajectory_id: str) -> str:
    return f"{RULER}:{trajectory_id}"
