"""Group: trajectories that attempted the same scenario and are compared. Grouping: other keys for stored groups."""

from __future__ import annotations

import re
import secrets

import msgspec

from arttrace.records.trajectory import Trajectory
from arttrace.records.values.integers import Int64


class Group(msgspec.Struct, frozen=True):
    """Trajectories of one scenario, in order of start time (ties by id). `key` names the scenario."""

    key: str
    trajectories: tuple[Trajectory, ...]


class Grouping(msgspec.Struct, frozen=True, tag="grouping", omit_defaults=True):
    """Groups of some runs by another criterion than their own, made by a person; it can be undone.

    `keys` maps a trajectory id to the key of its group, or to None for its own key. If several groupings name a run,
    that with the latest `time_ns` counts. `by` describes for people what the keys were made of.
    """

    id: str
    by: str
    keys: dict[str, str | None]
    time_ns: Int64 = 0


_NEW_KEY = re.compile(r"group-[0-9a-f]{16}")


def new_key() -> str:
    """A key for a group that nobody named."""
    return f"group-{secrets.token_hex(8)}"


def is_new_key(key: str) -> bool:
    """Whether it is one, and says nothing of what the group's runs attempted.

    Args:
        key: The key of a group.
    """
    return _NEW_KEY.fullmatch(key) is not None
