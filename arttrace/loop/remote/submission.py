"""Groups as a server takes them: what was captured here is uploaded, what the server recorded itself is named."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from arttrace.capture.api import flush
from arttrace.loop.evaluation.gathered import gathered_groups, record_rewards
from arttrace.loop.evaluation.left_out import require_whole, why_left_out, with_left_out
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.processes.trainer_process import TrainedStep
from arttrace.loop.recorded.directories import captured_runs, record_parts, why_missing
from arttrace.loop.remote.connection import ServerConnection
from arttrace.loop.trajectory import Trajectory
from arttrace.records.record import encode_record
from arttrace.records.trajectory import Trajectory as Recorded
from arttrace.system.errors import ArttraceError, TrainingError
from arttrace.system.paths import DataDir


async def submit(
    connection: ServerConnection,
    groups: Iterable[TrajectoryGroup | Iterable[Trajectory]],
    settings: Mapping[str, Any],
) -> list[TrainedStep]:
    """Train on groups, at a server.

    Args:
        connection: The server.
        groups: Groups that were gathered here, or trajectories whose calls the server recorded.
        settings: The options of `arttrace train` by their names.

    Returns:
        A TrainedStep whose version is served; an empty list if all rewards within each group are equal. Its `left_out`
        counts the incomplete runs, which are left out with a warning.

    Raises:
        TrainingError: There is nothing to compare, a trajectory has no answer of the server, a reward is not a number,
            or the step failed.
        ServingError: The server does not answer.
    """
    ordered = gathered_groups(_grouped(groups), "submit_trajectories")
    await record_rewards(ordered)
    here = await asyncio.to_thread(captured_runs, [one for group in ordered for one in group.ready_made])
    submitted = [_submitted(group, here) for group in ordered]
    left_out = why_left_out(ordered, here)
    require_whole(left_out, [len(one["trajectories"]) for one in submitted])
    directories = {id: data for group in ordered for id, data in group.directories.items()}
    whole = {run.id for group in ordered for run in (*group.captured, *here.values()) if not run.incomplete}
    await upload_captured(connection, {id: data for id, data in directories.items() if id in whole})
    return with_left_out(await connection.train(submitted, settings), left_out)


async def upload_captured(connection: ServerConnection, directories: Mapping[str, DataDir]) -> None:
    """Upload what was captured here of runs.

    Args:
        connection: The server.
        directories: The directory of each run, by its id.

    Raises:
        StoreError: A store cannot be opened or asked.
        ServingError: The server does not answer.
    """
    if not directories:
        return
    await asyncio.to_thread(flush)
    parts = record_parts(directories)
    while (part := await asyncio.to_thread(next, parts, None)) is not None:
        await connection.upload([encode_record(one) for one in part])


def _grouped(groups: Any) -> Any:
    """The groups, each list of trajectories as one, for `group_list` to check."""
    if isinstance(groups, TrajectoryGroup) or not isinstance(groups, Iterable):
        return groups
    lists = (list, tuple, Iterator)
    return [TrajectoryGroup(one) if isinstance(one, lists) else one for one in groups]


def _submitted(group: TrajectoryGroup, here: Mapping[str, Recorded]) -> dict[str, Any]:
    """Rewards and metadata of captured runs are among the uploaded records."""
    runs = [{"id": run.id} for run in group.captured if not run.incomplete]
    ready_made = [_built(one) for one in group.ready_made if not why_missing(one, here)]
    return {"key": group.key, "trajectories": [*runs, *ready_made]}


def _built(one: Trajectory) -> dict[str, Any]:
    if not (one.captured or one.choices()):
        raise TrainingError(
            "a trajectory has no choice: none of it was sampled",
            "Return `response.trajectory` (of a stream: once it was read to its end), or append "
            "`completion.choices[0]` of the client's answers.",
        )
    if not one.id:
        raise TrainingError(
            "a trajectory has no id, so the server cannot know which of its answers belong to it",
            "Make its calls by arttrace.loop.AsyncClient and return `response.trajectory`, or set "
            'extra_body={"art": {"trajectory_id": trajectory.id}}.',
        )
    try:
        reward, metrics = one.finite_reward(), one.finite_metrics()
    except ArttraceError as error:
        raise TrainingError(error.message, error.hint) from error
    return {"id": one.id, "reward": reward, "metrics": metrics, "metadata": one.metadata}
