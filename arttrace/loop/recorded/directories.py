"""Where runs were recorded: in the directory into which capture wrote when each began. A backend that is made later
changes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from arttrace.capture.api import flush
from arttrace.loop.trajectory import Trajectory as BuiltTrajectory
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import AnyStore, open_store
from arttrace.store.bounded_parts import batched
from arttrace.store.sql_text import listed
from arttrace.system.paths import DataDir

_RUNS_AT_ONCE = 32
_NO_REWARD = """'%"counts":false%'"""


def by_directory(directories: Mapping[str, DataDir]) -> dict[DataDir, list[str]]:
    """The ids in each directory.

    Args:
        directories: The directory of each run, by its id.
    """
    found: dict[DataDir, list[str]] = defaultdict(list)
    for id, data in directories.items():
        found[data].append(id)
    return dict(found)


def directories_of(given: Iterable[BuiltTrajectory]) -> dict[str, DataDir]:
    """The directories of trajectories that were put into groups ready-made, by their runs' ids, as far as they were
    captured here.

    Args:
        given: The trajectories.
    """
    return {one.id: one.recorded_in for one in given if one.recorded_in is not None}


def captured_runs(given: Iterable[BuiltTrajectory]) -> dict[str, Trajectory]:
    """The runs of trajectories that were put into groups ready-made, by id, as far as they were captured here: those of
    an earlier gather that are grouped anew, and answers of `AsyncClient` within a run.

    Args:
        given: The trajectories.

    Raises:
        StoreError: A store cannot be opened or asked.
    """
    directories = directories_of(given)
    if not directories:
        return {}
    flush()
    found: dict[str, Trajectory] = {}
    for data, ids in by_directory(directories).items():
        with open_store(data, create=True) as store:
            found |= {run.id: run for run in store.trajectories(ids=ids)}
    return found


def why_missing(one: BuiltTrajectory, here: Mapping[str, Trajectory]) -> str:
    """Why the run of a ready-made trajectory cannot be trained on from here; empty where it can, or was not captured.

    Args:
        one: The trajectory.
        here: What `captured_runs` found.
    """
    if not one.captured:
        return ""
    return here[one.id].incomplete if one.id in here else "its calls were not kept by the process that made them"


def record_parts(directories: Mapping[str, DataDir]) -> Iterator[list[SpanRow | Reward]]:
    """All that is stored of runs, their spans and rewards, those too that were taken back, some runs at a time: each
    call has its whole history here.

    Args:
        directories: The directory of each run, by its id.

    Raises:
        StoreError: The store cannot be opened or asked.
    """
    for data, ids in by_directory(directories).items():
        for part in batched(ids, _RUNS_AT_ONCE):
            with open_store(data, create=True) as store:
                runs = store.trajectories(ids=part)
                found: list[SpanRow | Reward] = []
                for run in runs:
                    found += (*store.spans(run.id), *run.rewards)
                found += _taken_back(store, part)
            yield found


def _taken_back(store: AnyStore, ids: Iterable[str]) -> list[Reward]:
    """Of the rewards of runs those that were taken back, and notes: where a copy has the reward, it counts no more."""
    query = f"SELECT document FROM reward_records WHERE trajectory_id IN ({listed(ids)}) AND document LIKE {_NO_REWARD}"  # noqa: S608
    return [msgspec.json.decode(document, type=Reward) for (document,) in store.sql(query)[1]]


def copy_runs(directories: Mapping[str, DataDir], to: DataDir) -> None:
    """Have runs that were recorded elsewhere in a directory too; what is there already stays as it is.

    Args:
        directories: The directory of each run, by its id.
        to: The directory.

    Raises:
        StoreError: A store cannot be opened or asked.
    """
    elsewhere = {id: data for id, data in directories.items() if data != to}
    if not elsewhere:
        return
    flush()
    for records in record_parts(elsewhere):
        with open_store(to, create=True) as store:
            store.append(records)
