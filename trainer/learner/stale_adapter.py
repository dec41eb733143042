"""Which version's log-probabilities are these? An engine with a stale adapter is found by the version it is nearest to.

A bound on the difference alone cannot show it: in bfloat16 engine and learner differ by more than two neighbouring
versions do. So it is measured how far another version is from the current one at each token, and how much of that way
what was captured has gone: nothing of it, if the current version sampled, all of it, if the other did. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from arttrace.system.errors import TrainingError
from trainer.learner.samples import TokenRow

SIGMAS = 5.0
"""How many standard errors what was captured must have gone."""
LEAST_TARGETS = 32
"""With fewer, chance decides."""
_SHARE, _LEAST_TOKENS, _LEAST_ROUNDED = 48, 512, 4096
"""One token in so many is looked at, and no fewer than so many, in bfloat16 than so many: more would slow the step
down."""
_MEASURED_AT = 0.05
"""Nats (root mean square): far above what bfloat16 rounds, near enough for a straight line."""
FIRST, _FURTHEST, _TRIES = 16.0, 1024.0, 3
_EXACT = 1e-9
"""Far above what is rounded in double precision."""


def sample_of(rows: Sequence[TokenRow], current_version: str | None, *, rounded: bool) -> list[TokenRow]:
    """Some of the rows that the current version sampled, the shortest first; none where there are too few targets.

    A token that several rows have behind the same beginning is looked at once: an engine is off there by the same in
    all of them, which is one observation.
    """
    own = sorted(
        (row for row in rows if current_version is not None and current_version in row.versions),
        key=lambda row: (len(row.token_ids), row.token_ids),
    )
    least = _LEAST_ROUNDED if rounded else _LEAST_TOKENS
    budget = max(least, sum(len(row.token_ids) for row in rows) // _SHARE)
    chosen: list[TokenRow] = []
    targets = 0
    places: dict[tuple[int, int], int] = {}
    seen: set[int] = set()
    for row in own:
        row, fresh = _at_new_places(row, current_version, places, seen)
        if not fresh:
            continue
        if chosen and targets >= LEAST_TARGETS and budget < len(row.token_ids):
            break
        chosen.append(row)
        budget -= len(row.token_ids)
        targets += fresh
    return chosen if targets >= LEAST_TARGETS else []


def _at_new_places(
    row: TokenRow, current_version: str | None, places: dict[tuple[int, int], int], seen: set[int]
) -> tuple[TokenRow, int]:
    """The row without the current version's tokens that were `seen`, and how many it has left. `places` are nodes of
    the rows' prefix tree by their parent and token."""
    at, fresh = 0, 0
    versions: list[str | None] = []
    for token, version in zip(row.token_ids, row.versions, strict=True):
        at = places.setdefault((at, token), len(places) + 1)
        is_fresh = version == current_version and at not in seen
        if is_fresh:
            seen.add(at)
            fresh += 1
        versions.append(version if is_fresh else None)
    return replace(row, versions=tuple(versions)), fresh


def way_to(
    at: Callable[[float], Sequence[float]], here: Sequence[float], *, rounded: bool, times: float = FIRST
) -> tuple[list[float], float]:
    """How far another version is from the current one at each token (nats), and with which `times` to begin for the
    next version: measuring it anew takes twice as long.

    `at(m)` are the log-probabilities of the weights m times the way from the current ones to the other's; `here` is
    at(0), and the other version is at(1). What is `rounded` to bfloat16 differs between neighbouring versions by its
    rounding more than by their weights. There the way is measured where it is long, m times to both sides, and divided:
    (at(m) - at(-m)) / 2m.
    """
    for _ in range(_TRIES if rounded else 0):
        far = [(there - back) / 2 for there, back in zip(at(times), at(-times), strict=True)]
        size = math.sqrt(_mean_square(far))
        if size == 0 or (0.4 * _MEASURED_AT < size < 2.5 * _MEASURED_AT) or times == _FURTHEST:
            return [one / times for one in far], times
        times = min(times * _MEASURED_AT / size, _FURTHEST) if math.isfinite(size) else 0.0
        if times <= 1:
            break
    return [there - own for there, own in zip(at(1), here, strict=True)], FIRST


@dataclass(frozen=True, slots=True)
class Share:
    """How much of the way to another version what was captured has gone: 0 nothing, 1 all of it."""

    gone: float
    error: float
    """Its standard error."""
    left: float
    """Mean square of what is left unexplained (nats squared)."""
    tokens: int
    """At how many tokens it was measured: 0 where the other version differs at none."""

    @property
    def is_sure(self) -> bool:
        """Nearer to the other version than to the current one, and not by chance."""
        return self.gone > 0.5 and self.gone > SIGMAS * self.error


def share_gone(
    captured: Sequence[float], way: Sequence[float], logps: Sequence[float], entropies: Sequence[float]
) -> Share:
    """By least squares, for `captured` and `way` as nats at each token away from the current version, whose own are
    `logps`, of a distribution with these `entropies`.

    What an engine is off by at every token alike, in proportion to the log-probability, or to the logits (which changes
    a token's log-probability by that and the entropy), is taken out of both first: a way may have a part of that, as
    that of a policy which grows surer, and an engine that is off so serves no other version. The error is as in
    MacKinnon and White (1985), HC3: the noise of an engine is larger at some tokens than at others, and one token that
    weighs much has the fit to itself.
    """
    left, along = captured, way
    known: list[list[float]] = []
    for column in ([1.0] * len(way), logps, entropies):
        rest = list(column)
        for unit in known:
            rest = _without(rest, unit)
        if unit := _direction(rest, column):
            left, along = _without(left, unit), _without(along, unit)
            known.append(unit)
    unit = _direction(along, way)
    if not unit:
        return Share(0.0, math.inf, _mean_square(left), 0)
    length = _dot(along, unit)
    gone = _dot(left, unit) / length
    left = _without(left, unit)
    summed = 0.0
    for unexplained, *ones in zip(left, unit, *known, strict=True):
        others = 1 - _dot(ones, ones)
        summed += (ones[0] * unexplained / others) ** 2 if others > _EXACT else math.inf
    return Share(gone, math.sqrt(summed) / length, _mean_square(left), len(left))


def _direction(values: Sequence[float], whole: Sequence[float]) -> list[float]:
    """Of length 1; empty where `values` are no more than what computing them from the `whole` rounded."""
    length = math.sqrt(_dot(values, values))
    return [one / length for one in values] if length > _EXACT * math.sqrt(_dot(whole, whole)) else []


def _without(values: Sequence[float], column: Sequence[float]) -> list[float]:
    share = _dot(values, column) / _dot(column, column)
    return [one - share * its for one, its in zip(values, column, strict=True)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))


def check_nearest(shares: Mapping[str, Share], current: str) -> None:
    """Raises TrainingError when what was captured is another version's: `shares` are, by a version's name, how much of
    the way to it what was captured has gone."""
    sure = [name for name, share in shares.items() if share.is_sure]
    if sure:
        nearest = min(sure, key=lambda name: shares[name].left)
        raise TrainingError(
            f"The log-probabilities captured from {current} are those of {nearest}: of the way to it they have gone "
            f"{shares[nearest].gone:.2f} (standard error {shares[nearest].error:.2g}).",
            "The engine serves other weights than it says: restart `arttrace serve`, train on what is sampled then.",
        )


def _mean_square(values: Sequence[float]) -> float:
    return statistics.fmean(value * value for value in values)
