"""Much, a part at a time: in memory is one part, and its size is chosen here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

_LEAST_SPANS, _MOST_SPANS, _LOOKS = 500, 5_000, 100

T = TypeVar("T")


def spans_at_once(stored: int) -> int:
    """About how many spans to read at once of a store that has so many. They are in memory, so it has a bound; and for
    each part the tables are looked through, which takes the longer the more is stored."""
    return min(max(stored // _LOOKS, _LEAST_SPANS), _MOST_SPANS)


def batched(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of this length; the last may be shorter."""
    rest = iter(items)
    while part := list(islice(rest, size)):
        yield part


def sized_parts(items: Iterable[tuple[T, int]], size: int) -> Iterator[list[T]]:
    """The items, which come each with its size, in parts of about this size: the last of a part reaches it."""
    part: list[T] = []
    counted = 0
    for item, one in items:
        part.append(item)
        counted += one
        if counted >= size:
            yield part
            part, counted = [], 0
    if part:
        yield part
