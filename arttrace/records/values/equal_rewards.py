"""Numbers of rewards, which are floats: whether they are equal, and their mean. Needs nothing that a machine with a
card may lack."""

from __future__ import annotations

import math
from collections.abc import Sequence


def are_equal(rewards: Sequence[float]) -> bool:
    """Whether none is better than another: a reward of 0.1 and one of 0.2 are the 0.3 of another run, though the sum of
    these floats is a little more."""
    return not rewards or math.isclose(min(rewards), max(rewards), rel_tol=1e-12, abs_tol=1e-12)


def exact_mean(rewards: Sequence[float]) -> float:
    """Their mean; also of numbers that no float holds the sum of."""
    try:
        return math.fsum(rewards) / len(rewards)
    except OverflowError:
        return math.fsum(reward / len(rewards) for reward in rewards)
