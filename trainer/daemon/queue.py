"""Pure: which groups of the store are ready for the next step, and why the other runs are not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from arttrace.records.sequence import NotTrained
from arttrace.rewards.combine import scale_of, scales_that_count, trajectory_reward
from arttrace.rewards.selection import not_judged
from arttrace.store import TrajectorySummary
from trainer.daemon.state import PlannedGroup, Queue
from trainer.grpo.selection import has_tokens_of, why_not
from trainer.policies.made_here import MadeHere


@dataclass(frozen=True, slots=True)
class ReadyTerms:
    """What a run and a group must be to count for the step after version `step`."""

    policy: str
    step: int
    group_size: int
    rewarded: bool
    max_staleness: int | None = None
    refused: frozenset[str] = frozenset()
    made: MadeHere | None = None
    paused: frozenset[str] = frozenset()
    unscored: frozenset[str] = frozenset()


def look(
    summaries: Iterable[TrajectorySummary], terms: ReadyTerms, taken: Collection[str]
) -> tuple[list[PlannedGroup], Queue]:
    """The ready groups, those that are ready for longest first, and the queue as others see it.

    `taken` are ids of runs that were dealt with. A group is ready when `group_size` of its runs count and can be
    compared, at least one of them with tokens to train on; all those belong to it. One whose key is among
    `terms.paused` or `terms.unscored` is not ready. `terms.refused` are ids of runs that other weights sampled,
    `terms.made` the versions of the policy that there are.
    """
    members: defaultdict[str, list[TrajectorySummary]] = defaultdict(list)
    left_out: Counter[NotTrained] = Counter()
    for one in summaries:
        if one.id in taken:
            continue
        if reason := _why_not(one, terms):
            left_out[reason] += 1
        else:
            members[one.group].append(one)
    ready: list[tuple[int, PlannedGroup]] = []
    waiting = paused = unscored = 0
    for key, found in members.items():
        runs = _on_one_scale(found, terms)
        left_out[NotTrained.REWARDED_OTHERWISE] += len(found) - len(runs)
        if not any(has_tokens_of(one, terms.policy) for one in runs):
            left_out[NotTrained.NO_TOKENS_OF_POLICY] += len(runs)
        elif key in terms.paused:
            paused += 1
        elif key in terms.unscored:
            unscored += 1
        elif len(runs) < terms.group_size:
            waiting += 1
        else:
            ended = sorted(one.end_ns for one in runs)[terms.group_size - 1]
            ready.append((ended, PlannedGroup(key, tuple(sorted(one.id for one in runs)))))
    ready.sort(key=lambda one: (one[0], one[1].key))
    reasons = {str(reason): count for reason, count in left_out.items() if count}
    return [group for _, group in ready], Queue(len(ready), waiting, reasons, paused, unscored)


def _why_not(one: TrajectorySummary, terms: ReadyTerms) -> NotTrained | None:
    if one.id in terms.refused:
        return NotTrained.OTHER_WEIGHTS
    reason = why_not(one, policy=terms.policy, step=terms.step, max_staleness=terms.max_staleness, made=terms.made)
    if reason or trajectory_reward(one) is not None:
        return reason
    return NotTrained.NO_REWARD if terms.rewarded else not_judged(one)


def _on_one_scale(runs: list[TrajectorySummary], terms: ReadyTerms) -> list[TrajectorySummary]:
    """Those that a step will compare: where there is a judge, it scores all that it can read, against each other."""
    scales = [scale_of(one) if terms.rewarded or not_judged(one) else "of the judge" for one in runs]
    counts = scales_that_count(Counter(scales))
    return [one for one, scale in zip(runs, scales, strict=True) if scale in counts]
