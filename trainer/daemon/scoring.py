"""Scoring inside the loop: the groups of a plan are judged, each once, and what a judge could not score is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from arttrace.records.group import Group
from arttrace.records.record import Record
from arttrace.records.reward import Judgement
from arttrace.rewards import DEFAULT_RUBRIC, judgement_key, score_groups, to_store
from arttrace.rewards.judgements import counting_again, score_that_counts
from arttrace.store import AnyStore
from arttrace.system.errors import JudgeError, MayPass


@dataclass(frozen=True, slots=True)
class JudgeTerms:
    """Who judges, by what rubric, and how often per group."""

    model: str
    base_url: str | None = None
    rubric: str = DEFAULT_RUBRIC
    votes: int = 1

    def key(self, group: Group) -> str:
        """The key of a group's judgement by this judge."""
        return judgement_key(group, self.model, self.rubric, self.votes)

    def found(self, store: AnyStore, groups: Sequence[Group]) -> list[Judgement]:
        """The judgements of the groups that the store holds."""
        return [one for group in groups if (one := store.judgement(self.key(group))) is not None]


def judge(
    store: AnyStore,
    groups: Sequence[Group],
    terms: JudgeTerms,
    keep: Callable[[Sequence[Record]], None],
    failed: dict[str, JudgeError],
) -> dict[str, JudgeError]:
    """Judge the groups that have no judgement yet; `keep` stores each as soon as it is there, and first the rewards of
    those that are there, where another judgement has replaced them since. By key, `failed` has the
    groups whose judgement failed for good, with why: they are paid for, and are not asked about again. Returns those
    whose judgement failed in a way that may pass.

    Raises JudgeUnavailable that does not pass.
    """
    due: list[Group] = []
    again: list[Record] = []
    for group in groups:
        if group.key not in failed:
            if (judgement := store.judgement(terms.key(group))) is None:
                due.append(group)
            else:
                counting = {run.id: score for run in group.trajectories if (score := score_that_counts(run))}
                again += counting_again(judgement, counting)
    if again:
        keep(again)
    if not due:
        return {}
    params: dict[str, Any] = {"api_base": terms.base_url} if terms.base_url else {}
    try:
        outcomes = asyncio.run(
            score_groups(
                due,
                terms.model,
                params,
                terms.rubric,
                votes=terms.votes,
                on_judged=lambda _, judgement: keep(to_store(judgement)),
            )
        )
    except JudgeError as error:
        if not isinstance(error, MayPass):
            raise
        return {group.key: error for group in due if store.judgement(terms.key(group)) is None}
    errors = [
        (group.key, outcome) for group, outcome in zip(due, outcomes, strict=True) if isinstance(outcome, JudgeError)
    ]
    failed.update((key, error) for key, error in errors if not isinstance(error, MayPass))
    return {key: error for key, error in errors if isinstance(error, MayPass)}
