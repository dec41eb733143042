"""What cannot be read or written for its depth: the errors of a parser, and how deep a value is."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNREADABLE = (ValueError, RecursionError)
"""What reading a JSON text may raise: it is none (msgspec's errors are ValueErrors), or deeper than a parser goes."""


def are_shallow(values: Iterable[Any], levels: int) -> bool:
    """Whether none of the values has more than so many levels; one that holds no other has one."""
    level = list(values)
    for _ in range(levels):
        level = [
            item
            for holder in level
            if isinstance(holder, (dict, list))
            for item in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not level:
            return True
    return False
