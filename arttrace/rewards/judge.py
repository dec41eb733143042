"""RULER: a judge model scores the runs of one group against each other, through litellm.

A judge need not know what a perfect run is worth: GRPO compares runs of one group only, and so does the judge. Its
scores are matched by id, and an answer with a missing, unknown or repeated id or a score outside 0..1 is refused and
asked for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar, overload

import msgspec

from arttrace.records.group import Group
from arttrace.records.message import canonical_json
from arttrace.records.reward import Judgement
from arttrace.records.values.lenient_json import well_formed
from arttrace.rewards.judge_answer import TrajectoryScore
from arttrace.rewards.judge_calls import Bill, Judge, score_transcripts
from arttrace.rewards.judge_errors import JudgeUnavailable
from arttrace.rewards.judge_prompt import DEFAULT_RUBRIC
from arttrace.rewards.judgements import judgement_key, rubric_hash
from arttrace.rewards.selection import judgeable
from arttrace.rewards.transcript import transcript, transcript_of_messages
from arttrace.system.errors import ArttraceError, JudgeError
from arttrace.wire.messages import parse_message

DEFAULT_JUDGE = "openai/o3"

_log = logging.getLogger("arttrace.rewards")


async def ruler(
    message_lists: Sequence[Sequence[Mapping[str, Any]]],
    judge_model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    tools: Sequence[Mapping[str, Any]] | None = None,
    debug: bool = False,
) -> list[TrajectoryScore]:
    """Have a judge model score conversations about one task against each other. Nothing is stored.

    Args:
        message_lists: Conversations in OpenAI's form (dicts, or the client's own message objects); the last message of
            each is its outcome.
        judge_model: The judge, by the name that litellm has for it.
        extra_litellm_params: Further arguments of litellm's `acompletion`, such as `api_base` and `api_key`.
        rubric: What the judge is asked to reward, in words.
        tools: The tool definitions that were offered; None where there were none.
        debug: Print the explanations to stderr.

    Returns:
        Scores in 0..1, one per conversation in the same order; their ids are "1", "2", ... by position. Equal
        conversations get equal scores.

    Raises:
        JudgeError: The judge cannot be reached, or its answer cannot be used after several attempts.
        TypeError: A message is neither a dict nor an object of the client.
    """
    offered = tuple(well_formed(dict(tool)) for tool in tools or ())
    histories = [tuple(parse_message(_plain(message)) for message in messages) for messages in message_lists]
    if not histories:
        raise JudgeError("there is no conversation to score", "Score two or more of them.")
    transcripts = [transcript_of_messages(history, offered) for history in histories]
    seed = hashlib.blake2b(canonical_json([msgspec.to_builtins(one) for one in transcripts])).hexdigest()
    scores = await score_transcripts(Judge(judge_model, extra_litellm_params or {}), transcripts, rubric, seed, Bill())
    numbered = [TrajectoryScore(str(number), one.explanation, one.score) for number, one in enumerate(scores, start=1)]
    if debug:
        _print_scores(numbered)
    return numbered


class GatheredGroup(Protocol):
    """A group of `arttrace.loop`, which stores its judgement itself."""

    @property
    def group(self) -> Group: ...

    def take(self, judgement: Judgement) -> None: ...


G = TypeVar("G", bound=GatheredGroup)


@overload
async def ruler_score_group(
    group: Group,
    judge_model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    votes: int = 1,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> Judgement | None: ...
@overload
async def ruler_score_group(
    group: G,
    judge_model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    votes: int = 1,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> G | None: ...
async def ruler_score_group(
    group: Group | G,
    judge_model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    votes: int = 1,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> Judgement | G | None:
    """Have a judge model score the trajectories of one group against each other.

    Runs with the same content are sent once and get equal scores. Runs that are incomplete, or have messages that
    cannot be read, are left out with a warning. A group of one is scored too, with a warning: a single score compares
    nothing, and nothing can be trained on it.

    Args:
        group: The runs to compare: a stored group, or one that `arttrace.loop` gathered.
        judge_model: The judge, by the name that litellm has for it.
        extra_litellm_params: Further arguments of litellm's `acompletion` (`api_base`, `api_key`, `temperature`, ...).
        rubric: What the judge is asked to reward, in words.
        votes: The number of times the judge is asked, with the runs in another order each time, since a judge may
            favour what it reads first. A run's score is the mean.
        swallow_exceptions: Log a JudgeError and return None.
        debug: Print the explanations to stderr.

    Returns:
        The judgement, with a score in 0..1 and an explanation per id of a judged trajectory, not stored: see
        `to_store`. For a gathered group that group, its judgement stored.

    Raises:
        JudgeError: The judge cannot be reached, its answer cannot be used after several attempts, or the group has no
            run that can be judged.
        ArttraceError: It is no group.
        ValueError: `votes` is below 1.
    """
    _at_least_1(votes=votes)
    judge = Judge(judge_model, extra_litellm_params or {})
    if isinstance(group, Group):
        return await _score_group(judge, group, rubric, votes, swallow_exceptions, debug)
    if not hasattr(group, "group"):
        raise ArttraceError(
            f"a {type(group).__name__} is no group to judge",
            "Put the trajectories of one scenario into a TrajectoryGroup; arttrace.loop.ruler_score_group takes a list "
            "of them too.",
        )
    judgement = await _score_group(judge, group.group, rubric, votes, swallow_exceptions, debug)
    if judgement is None:
        return None
    await asyncio.to_thread(group.take, judgement)
    return group


async def score_groups(
    groups: Sequence[Group],
    judge_model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    votes: int = 1,
    max_concurrency: int = 8,
    on_judged: Callable[[Group, Judgement], None] | None = None,
) -> list[Judgement | JudgeError]:
    """Have a judge model score several groups, each as `ruler_score_group` does.

    Args:
        groups: The groups to score.
        judge_model: The judge, by the name that litellm has for it.
        extra_litellm_params: Further arguments of litellm's `acompletion`.
        rubric: What the judge is asked to reward, in words.
        votes: The number of times the judge is asked about each group.
        max_concurrency: How many judge calls are under way at a time.
        on_judged: Called with a group and its judgement as soon as the judge has answered, so that it can be stored at
            once.

    Returns:
        One judgement per group, in order, or the JudgeError with which it failed.

    Raises:
        JudgeUnavailable: The judge cannot be asked at all: no further group is sent. The answers under way are paid
            for, so they are waited for and passed to `on_judged` first.
        ValueError: `votes` or `max_concurrency` is below 1.
    """
    _at_least_1(votes=votes, max_concurrency=max_concurrency)
    loaded = [partial(_itself, group) for group in groups]
    judge = Judge(judge_model, extra_litellm_params or {})
    return await score_loaded(loaded, judge, rubric, votes=votes, max_concurrency=max_concurrency, on_judged=on_judged)


def _at_least_1(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} is {count}, below 1")


def _itself(group: Group) -> Group:
    return group


async def score_loaded(
    groups: Sequence[Callable[[], Group]],
    judge: Judge,
    rubric: str,
    *,
    votes: int,
    max_concurrency: int = 8,
    on_judged: Callable[[Group, Judgement], None] | None = None,
) -> list[Judgement | JudgeError]:
    """As score_groups, each group loaded as its turn comes, so that at most `max_concurrency` are in memory. An error
    of ours in loading one ends the round as a judge that cannot be asked does."""
    slots = asyncio.Semaphore(max_concurrency)
    ending: list[ArttraceError] = []

    async def score(load: Callable[[], Group]) -> Judgement | JudgeError | None:
        async with slots:
            if ending:
                return None
            try:
                group = load()
                judgement = await _score_group(judge, group, rubric, votes)
            except JudgeError as error:
                if isinstance(error, JudgeUnavailable):
                    ending.append(error)
                return error
            except ArttraceError as error:
                ending.append(error)
                return None
        assert judgement is not None
        if on_judged is not None:
            on_judged(group, judgement)
        return judgement

    try:
        async with asyncio.TaskGroup() as tasks:
            scored = [tasks.create_task(score(load)) for load in groups]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    if ending:
        raise ending[0]
    return [result for task in scored if (result := task.result()) is not None]


async def _score_group(
    judge: Judge, group: Group, rubric: str, votes: int, swallow_exceptions: bool = False, debug: bool = False
) -> Judgement | None:
    bill = Bill()
    try:
        group = _judged(group)
        if len(group.trajectories) == 1:
            _log.warning("group %r holds one trajectory: its score compares nothing and is not trained on", group.key)
        key = judgement_key(group, judge.model, rubric, votes)
        transcripts = [transcript(one) for one in group.trajectories]
        ballots = [
            await score_transcripts(judge, transcripts, rubric, f"{key}:{vote}" if vote else key, bill)
            for vote in range(votes)
        ]
        scores = [_mean(each) for each in zip(*ballots, strict=True)]
    except JudgeError as error:
        error.input_tokens, error.output_tokens, error.cost = bill.input_tokens, bill.output_tokens, bill.cost
        if not swallow_exceptions:
            raise
        _log.warning("group %r was not scored: %s", group.key, error)
        return None
    scored = [
        TrajectoryScore(trajectory.id, one.explanation, one.score)
        for trajectory, one in zip(group.trajectories, scores, strict=True)
    ]
    if debug:
        _print_scores(scored)
    return Judgement(
        id=uuid.uuid4().hex,
        key=key,
        group=group.key,
        judge=judge.model,
        rubric_hash=rubric_hash(rubric),
        scores={one.trajectory_id: one.score for one in scored},
        explanations={one.trajectory_id: one.explanation for one in scored},
        input_tokens=bill.input_tokens,
        output_tokens=bill.output_tokens,
        cost=bill.cost,
        time_ns=time.time_ns(),
    )


def _judged(group: Group) -> Group:
    """The runs of a group that the judge is shown. Raises JudgeError where there is none."""
    if not group.trajectories:
        raise JudgeError(f"group {group.key!r} has no trajectory", "Score groups of two or more runs.")
    judged, left_out = judgeable(group)
    reasons = ", ".join(f"{count} x {reason}" for reason, count in left_out.items())
    if not judged.trajectories:
        raise JudgeError(f"group {group.key!r} has no run that can be judged: {reasons}", "`arttrace show` says more.")
    if left_out:
        _log.warning(
            "group %r: %d of %d runs are not judged: %s",
            *(group.key, left_out.total(), len(group.trajectories), reasons),
        )
    return judged


def _mean(votes: Sequence[TrajectoryScore]) -> TrajectoryScore:
    """The mean of one run's scores, with the explanation of the vote that is nearest to it."""
    mean = math.fsum(vote.score for vote in votes) / len(votes)
    nearest = min(votes, key=lambda vote: abs(vote.score - mean))
    return TrajectoryScore(nearest.trajectory_id, nearest.explanation, mean)


def _print_scores(scores: Sequence[TrajectoryScore]) -> None:
    for one in scores:
        print(f"{one.trajectory_id}  {one.score:.3f}  {one.explanation}", file=sys.stderr)


def _plain(message: Any) -> dict[str, Any]:
    """A message as text that UTF-8 can hold: a model that is cut within an emoji answers half of it."""
    if not isinstance(message, Mapping) and not hasattr(message, "model_dump"):
        raise TypeError(f"a message is a dict or an object of the client, not {type(message).__name__}")
    plain: dict[str, Any] = well_formed(dict(message) if isinstance(message, Mapping) else message.model_dump())
    return plain
