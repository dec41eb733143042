"""Advantages: how much better each run of a group did than the group, as pure arithmetic on rewards."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

Scale = Literal["none", "std", "rloo"]


def group_advantages(rewards: Sequence[float], *, scale: Scale = "none", std_floor: float = 0.1) -> list[float]:
    """The advantages of one group of G rewards, in the same order; G numbers that sum to 0 up to rounding.

    With m the mean of the rewards R and s their sample standard deviation (divisor G-1):

    - "none": A = R - m. Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): no division, so that a group of nearly tied
      judge scores keeps its small weight.
    - "std": A = (R - m) / max(s, std_floor). GRPO (Shao et al. 2024, arXiv:2402.03300) with a floor under s, which
      bounds how far the noise of nearly tied scores is blown up.
    - "rloo": A = G/(G-1) (R - m), which equals R minus the mean of the others. Leave-one-out REINFORCE (Kool et al.
      2019; Ahmadian et al. 2024, arXiv:2402.14740). Never divided by a standard deviation.

    Equal rewards, hence also a single one, give exactly 0. Raises ValueError for a reward that is not finite, an
    unknown scale, or a floor that is not above 0.
    """
    if scale not in ("none", "std", "rloo"):
        raise ValueError(f"unknown advantage scale {scale!r}: use 'none', 'std' or 'rloo'")
    if not std_floor > 0:
        raise ValueError(f"std_floor must be above 0, not {std_floor}")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"a reward is not a finite number: {list(rewards)}")
    if not rewards or min(rewards) == max(rewards):
        return [0.0] * len(rewards)
    size = len(rewards)
    mean = math.fsum(rewards) / size
    factor = 1.0
    if scale == "std":
        factor = 1.0 / max(statistics.stdev(rewards), std_floor)
    elif scale == "rloo":
        factor = size / (size - 1)
    return [factor * (reward - mean) for reward in rewards]
