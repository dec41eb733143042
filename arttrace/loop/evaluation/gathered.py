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


def require_trainable(policy: str, groups: Sequence[TrajectoryGroup]) -> None:
    """Refuse groups of which a step could learn nothing.

    Args:
        policy: The policy's name.
        groups: The groups.

    Raises:
        TrainingError: No group has two runs, or none was answered by the policy.
    """
    if not any(len(group.captured) + len(group.ready_made) > 1 for group in groups):
        raise TrainingError(
            "no group has two runs: the reward of one run compares nothing",
            "Gather several rollouts of each scenario: TrajectoryGroup(rollout(model, s) for _ in range(8)).",
        )
    if any(group.ready_made for group in groups):
        return  # the server that recorded them knows
    calls = [call.call for group in groups for run in group.captured for call in run.calls]
    answered = {str(call.policy_version).partition("@")[0] for call in calls if call.policy_version}
    if policy not in answered:
        asked = ", ".join(sorted({call.request_model or "?" for call in calls})) or "no model at all"
        raise TrainingError(
            f"none of these runs was answered by {policy}: they asked {asked}",
            "Make the calls by model.openai_client(), with model=model.inference_name; those of httpx and its "
            "like are captured with ARTTRACE_CAPTURE_HTTP=1.",
        )
