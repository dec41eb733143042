"""Group: trajectories that attempted the same scenario and are compared with each other."""

from __future__ import annotations

import msgspec

from arttrace.records.trajectory import Trajectory


class Group(msgspec.Struct, frozen=True):
    """Trajectories of one scenario, in order of start time (ties by id). `key` names the scenario."""

    key: str
    trajectories: tuple[Trajectory, ...]
