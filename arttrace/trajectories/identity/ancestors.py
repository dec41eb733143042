"""Parents as a sender gave them become a forest: every walk upwards from any span, or flow of control, ends.

Where parents go round in a cycle nobody knows who is above whom. Of each cycle the least loses its parent, so that the
answer does not depend on the order in which spans came.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from arttrace.trajectories.decoding.attribute_values import text
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan

_K = TypeVar("_K", bound=Any)


def without_cycles(parents: Mapping[_K, _K | None]) -> tuple[dict[_K, _K | None], set[_K]]:
    """The parents without the cycles in them, and what lost its parent for it. A parent may be none of the keys."""
    forest = dict(parents)
    ended: set[_K] = set()
    cut: set[_K] = set()
    for start, above in parents.items():
        if above is None or above in ended:
            ended.add(start)
            continue
        path: dict[_K, None] = {}
        at: _K | None = start
        while at is not None and at in forest and at not in ended and at not in path:
            path[at] = None
            at = forest[at]
        if at is not None and at in path:
            walked = list(path)
            least = min(walked[walked.index(at) :])
            forest[least] = None
            cut.add(least)
        ended.update(path)
    return forest, cut


def tops(forest: Mapping[_K, _K | None]) -> dict[_K, _K]:
    """For every key the uppermost one above it: itself where its parent is None or no key."""
    found: dict[_K, _K] = {}
    for start in forest:
        path: list[_K] = []
        at = start
        while at not in found:
            path.append(at)
            above = forest[at]
            if above is None or above not in forest:
                found[at] = at
            else:
                at = above
        found.update(dict.fromkeys(path, found[at]))
    return found


def nearest(forest: Mapping[_K, _K | None], own: Mapping[_K, Any]) -> dict[_K, Any]:
    """For every key what it has of its own, else what the nearest one above it has, else None."""
    found: dict[_K, Any] = dict(own)
    for start in forest:
        if start in found:
            continue
        path: list[_K] = []
        at: _K | None = start
        while at is not None and at in forest and at not in found:
            path.append(at)
            at = forest[at]
        found.update(dict.fromkeys(path, found.get(at) if at is not None else None))
    return found


def inherited(
    spans: Mapping[SpanKey, UniqueSpan], parents: Mapping[SpanKey, SpanKey | None], attribute: str
) -> dict[SpanKey, str | None]:
    """A text attribute of every span or of its nearest ancestor that has it."""
    own = {key: value for key, span in spans.items() if (value := text(span.row.attributes.get(attribute)))}
    return nearest(parents, own)
