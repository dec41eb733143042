"""The share of runs that is stored: a number from 0 to 1, or a rule of the user's over a run at its beginning. Pure.

A number decides by the run's id alone, so that all processes which know the id decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any


@dataclass(frozen=True, slots=True)
class BeginningRun:
    """What a rule knows of a run: all that was said of it by its beginning."""

    id: str
    name: str
    tags: tuple[str, ...]
    metadata: Mapping[str, Any]


Sample = float | Callable[[BeginningRun], bool | float]


def as_rate(value: Any) -> float:
    """A rate from 0 to 1, or a bool. Raises ValueError for anything else."""
    rate = float(value)
    if math.isnan(rate) or not 0 <= rate <= 1:
        raise ValueError(f"sample={value!r} is not a number from 0 to 1")
    return rate


def is_sampled(trajectory_id: str, rate: float) -> bool:
    """Whether the run of this id is one of the share `rate` (0 to 1) that is stored; the same in every process."""
    digest = sha256(trajectory_id.encode(errors="backslashreplace")).digest()
    return int.from_bytes(digest[:6], "big") < rate * (1 << 48)
