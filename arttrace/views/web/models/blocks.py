"""Long lists in blocks: one is in the page, the others are asked for when they come near the window."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from urllib.parse import urlencode

import msgspec


class EntryBlock(msgspec.Struct, frozen=True):
    """Rows from `first` on; `source` is where they are asked for, "" for the block that the page holds."""

    first: int
    rows: int
    source: str


def blocks(
    count: int, size: int, address: str, loaded: Collection[int], more: Mapping[str, str]
) -> tuple[EntryBlock, ...]:
    """The blocks of a list of `count` rows; those that begin at `loaded` are in the page."""
    asked = {name: value for name, value in more.items() if value}
    return tuple(
        EntryBlock(
            first,
            min(size, count - first),
            "" if first in loaded else f"{address}?{urlencode({'from': str(first), **asked})}",
        )
        for first in range(0, count, size)
    )
