"""Times as text and numbers, made the nanoseconds since 1970 that records have. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from arttrace.records.values.integers import INT64

_UNITS_NS = (1_000_000_000, 1_000_000, 1_000, 1)
_LATEST_NS = (1 << 33) * 1_000_000_000
"""The year 2242. What is later in one unit is in the next one."""


def time_ns(value: Any) -> int | None:
    """An ISO 8601 time in nanoseconds since 1970, in UTC unless it says otherwise, or a number since then of seconds,
    milliseconds, microseconds or nanoseconds, as its size shows; None for anything else."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return next((int(value * unit) for unit in _UNITS_NS if 0 < value * unit < _LATEST_NS), None)
    if not isinstance(value, str):
        return None
    try:
        moment = datetime.datetime.fromisoformat(value.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    whole = int(moment.replace(microsecond=0).timestamp())
    found = whole * 1_000_000_000 + moment.microsecond * 1000
    return found if found in INT64 else None


def ended_ns(begin: int, end: int | None, *, has_answer: bool) -> int:
    """When that ended which began at `begin`. Without an `end` it is in progress, and ends at 0 as a record has
    it, unless it has its answer by now."""
    return end or (begin if has_answer else 0)
