"""Groups that were gathered, as what judges or trains on them takes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any

from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.gathering.members import group_list
from arttrace.system.errors import TrainingError


def gathered_groups(groups: Any, call: str) -> list[TrajectoryGroup]:
    """Several gathered groups as a list, without those that `after_each` left out.

    Args:
        groups: What was passed.
        call: The name of the function that it was passed to.

    Returns:
        The groups.

    Raises:
        ArttraceError: It is one group, no list, or a list of something else.
        TrainingError: Rollouts of a group have not run.
    """
    if isinstance(groups, Iterable) and not isinstance(groups, TrajectoryGroup):
        groups = [group for group in groups if group is not None]
    found = group_list(groups, TrajectoryGroup, call)
    if waiting := sum(group.to_gather for group in found):
        raise TrainingError(
            f"{waiting} rollouts were not gathered: they have not run",
            "Run them first: groups = await gather_trajectory_groups(groups).",
        )
    return found


async def record_rewards(groups: Sequence[TrajectoryGroup]) -> None:
    """Store the rewards that were set or changed since the groups were gathered.

    Args:
        groups: The groups.

    Raises:
        ArttraceError: A reward is not a finite number.
        StoreError: The store cannot be written.
    """

    def store_each() -> None:
        for group in groups:
            group.record_rewards()

    await asyncio.to_thread(store_each)
