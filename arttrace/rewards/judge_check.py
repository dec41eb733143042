"""How far a judge can be trusted: its scores of groups whose true rewards are known, asked for several times.

The runs are shown in another order each time. It measures three things: whether the judge ranks runs as their rewards
do, whether it favours runs by their place in the prompt, and how much its scores vary from one time to the next.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from arttrace.records.group import Group
from arttrace.records.values.equal_rewards import are_equal
from arttrace.rewards.combine import reward_from_code
from arttrace.rewards.judge_calls import Bill, Judge, score_transcripts
from arttrace.rewards.judge_errors import JudgeUnavailable
from arttrace.rewards.judge_prompt import DEFAULT_RUBRIC
from arttrace.rewards.judgements import judgement_key
from arttrace.rewards.transcript import transcript
from arttrace.system.errors import JudgeError


class Ballot(msgspec.Struct, frozen=True):
    """One answer of a judge about one group: per run, in the group's order, its true reward, the score, and its place
    among those shown, from 1 (runs of equal content share one)."""

    group: str
    rewards: tuple[float, ...]
    scores: tuple[float, ...]
    places: tuple[int, ...]


class JudgeCheck(msgspec.Struct, frozen=True):
    """What the ballots say.

    - `agreement`: of all pairs of runs in a group whose true rewards differ, the share that the judge orders alike, a
      tie counting half; 0.5 is chance. `tau`: Kendall's tau-b of score and reward, the mean over groups (rewards
      differ, scores vary; None without such a group).
    - `equal_spread`: mean over groups of equal rewards of the difference between largest and smallest mean score: how
      much advantage would be made of nothing. None without such a group.
    - `first_minus_last`: mean over ballots of the residuals (score minus the run's mean over ballots) at the first
      place, less that at the last: the judge's favour for what it reads first. None with a single repeat.
    - `repeat_std`: standard deviation of a run's scores over repeats, the mean over runs. None with a single repeat.
    - `left_out`: by reason, how many runs the judge was not shown.
    """

    groups: int
    runs: int
    ballots: int
    failed: int
    agreement: float | None
    tau: float | None
    equal_groups: int
    equal_spread: float | None
    first_minus_last: float | None
    repeat_std: float | None
    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = 0.0
    left_out: dict[str, int] = {}


def true_rewards(group: Group) -> tuple[float, ...] | None:
    """The rewards that code gave each run of a group, None unless all of them have one."""
    values = [reward_from_code(trajectory) for trajectory in group.trajectories]
    return None if None in values else tuple(value for value in values if value is not None)


def check(ballots: Sequence[Ballot], *, failed: int = 0, bill: Bill | None = None) -> JudgeCheck:
    """The figures of all ballots. Pure."""
    by_group: dict[str, list[Ballot]] = defaultdict(list)
    for ballot in ballots:
        by_group[ballot.group].append(ballot)
    means = {key: _mean_scores(each) for key, each in by_group.items()}
    differ = {key: each for key, each in by_group.items() if not are_equal(each[0].rewards)}
    equal = [key for key in by_group if key not in differ]
    taus = [tau for key, each in differ.items() if (tau := kendall_tau(means[key], each[0].rewards)) is not None]
    bill = bill or Bill()
    return JudgeCheck(
        groups=len(by_group),
        runs=sum(len(each[0].rewards) for each in by_group.values()),
        ballots=len(ballots),
        failed=failed,
        agreement=_mean(_ordered_alike(ballot) for each in differ.values() for ballot in each),
        tau=_mean(taus),
        equal_groups=len(equal),
        equal_spread=_mean(max(means[key]) - min(means[key]) for key in equal),
        first_minus_last=_first_minus_last(by_group, means),
        repeat_std=_mean(
            statistics.stdev(scores)
            for each in by_group.values()
            if len(each) > 1
            for scores in zip(*(ballot.scores for ballot in each), strict=True)
        ),
        input_tokens=bill.input_tokens,
        output_tokens=bill.output_tokens,
        cost=bill.cost,
    )


def kendall_tau(left: Sequence[float], right: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings, None where all of one are tied (Kendall 1945)."""
    agree = left_pairs = right_pairs = 0
    for i in range(len(left)):
        for j in range(i):
            a, b = _order(left[i], left[j]), _order(right[i], right[j])
            agree += a * b
            left_pairs += a != 0
            right_pairs += b != 0
    return agree / math.sqrt(left_pairs * right_pairs) if left_pairs and right_pairs else None


def _order(one: float, other: float) -> int:
    """1 where the first is more, -1 where it is less, 0 where they are equal but for rounding."""
    return 0 if are_equal((one, other)) else 1 if one > other else -1


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return math.fsum(found) / len(found) if found else None


def _mean_scores(ballots: Sequence[Ballot]) -> list[float]:
    return [statistics.fmean(scores) for scores in zip(*(ballot.scores for ballot in ballots), strict=True)]


def _ordered_alike(ballot: Ballot) -> float:
    pairs = [
        (_order(ballot.scores[i], ballot.scores[j]) * order + 1) / 2
        for i in range(len(ballot.rewards))
        for j in range(i)
        if (order := _order(ballot.rewards[i], ballot.rewards[j]))
    ]
    return math.fsum(pairs) / len(pairs)


def _first_minus_last(by_group: Mapping[str, Sequence[Ballot]], means: Mapping[str, Sequence[float]]) -> float | None:
    first: list[float] = []
    last: list[float] = []
    for key, ballots in by_group.items():
        for ballot in ballots if len(ballots) > 1 else ():
            end = max(ballot.places)
            for score, mean, place in zip(ballot.scores, means[key], ballot.places, strict=True):
                if place in (1, end) and end > 1:
                    (first if place == 1 else last).append(score - mean)
    return statistics.fmean(first) - statistics.fmean(last) if first and last else None


async def check_judge(
    groups: Sequence[Group],
    judge_model: str,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    repeats: int = 3,
    max_concurrency: int = 8,
    on_ballot: Callable[[int, int], None] | None = None,
) -> JudgeCheck:
    """Ask the judge `repeats` times about every group whose runs all have a reward from code.

    `on_ballot` is called with how many of how many answers are there. An answer that cannot be used is
    counted as failed. Raises JudgeError when no group is labelled, and JudgeUnavailable when the judge cannot be asked
    at all.
    """
    labelled = [(group, truth) for group in groups if (truth := true_rewards(group)) and len(truth) > 1]
    if not labelled:
        raise JudgeError(
            "No group of two or more runs has rewards from code, so there is nothing to check the judge against.",
            "Reward runs with arttrace.reward(), or import runs that have rewards (`arttrace import`).",
        )
    judge, bill, slots = Judge(judge_model, extra_litellm_params or {}), Bill(), asyncio.Semaphore(max_concurrency)
    done = 0

    async def ask(group: Group, truth: tuple[float, ...], repeat: int) -> Ballot | None:
        nonlocal done
        async with slots:
            seed = f"{judgement_key(group, judge_model, rubric)}:check:{repeat}"
            try:
                shown = await score_transcripts(
                    judge, [transcript(one) for one in group.trajectories], rubric, seed, bill
                )
            except JudgeUnavailable:
                raise
            except JudgeError:
                return None
            finally:
                done += 1
                if on_ballot is not None:
                    on_ballot(done, len(labelled) * repeats)
        places = tuple(int(one.trajectory_id) for one in shown)
        return Ballot(group.key, truth, tuple(one.score for one in shown), places)

    try:
        async with asyncio.TaskGroup() as tasks:
            asked = [
                tasks.create_task(ask(group, truth, repeat)) for group, truth in labelled for repeat in range(repeats)
            ]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    found = [ballot for task in asked if (ballot := task.result()) is not None]
    return check(found, failed=len(asked) - len(found), bill=bill)
