"""Times as text, made the nanoseconds since 1970 that records have. Pure."""

from __future__ import annotations

import datetime
from typing import Any

from arttrace.records.values.integers import INT64


def time_ns(value: Any) -> int | None:
    """An ISO 8601 time in nanoseconds since 1970, in UTC unless it says otherwise; None for anything else."""
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
