"""Incomplete runs: no step compares them; a warning says how many there are and why."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from msgspec.structs import replace

from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.processes.trainer_process import TrainedStep
from arttrace.loop.recorded.directories import why_missing
from arttrace.records.group import Group
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.system.errors import TrainingError

_log = logging.getLogger("arttrace.loop")


def whole_runs(group: TrajectoryGroup, here: Mapping[str, Trajectory]) -> Group:
    """The runs of a group that are complete.

    Args:
        group: A gathered group.
        here: What was captured of the ready-made trajectories, by id.

    Returns:
        The group to compare.
    """
    runs = (*group.captured, *(here[one.id] for one in group.ready_made if one.id in here))
    return Group(group.key, tuple(run for run in runs if not run.incomplete))


def why_left_out(groups: Iterable[TrajectoryGroup], here: Mapping[str, Trajectory]) -> Counter[str]:
    """The number of runs of groups that are incomplete, by reason.

    Args:
        groups: Gathered groups.
        here: What was captured of the ready-made trajectories, by id.

    Returns:
        The counts.
    """
    found: Counter[str] = Counter()
    for group in groups:
        missing = (why for one in group.ready_made if (why := why_missing(one, here)))
        found.update(f"incomplete: {why}" for why in (*group.incomplete.values(), *missing))
    return found


def require_whole(left_out: Mapping[str, int], sizes: Sequence[int]) -> None:
    """Warn about runs that a step leaves out.

    Args:
        left_out: The number of incomplete runs, by reason.
        sizes: The number of complete runs in each group.

    Raises:
        TrainingError: No run is complete.
    """
    if not left_out:
        return
    count = sum(left_out.values())
    reasons = ", ".join(f"{number} {why}" for why, number in left_out.items())
    said = f"{count} of {quantity(count + sum(sizes), 'run')} not trained on: {reasons}"
    if not any(sizes):
        raise TrainingError(
            f"no run is complete: {said}",
            "End a run after all that it started: await its tasks, close a stream that is not read to its end "
            "(`async with stream`), and submit it when it is over.",
        )
    _log.warning("%s", said)


def with_left_out(steps: Sequence[TrainedStep], left_out: Mapping[str, int]) -> list[TrainedStep]:
    """Add to the first step what was left out before it was ordered.

    Args:
        steps: The steps that were made.
        left_out: The number of runs, by reason.

    Returns:
        The steps.
    """
    return [replace(one, left_out={**one.left_out, **left_out}) if at == 0 else one for at, one in enumerate(steps)]
