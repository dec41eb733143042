"""How much of the way to another version lies behind what an engine's log-probabilities say. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.learner.stale_adapter.parts import Part, part_gone

SIGMAS = 5.0
"""How many standard errors what was captured must have gone."""
_MEASURED_AT = 0.05
"""Nats (root mean square): far above what bfloat16 rounds, near enough for a straight line."""
_CLEAR = 1e-4
"""Nats (root mean square): far above what float32 rounds."""
FIRST, _FURTHEST, _TRIES = 16.0, 1024.0, 3
_EXACT = 1e-9
"""Far above what is rounded in double precision."""


def way_to(
    at: Callable[[float], Sequence[float]], here: Sequence[float], *, rounded: bool, times: float = FIRST
) -> tuple[list[float], float]:
    """How far another version is from the current one at each token (nats), and with which `times` to begin for the
    next version: measuring it anew takes twice as long.

    `at(m)` are the log-probabilities of the weights m times the way from the current ones to the other's; `here` is
    at(0), and the other version is at(1). What is `rounded` to bfloat16 differs between neighbouring versions by its
    rounding more than by their weights; so does what is not, where they are very near, and what rounded `here` is in
    both the way and what was captured. There the way is measured where it is long, m times to both sides, and divided:
    (at(m) - at(-m)) / 2m.
    """
    direct = [] if rounded else _between(here, at(1))
    for _ in range(_TRIES if rounded or _mean_square(direct) < _CLEAR**2 else 0):
        far = [(there - back) / 2 for there, back in zip(at(times), at(-times), strict=True)]
        size = math.sqrt(_mean_square(far))
        if size == 0 or (0.4 * _MEASURED_AT < size < 2.5 * _MEASURED_AT) or times == _FURTHEST:
            return [one / times for one in far], times
        times = min(times * _MEASURED_AT / size, _FURTHEST) if math.isfinite(size) else 0.0
        if times <= 1:
            break
    return direct or _between(here, at(1)), FIRST


def _between(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [there - own for own, there in zip(one, other, strict=True)]


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
    part: Part
    """The runs that have gone all of it."""

    @property
    def is_sure(self) -> bool:
        """Nearer to the other version than to the current one, and not by chance."""
        return self.gone > 0.5 and self.gone > SIGMAS * self.error


def share_gone(
    captured: Sequence[float],
    way: Sequence[float],
    logps: Sequence[float],
    entropies: Sequence[float],
    answers: Sequence[tuple[int, int]],
) -> Share:
    """By least squares, for `captured` and `way` as nats at each token away from the current version, whose own are
    `logps`, of a distribution with these `entropies`; `answers` names each token's run, and the answer in it.

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
    part = part_gone(left, along if unit else [0.0] * len(way), answers)
    if not unit:
        return Share(0.0, math.inf, _mean_square(left), 0, part)
    length = _dot(along, unit)
    gone = _dot(left, unit) / length
    left = _without(left, unit)
    summed = 0.0
    for unexplained, *ones in zip(left, unit, *known, strict=True):
        others = 1 - _dot(ones, ones)
        summed += (ones[0] * unexplained / others) ** 2 if others > _EXACT else math.inf
    return Share(gone, math.sqrt(summed) / length, _mean_square(left), len(left), part)


def _direction(values: Sequence[float], whole: Sequence[float]) -> list[float]:
    """Of length 1; empty where `values` are no more than what computing them from the `whole` rounded."""
    length = math.sqrt(_dot(values, values))
    return [one / length for one in values] if length > _EXACT * math.sqrt(_dot(whole, whole)) else []


def _without(values: Sequence[float], column: Sequence[float]) -> list[float]:
    share = _dot(values, column) / _dot(column, column)
    return [one - share * its for one, its in zip(values, column, strict=True)]


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return sum(one * other for one, other in zip(left, right, strict=True))


def _mean_square(values: Sequence[float]) -> float:
    return statistics.fmean(value * value for value in values)
