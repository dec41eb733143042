"""Members of a group: rollouts, each of which is one run, and trajectories that exist already."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from arttrace.capture.decorators import trajectory
from arttrace.loop.trajectory import Trajectory as BuiltTrajectory
from arttrace.system.errors import ArttraceError

G = TypeVar("G")


def group_list(groups: Any, kind: type[G], call: str) -> list[G]:
    """Several groups as a list.

    Args:
        groups: What was passed.
        kind: The class of a group.
        call: The name of the function that it was passed to.

    Returns:
        The groups.

    Raises:
        ArttraceError: It is one group, no list, or a list of something else.
    """
    require_several(groups, kind, call)
    if not isinstance(groups, Iterable):
        raise ArttraceError(
            f"a {type(groups).__name__} is no list of groups",
            "Pass what `await gather_trajectory_groups(...)` returned.",
        )
    found = list(groups)
    for one in found:
        if not isinstance(one, kind):
            raise ArttraceError(
                f"a {type(one).__name__} is no {kind.__name__}",
                f"Put the rollouts or trajectories of each scenario into a {kind.__name__}, or gather one group's by "
                "gather_trajectories.",
            )
    return found


def require_several(groups: Any, kind: type[Any], call: str) -> None:
    """Raise ArttraceError for one group, a `kind`, that `call` was given in the place of several."""
    if isinstance(groups, kind):
        raise ArttraceError("this is one group, not several", f"Pass a list: {call}([group]).")


def require_member(member: Any) -> None:
    """Raise ArttraceError for what cannot be a member of a group."""
    put = "Put calls of the rollout into the group: TrajectoryGroup(rollout(model, s) for _ in range(8))."
    if isinstance(member, asyncio.Future):
        raise ArttraceError("a task is no member of a group: its run has begun already, outside of the group", put)
    if not (inspect.isawaitable(member) or isinstance(member, BuiltTrajectory | Exception)):
        raise ArttraceError(
            f"{type(member).__name__} is no member of a group",
            f"{put} A rollout that is no coroutine function runs in a thread: asyncio.to_thread(rollout, model, s).",
        )


def require_own(result: Any, id: str) -> None:
    """Raise ArttraceError where a rollout returns what another run returned before, or trajectories of its own run in
    a tuple or list: a run has one reward, and these would be given none or the last one's."""
    if isinstance(result, BuiltTrajectory):
        if result.recorded_in is not None and result.id != id:
            raise ArttraceError(
                "the rollout returned the trajectory of another run", "Make a Trajectory in each call of the rollout."
            )
    elif isinstance(result, tuple | list):
        own = [one for one in result if isinstance(one, BuiltTrajectory) and one.id in ("", id)]
        if len(own) > 1:
            raise ArttraceError(
                f"the rollout returned {len(own)} trajectories of its one run, which has one reward",
                "Play the game outside of a gather, each player by art.trajectory(player(...)), and put what these "
                "return into groups; or return one player's, and call the others within art.no_capture().",
            )
        if own and not own[0].id:
            raise ArttraceError(
                f"the rollout returned its trajectory in a {type(result).__name__}, where its reward is not seen",
                "Return the trajectory itself; what else there is to say of the run has its metadata.",
            )


def close_rollout(rollout: Awaitable[Any]) -> None:
    """Drop a rollout that did not begin."""
    if inspect.iscoroutine(rollout):
        rollout.close()


async def opened(rollout: Awaitable[Any]) -> Any:
    """The run of a rollout that opens none by itself."""
    with trajectory(name=getattr(rollout, "__name__", "rollout")) as run:
        result = await rollout
        require_own(result, run.id)
        if isinstance(result, BuiltTrajectory):
            result.finite_numbers()  # before they are kept
            said, metadata = result.__arttrace_account__()
            run.update(metadata=metadata)
            run.set_result(said)
        else:
            run.set_result(result)
        return result
