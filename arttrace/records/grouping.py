"""Grouping: another key for the groups of runs that are stored, given by a person; a view that can be taken back."""

from __future__ import annotations

import msgspec

from arttrace.records.values.integers import Int64


class Grouping(msgspec.Struct, frozen=True, tag="grouping", omit_defaults=True):
    """The groups of some runs by another criterion than their own.

    `keys` maps trajectory id to the key of its group, or None for the key it has by itself. Of several groupings that
    name a run the latest `time_ns` counts. `by` says what the keys were made of, for people.
    """

    id: str
    by: str
    keys: dict[str, str | None]
    time_ns: Int64 = 0
