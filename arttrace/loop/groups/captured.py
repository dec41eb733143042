"""Runs that are captured as they are awaited: `art.trajectory`, `art.trajectory_group` and what is beside them."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Coroutine, Iterable, Mapping
from typing import Any

from arttrace.capture.context.generators import Unawaited, named_as
from arttrace.loop.blocks import innermost
from arttrace.loop.gathering.gather import gather_trajectory_groups
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.trajectory import Trajectory
from arttrace.system.errors import ArttraceError


def trajectory(coroutine: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Trajectory]:
    """What a call of an agent's coroutine function makes, captured: `await art.trajectory(agent(question))`.

    Args:
        coroutine: The call, not started yet.

    Returns:
        A coroutine that returns the trajectory, whose `result` is what the agent returned, and raises what it does.

    Raises:
        ArttraceError: It is no coroutine; a task has begun already.
    """
    if not inspect.iscoroutine(coroutine):
        raise ArttraceError(
            f"a {type(coroutine).__name__} is no call of a coroutine function",
            "Pass one that has not begun, and no task of it: art.trajectory(agent(question)).",
        )
    found: Coroutine[Any, Any, Trajectory] = named_as(coroutine, _captured(Unawaited(coroutine), coroutine.__name__))
    return found


async def _captured(unawaited: Unawaited, name: str) -> Trajectory:
    coroutine, found = unawaited.begin(), Trajectory()
    found.agent_name = name
    with found:
        found.result = await coroutine
    return found


async def trajectory_group(
    trajectories: Iterable[Awaitable[Any] | Trajectory | Exception],
    *,
    exceptions: Iterable[Exception] = (),
    return_exceptions: bool = False,
    metadata: Mapping[str, Any] | None = None,
    metrics: Mapping[str, float | int | bool] | None = None,
    logs: Iterable[str] = (),
    key: str | None = None,
) -> TrajectoryGroup:
    """A group of rollouts that run at the same time, and of trajectories that exist already.

    Args:
        trajectories: Calls of coroutine functions, not started yet, such as `art.trajectory(agent(question))`;
            trajectories; exceptions in the place of those that failed.
        exceptions: Further exceptions.
        return_exceptions: Keep what rollouts raise in the group's `exceptions`. By default the first one ends the
            others and is raised.
        metadata: JSON values by name, which each of its runs has among its own.
        metrics: Numbers of the group by name.
        logs: Lines of text of the program's own.
        key: The group's name; by default a new one.

    Raises:
        ArttraceError: Nothing was captured.
        StoreError: The store cannot be opened or asked.
    """
    group = TrajectoryGroup(trajectories, exceptions=exceptions, metadata=metadata, metrics=metrics, logs=logs, key=key)
    if not group.to_gather:
        return group
    try:
        [gathered] = await gather_trajectory_groups([group], max_exceptions=None if return_exceptions else 0)
    except ArttraceError as error:
        if return_exceptions or not isinstance(error.__cause__, Exception):
            raise
        raise error.__cause__ from None
    return gathered


def current_trajectory(*, require: bool = False) -> Trajectory | None:
    """The trajectory whose block this is in, or None.

    Args:
        require: Raise where there is none.

    Raises:
        ArttraceError: There is none, and one is required.
    """
    found: Trajectory | None = innermost()
    if found is None and require:
        raise ArttraceError("no trajectory is open here", "Enter one: with art.Trajectory() as trajectory.")
    return found
