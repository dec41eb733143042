"""Incomplete runs: no step compares them; a warning says how many there are and why."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from arttrace.loop.processes.trainer_process import TrainedStep
from arttrace.records.values.units import quantity
from arttrace.system.errors import TrainingError

_log = logging.getLogger("arttrace.loop")


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
            "End a run after all that it started: await its tasks, and submit it when it is over.",
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
