"""Trajectories that attempted the same thing become groups that can be compared."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

from arttrace.records.group import Group
from arttrace.records.message import canonical_json
from arttrace.records.trajectory import Trajectory

_READABLE = 60
_REDACTED = re.compile(r"\[redacted, \d+ characters\]")
_ADDRESS = re.compile(r"(<[^<>]*) at 0x[0-9a-fA-F]+>")


def key_of(*, group: str | None, scenario: str | None, entry: str, entry_name: str = "", arguments: Any) -> str | None:
    """The group's key from what the root span says; None when it says nothing that could be compared.

    The explicit group, else the scenario, else the entry point with its arguments in canonical JSON, in a form that
    stays readable while it is short. The entry point's name counts where it was recorded: it is the same however its
    program was started. An argument that was recorded as Python shows an object counts by its type, not by where it lay
    in memory.
    Runs of a function whose arguments were not kept cannot be compared by them: they have no key.
    """
    if group or scenario:
        return group or scenario
    if (arguments is None and ":" in entry_name) or _is_redacted(arguments):
        return None
    entry = entry_name or entry
    if not entry:
        return None
    document = canonical_json(_without_addresses(arguments))
    if len(document) <= _READABLE:
        return f"{entry} {document.decode()}"
    return f"{entry} #{hashlib.blake2b(document, digest_size=8).hexdigest()}"


def _is_redacted(value: Any) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    return any(map(_is_redacted, value)) if isinstance(value, list) else _REDACTED.fullmatch(str(value)) is not None


def _without_addresses(value: Any) -> Any:
    if isinstance(value, str):
        return _ADDRESS.sub(r"\1>", value) if value.startswith("<") else value
    if isinstance(value, list):
        return [_without_addresses(item) for item in value]
    if isinstance(value, dict):
        return {name: _without_addresses(item) for name, item in value.items()}
    return value


def group_key(trajectory: Trajectory) -> str:
    """The key of a trajectory's group; a run that says nothing of itself is a group of its own, named by its id."""
    key = key_of(
        group=trajectory.group,
        scenario=trajectory.scenario,
        entry=trajectory.entry,
        entry_name=trajectory.entry_name,
        arguments=trajectory.arguments,
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
