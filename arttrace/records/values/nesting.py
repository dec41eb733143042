"""Values that are too deep to be read or written: a parser's errors, and the depth of a value."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

UNREADABLE = (ValueError, RecursionError)
"""What reading a JSON text may raise: it is not JSON (msgspec's errors are ValueErrors), or too deep for the parser."""


def are_shallow(values: Iterable[Any], levels: int) -> bool:
    """Whether no value has more than this many levels; a value without others inside has one level."""
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
