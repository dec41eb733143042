"""The numbers that a model logs: means over runs, and a program's own."""

from __future__ import annotations

import asyncio
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from arttrace.loop.evaluation.gathered import record_rewards
from arttrace.loop.evaluation.held_out import TRAINED, hold_out
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.trajectory import Trajectory, finite, record_id
from arttrace.records.trajectory import Trajectory as Recorded
from arttrace.rewards import trajectory_reward
from arttrace.system.errors import ArttraceError

_REMEDY = "Give it a number, or leave it out."
Run = TrajectoryGroup | Trajectory | Recorded


async def numbers_of(groups: Iterable[Run] | None, metrics: Mapping[str, float] | None, split: str) -> dict[str, float]:
    """What `log` of a model logs: the means of runs, whose rewards are stored, and further numbers. Runs of another set
    than "train" are held out from then on.

    Args:
        groups: Gathered groups, trajectories that rollouts returned, or captured runs.
        metrics: Further numbers by name.
        split: The prefix of each name.

    Returns:
        The numbers by name.

    Raises:
        ArttraceError: There is nothing to log, or a number is not finite.
        StoreError: The store cannot be written.
    """
    further = _named(metrics or {}, split)
    if groups is None and metrics is not None:
        return further
    members = _runs(groups)
    await record_rewards([one for one in members if isinstance(one, TrajectoryGroup)])
    means = mean_numbers(members, split)
    if split != TRAINED:
        await asyncio.to_thread(hold_out, members)
    return {**means, **further}


def _runs(groups: Any) -> list[Run]:
    """What is to be logged as a list. Raises ArttraceError where it is something else than runs."""
    remedy = "Pass gathered groups, trajectories or captured runs, in a list."
    if not isinstance(groups, Iterable) or isinstance(groups, Mapping):
        raise ArttraceError(f"a {type(groups).__name__} is no list of runs to log", remedy)
    members = list(groups)
    for one in members:
        if not isinstance(one, Run):
            raise ArttraceError(f"a {type(one).__name__} is no run to log", remedy)
    return members


def _named(metrics: Mapping[str, Any], split: str) -> dict[str, float]:
    named = {name if "/" in name else f"{split}/{name}": number for name, number in metrics.items()}
    return {name: finite(number, f"the metric {name!r}", _REMEDY) for name, number in named.items()}


def mean_numbers(members: Iterable[Run], split: str) -> dict[str, float]:
    """The means of rewards and metrics over runs, of groups' metrics over groups, and how many runs there are.

    Args:
        members: Gathered groups, trajectories that rollouts returned, or captured runs.
        split: The prefix of each name.

    Returns:
        The means by name.

    Raises:
        ArttraceError: There are no runs, or a number is not finite.
    """
    runs = 0
    numbers: dict[str, list[float]] = {}
    for one in members:
        for name, number in one.metrics.items() if isinstance(one, TrajectoryGroup) else ():
            numbers.setdefault(f"group_{name}", []).append(finite(number, f"the metric {name!r} of a group", _REMEDY))
        for said in _said(one):
            runs += 1
            for name, number in said.items():
                if not math.isfinite(number):
                    raise ArttraceError(f"the {name} of a run is {number}, not a finite number")
                numbers.setdefault(name, []).append(float(number))
    if not runs:
        raise ArttraceError("there is no run to log", "Gather rollouts, and pass the groups.")
    return {f"{split}/runs": float(runs), **{f"{split}/{name}": statistics.fmean(of) for name, of in numbers.items()}}


def _said(one: Run) -> list[dict[str, float]]:
    """The reward and the metrics of each run."""
    if isinstance(one, Trajectory):
        return [one.finite_numbers()]
    if isinstance(one, Recorded):
        return [_of_captured(one)]
    built = {record_id(run): run.finite_numbers() for run in one.built}
    captured = {run.id: _of_captured(run) for run in one.captured}
    return [{**built.get(id, {}), **captured.get(id, {})} for id in {**built, **captured}]


def _of_captured(run: Recorded) -> dict[str, float]:
    reward = trajectory_reward(run)
    return {} if reward is None else {"reward": reward}
