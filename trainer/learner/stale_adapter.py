"""Which version's log-probabilities are these? An engine with a stale adapter is found by which one it is nearer to.

A bound on the difference alone cannot show it: in bfloat16 engine and learner differ by more than two neighbouring
versions do. So what was captured is compared with the current version, the one before it and the base model, on the
same tokens: the one nearest in mean squared difference sampled them, where that is no accident of the noise. Pure.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from arttrace.system.errors import TrainingError
from trainer.learner.samples import TokenRow

SIGMAS = 4.0
"""How many standard errors another version must be nearer by."""
LEAST_TARGETS = 32
"""With fewer, chance decides."""
_SHARE, _LEAST_TOKENS = 24, 512
"""One token in so many is looked at, and no fewer than so many: more would slow the step down."""


def sample_of(rows: Sequence[TokenRow], current_version: str | None) -> list[TokenRow]:
    """Some of the rows that the current version sampled, the shortest first; none where there are too few targets."""
    own = sorted(
        (row for row in rows if current_version is not None and current_version in row.versions),
        key=lambda row: (len(row.token_ids), row.token_ids),
    )
    budget = max(_LEAST_TOKENS, sum(len(row.token_ids) for row in rows) // _SHARE)
    chosen: list[TokenRow] = []
    targets = 0
    for row in own:
        if chosen and targets >= LEAST_TARGETS and budget < len(row.token_ids):
            break
        chosen.append(row)
        budget -= len(row.token_ids)
        targets += sum(version == current_version for version in row.versions)
    return chosen if targets >= LEAST_TARGETS else []


def check_nearest(differences: Mapping[str, Sequence[float]], current: str) -> None:
    """Raises TrainingError when another version is nearer. `differences` are, by a version's name, its
    log-probabilities less those captured (nats), of the same tokens in the same order."""
    own = differences[current]
    sure = {name: sigmas_nearer(theirs, own) for name, theirs in differences.items() if name != current}
    nearest = max(sure, key=lambda name: sure[name], default=current)
    if nearest != current and sure[nearest] > SIGMAS:
        raise TrainingError(
            f"The log-probabilities captured from {current} are those of {nearest}: mean squared difference "
            f"{_mean_square(differences[nearest]):.3g} to it, {_mean_square(own):.3g} to {current}.",
            "The engine serves other weights than it says: restart `arttrace serve`, train on what is sampled then.",
        )


def sigmas_nearer(theirs: Sequence[float], own: Sequence[float]) -> float:
    """By how many standard errors one version's sum of squared differences is below another's; below 0, above it.

    How far the two versions are apart at each token is known, d; unknown is the engine's noise r, by which what it
    returned differs from the version that it served. If that is theirs, own = r - d, and the sums differ by the sum of
    d^2 - 2 r d, whose standard error is 2 sqrt(sum of r^2 d^2): a sandwich estimate, with r as measured, however it is
    distributed.
    """
    gain = sum(mine * mine - its * its for mine, its in zip(own, theirs, strict=True))
    error = 2 * math.sqrt(sum((its * (its - mine)) ** 2 for mine, its in zip(own, theirs, strict=True)))
    return gain / error if error else math.copysign(math.inf, gain) if gain else 0.0


def _mean_square(values: Sequence[float]) -> float:
    return statistics.fmean(value * value for value in values)
