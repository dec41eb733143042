"""Trajectories that attempted the same thing become groups that can be compared."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

from arttrace.records.group import Group
from arttrace.records.message import canonical_json
from arttrace.records.trajectory import Trajectory

_READABLE = 60


def key_of(*, group: str | None, scenario: str | None, entry: str, arguments: Any) -> str | None:
    """The group's key from what the root span says; None when it says nothing that could be compared.

    The explicit group, else the scenario, else the entry point with its arguments in canonical JSON, in a form that
    stays readable while it is short.
    """
    if group or scenario:
        return group or scenario
    if not entry:
        return None
    document = canonical_json(arguments)
    if len(document) <= _READABLE:
        return f"{entry} {document.decode()}"
    return f"{entry} #{hashlib.blake2b(document, digest_size=8).hexdigest()}"


def group_key(trajectory: Trajectory) -> str:
    """The key of a trajectory's group; a run that says nothing of itself is a group of its own, named by its id."""
    key = key_of(
        group=trajectory.group, scenario=trajectory.scenario, entry=trajectory.entry, arguments=trajectory.arguments
    )
    return key or trajectory.id


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[Group]:
    """Groups in order of key, each with its trajectories in order of start (ties by id)."""
    members: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        members.setdefault(group_key(trajectory), []).append(trajectory)
    return [
        Group(key, tuple(sorted(found, key=lambda trajectory: (trajectory.start_ns, trajectory.id))))
        for key, found in sorted(members.items())
    ]
