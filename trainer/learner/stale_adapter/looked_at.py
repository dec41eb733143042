"""At which tokens of a step the versions are compared: some of as many runs as a share of the step's tokens has room
for. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace

from trainer.learner.samples import TokenRow, shared_length

LEAST_TARGETS = 32
"""With fewer, chance decides."""
_SHARE, _LEAST_TOKENS, _LEAST_ROUNDED = 48, 512, 4096
"""One token in so many is looked at, and no fewer than so many, in bfloat16 than so many: more would slow the step
down."""
_DEAR_SHARE = 16
"""Where that has too few targets, one in so many of the tokens of all steps since."""
_CUTS = (512, 256, 128, 64, 32)
"""Where not all of a row can be looked at, so many of its targets: better some of each run than all of some."""


class Looker:
    """Chooses the rows of each step, and remembers what it may spend. `shares_beginnings` says whether what several
    rows have in common goes through the model once."""

    def __init__(self, *, rounded: bool, shares_beginnings: bool) -> None:
        self._least = _LEAST_ROUNDED if rounded else _LEAST_TOKENS
        self._shares_beginnings = shares_beginnings
        self._saved = math.inf
        """Tokens for a dear look: the first is free."""

    def choose(self, rows: Sequence[TokenRow], current_version: str) -> list[TokenRow]:
        """Some of the rows that the current version sampled, cut where one in `_SHARE` of the step's tokens asks for
        it; none where there are too few targets, or they are too dear in this step.

        A token that several rows have behind the same beginning is looked at once: an engine is off there by the same
        in all of them, which is one observation.
        """
        own = _at_new_places([row for row in rows if current_version in row.versions], current_version)
        if sum(map(_targets, own)) < LEAST_TARGETS:
            return []
        whole = self._tokens(rows)
        budget = max(self._least, whole // _SHARE)
        if self._tokens(own) <= budget:
            return own
        for most in _CUTS:
            cut = sorted((_cut(row, most) for row in own), key=_by_length)
            if self._tokens(cut) <= budget:
                return cut
        count = bisect_right(range(1, len(cut) + 1), budget, key=lambda count: self._tokens(cut[:count]))
        if sum(map(_targets, cut[:count])) >= LEAST_TARGETS:
            return cut[:count]
        return self._dear_look(cut, whole)

    def _dear_look(self, cut: Sequence[TokenRow], whole: int) -> list[TokenRow]:
        """As few rows as have enough targets, if the steps since the last such look have saved enough for it."""
        self._saved += whole // _DEAR_SHARE
        targets, count = 0, 0
        while targets < LEAST_TARGETS:
            targets += _targets(cut[count])
            count += 1
        if (tokens := self._tokens(cut[:count])) > self._saved:
            return []
        self._saved = 0 if math.isinf(self._saved) else self._saved - tokens
        return list(cut[:count])

    def _tokens(self, rows: Sequence[TokenRow]) -> int:
        """How many go through the model."""
        ordered = sorted(row.token_ids for row in rows)
        shared = sum(map(shared_length, ordered, ordered[1:])) if self._shares_beginnings else 0
        return sum(map(len, ordered)) - shared


def _at_new_places(rows: Sequence[TokenRow], current_version: str) -> list[TokenRow]:
    """The rows, the shortest first, each without the current version's tokens that one before it has at the same
    place, and without those of other versions. A place is a node of the rows' prefix tree."""
    nodes: dict[tuple[int, int], int] = {}  # by parent and token
    seen: set[int] = set()
    found = []
    for row in sorted(rows, key=_by_length):
        at = 0
        versions: list[str | None] = []
        for token, version in zip(row.token_ids, row.versions, strict=True):
            at = nodes.setdefault((at, token), len(nodes) + 1)
            is_new = version == current_version and at not in seen
            if is_new:
                seen.add(at)
            versions.append(version if is_new else None)
        if any(versions):
            found.append(replace(row, versions=tuple(versions)))
    return found


def _cut(row: TokenRow, most: int) -> TokenRow:
    """The row up to so many of the tokens that are looked at."""
    places = [place for place, version in enumerate(row.versions) if version is not None]
    end = places[min(most, len(places)) - 1] + 1
    return replace(
        row,
        token_ids=row.token_ids[:end],
        targets=row.targets[:end],
        logprobs=row.logprobs[:end],
        versions=row.versions[:end],
        temperatures=row.temperatures[:end],
    )


def _targets(row: TokenRow) -> int:
    return len(row.versions) - row.versions.count(None)


def _by_length(row: TokenRow) -> tuple[int, tuple[int, ...]]:
    return len(row.token_ids), row.token_ids
