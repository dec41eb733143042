"""Which runs are another version's, where a part of a step is: one replica of several that missed the swap. Pure.

Half of the runs from another version bring the whole to half of the way, which an engine's noise may do as well where
few tokens tell. What tells them apart is that each run has gone all of the way or nothing of it. Let w be the way at a
token, d how far what was captured is from the current version, s the scale of the noise there. A token's word

    l = log f((d - w) / s) - log f((d - w/4) / s),    f Student's density with 4 degrees of freedom

is in favour of the other version where positive. Where the current one sampled, with an engine that is off by noise of
that scale and even by a quarter of the way, the mean of exp(l) is at most 1; so is that of exp(L), L the sum of a run's
words, and of 1 - p + p exp(L). Their product over the runs is how much likelier what was captured is where a share p
of the runs is the other version's, and its mean is at most 1 too; so is the mean of the products for several p. By
Markov's inequality it is above a million in one step of a million at most, however many runs and tokens there are:
runs that are too short to tell by themselves tell together.

The scale is that of what is left in a run besides its own share of the way, among tokens with as long a way: neither
version has to be the right one for it. A token far from everything else has the fit of its run to itself, and is left
out there. No token's word is more than 2 either way. The same is done with answers in place of runs, for a gateway that
leads the calls of one run to several engines; the mean of both counts.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

LEAST_EVIDENCE = math.log(1e6)
_DRIFT, _MOST, _TAILS = 0.25, 2.0, 4
_ALIKE, _KNOWN = 64, 8
"""Tokens that the last class of lengths of way has at least, and of what scale is known at least."""
_ROUNDS = 20


@dataclass(frozen=True, slots=True)
class Part:
    """`evidence`: the logarithm of how much likelier what was captured is, if a part of it is the other version's.
    `runs`: the numbers of those that probably are, or have answers that are, of `looked_at`. `share`: of the tokens."""

    evidence: float
    runs: tuple[int, ...]
    looked_at: int
    share: float

    @property
    def is_sure(self) -> bool:
        """Not by chance."""
        return self.evidence > LEAST_EVIDENCE and bool(self.runs)


def part_gone(left: Sequence[float], along: Sequence[float], answers: Sequence[tuple[int, int]]) -> Part:
    """`left` is how far what was captured is from the current version at each token, `along` how far the other version
    is (nats); `answers` names the run that each token is of, and the answer in it."""
    runs = [run for run, _ in answers]
    by_run = _mixture(left, along, runs)
    has_one_each = len(set(answers)) == len(set(runs))
    by_answer = by_run if has_one_each else _mixture(left, along, answers)
    clearest, units = max((by_run, runs), (by_answer, answers), key=lambda one: one[0].evidence)
    stale = {run for run, unit in zip(runs, units, strict=True) if clearest.probable.get(unit, 0) > 0.5}
    share = math.fsum(clearest.probable[unit] for unit in units) / max(len(units), 1)
    evidence = _log_mean([by_run.evidence, by_answer.evidence])
    return Part(evidence, tuple(sorted(stale)), len(set(runs)), share)


@dataclass(frozen=True, slots=True)
class _Mixture:
    evidence: float
    probable: dict[Hashable, float]
    """By unit, the probability that it is the other version's."""


def _mixture(left: Sequence[float], along: Sequence[float], units: Sequence[Hashable]) -> _Mixture:
    words: dict[Hashable, float] = dict.fromkeys(units, 0.0)
    for unit, off, way, scale in zip(units, left, along, _scales(left, along, units), strict=True):
        words[unit] += _word(off, way, scale)
    shares = [0.5]
    while shares[-1] * len(words) > 1:
        shares.append(shares[-1] / 2)
    products = [sum(_log_mixed(share, word) for word in words.values()) for share in shares]
    share = shares[products.index(max(products))]
    probable: dict[Hashable, float] = {}
    for _ in range(_ROUNDS):  # of expectation and maximisation
        odds = math.log(share) - math.log1p(-share)
        probable = {unit: 1 / (1 + math.exp(min(-odds - word, 700.0))) for unit, word in words.items()}
        share = min(max(math.fsum(probable.values()) / max(len(probable), 1), 1e-6), 1 - 1e-6)
    return _Mixture(_log_mean(products), probable)


def _word(off: float, way: float, scale: float) -> float:
    if scale == 0 or math.isinf(scale):
        return 0.0
    other, current = (off - way) / scale, (off - _DRIFT * way) / scale
    word = (_TAILS + 1) / 2 * (math.log1p(current * current / _TAILS) - math.log1p(other * other / _TAILS))
    return max(-_MOST, min(word, _MOST))


def _scales(left: Sequence[float], along: Sequence[float], units: Sequence[Hashable]) -> list[float]:
    """The scale of the noise at each token; infinite where it is not known.

    The tokens are put into classes by the length of their way: the shorter half, the shorter half of the others, and so
    on. Within a class the noise of a token with a longer way than usual is taken to be larger in proportion.
    """
    lengths, products = defaultdict[Hashable, float](float), defaultdict[Hashable, float](float)
    for unit, off, way in zip(units, left, along, strict=True):
        lengths[unit] += way * way
        products[unit] += way * off
    unexplained: list[float | None] = []  # squared
    for unit, off, way in zip(units, left, along, strict=True):
        weight = way * way / lengths[unit] if lengths[unit] else 0.0
        rest = off - products[unit] / lengths[unit] * way if lengths[unit] else off
        unexplained.append((rest / (1 - weight)) ** 2 if weight < 0.5 else None)
    order = sorted(range(len(left)), key=lambda at: abs(along[at]))
    least = _EXACT * math.sqrt(max(lengths.values(), default=0.0))
    scales = [math.inf] * len(left)
    while order:
        half = len(order) // 2 if len(order) >= _ALIKE else len(order)
        alike, order = order[:half], order[half:]
        known = [(value, along[at] ** 2) for at in alike if (value := unexplained[at]) is not None]
        if len(known) < _KNOWN:
            continue
        size, usual = (math.fsum(column) / len(known) for column in zip(*known, strict=True))
        size *= (_TAILS - 2) / _TAILS  # of Student's density with that variance
        for at in alike:
            longer = max(along[at] ** 2 / usual, 1.0) if usual else 1.0
            scales[at] = max(math.sqrt(size * longer), least)
    return scales


_EXACT = 1e-9
"""Of the way's length: far above what is rounded in double precision."""


def _log_mixed(share: float, word: float) -> float:
    """log(1 - share + share exp(word))."""
    return _log_sum([math.log1p(-share), math.log(share) + word])


def _log_mean(values: Sequence[float]) -> float:
    return _log_sum(values) - math.log(len(values))


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(math.fsum(math.exp(value - largest) for value in values))
