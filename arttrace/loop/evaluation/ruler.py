"""RULER for groups of a loop: gathered ones, and plain lists of trajectories."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.trajectory import Trajectory
from arttrace.rewards import DEFAULT_RUBRIC
from arttrace.rewards import ruler_score_group as score
from arttrace.rewards.judge import DEFAULT_JUDGE


async def ruler_score_group(
    group: TrajectoryGroup | Sequence[Trajectory],
    judge_model: str = DEFAULT_JUDGE,
    extra_litellm_params: dict[str, Any] | None = None,
    rubric: str = DEFAULT_RUBRIC,
    *,
    model: str | None = None,
    votes: int = 1,
    swallow_exceptions: bool = False,
    debug: bool = False,
) -> TrajectoryGroup | None:
    """Have a judge model score the runs of a group against each other, as `arttrace.rewards.ruler_score_group` does.

    Args:
        group: A gathered group, or trajectories of one scenario; a group of one is scored with a warning.
        judge_model: The judge, by the name that litellm has for it.
        extra_litellm_params: Further arguments of litellm's `acompletion`.
        rubric: What the judge is asked to reward, in words.
        model: Another name of `judge_model`.
        votes: The number of times the judge is asked; a run's score is the mean.
        swallow_exceptions: Log a JudgeError and return None.
        debug: Print the explanations to stderr.

    Returns:
        The group. The judgement of captured runs is stored; other trajectories get their scores as rewards.

    Raises:
        JudgeError: The judge cannot be reached, its answer cannot be used after several attempts, or the group is
            empty.
    """
    whole = group if isinstance(group, TrajectoryGroup) else TrajectoryGroup(group)
    return await score(
        whole,
        model or judge_model,
        extra_litellm_params,
        rubric,
        votes=votes,
        swallow_exceptions=swallow_exceptions,
        debug=debug,
    )
