"""Runs that a program logged as measuring a model: from then on nothing is trained on them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from arttrace.capture.api import flush
from arttrace.capture.export.lifecycle import recorder
from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.recorded.directories import by_directory, directories_of
from arttrace.loop.trajectory import Trajectory
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory as Recorded
from arttrace.rewards.selection import is_held_out
from arttrace.store import open_store
from arttrace.system.paths import DataDir

TRAINED = "train"
"""The set whose runs are no measurement."""
_NAME = "held out"


def hold_out(members: Iterable[TrajectoryGroup | Trajectory | Recorded]) -> None:
    """Tag the runs that were recorded here as held out, as `update(tags=["held-out"])` within them does.

    Args:
        members: Gathered groups, trajectories that rollouts returned, or captured runs.

    Raises:
        StoreError: The store cannot be opened or written.
    """
    given = list(members)
    groups = [one for one in given if isinstance(one, TrajectoryGroup)]
    where: dict[str, DataDir] = directories_of(one for one in given if isinstance(one, Trajectory))
    where |= {one.id: recorder().settings.data for one in given if isinstance(one, Recorded)}
    for group in groups:
        where |= group.directories
    if not where:
        return
    flush()
    for data, ids in by_directory(where).items():
        with open_store(data, create=True) as store:
            runs = store.trajectories(ids=ids)
            store.append([_mark(one) for one in runs if one.calls and not is_held_out(one)])
    for group in groups:
        group.read_again()


def _mark(run: Recorded) -> SpanRow:
    """A span that is there for nothing else, as capture/context/remote_update.py has them, at the end of the run: one
    run has one."""
    return SpanRow(
        trace_id=run.calls[0].call.trace_id,
        span_id=hashlib.blake2b(f"{_NAME}/{run.id}".encode(), digest_size=8).hexdigest(),
        parent_span_id=run.agents[0].id,
        name=_NAME,
        start_ns=run.end_ns,
        end_ns=run.end_ns,
        attributes={
            semconv.TRAJECTORY_ID: run.id,
            semconv.TRAJECTORY_SPAN_COUNT: 0,
            semconv.TAGS: [semconv.HELD_OUT_TAG],
        },
    )
