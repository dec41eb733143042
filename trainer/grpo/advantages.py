"""Advantages: how much better each run of a group did than the group, as pure arithmetic on rewards."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Literal

from arttrace.records.values.equal_rewards import are_equal

Scale = Literal["none", "std", "batch", "rloo"]

STD_FLOOR = 0.1
"""The least standard deviation that rewards are divided by."""


def group_advantages(
    rewards: Sequence[float],
    *,
    scale: Scale = "none",
    std_floor: float = STD_FLOOR,
    batch_std: float | None = None,
) -> list[float]:
    """The advantages of one group of G rewards, in the same order; G numbers that sum to 0 up to rounding.

    With m the mean of the rewards R and s their sample standard deviation (divisor G-1):

    - "none": A = R - m. Dr. GRPO (Liu et al. 2025, arXiv:2503.20783): no division, so that a group of nearly tied
      judge scores keeps its small weight. TRL's `scale_rewards="none"`.
    - "std": A = (R - m) / max(s, std_floor). GRPO (Shao et al. 2024, arXiv:2402.03300) with a floor under s, which
      bounds how far the noise of nearly tied scores is blown up. TRL's "group", which adds 1e-4 to s instead.
    - "batch": A = (R - m) / max(batch_std, std_floor), with the standard deviation of all rewards of the step (Liu et
      al. 2025, arXiv:2508.08221). TRL's "batch".
    - "rloo": A = G/(G-1) (R - m), which equals R minus the mean of the others. Leave-one-out REINFORCE (Kool et al.
      2019; Ahmadian et al. 2024, arXiv:2402.14740). Never divided by a standard deviation.

    Equal rewards, up to the rounding of their sums, hence also a single one, give exactly 0. Raises ValueError for a
    reward that is not finite, an unknown scale, a floor that is not above 0, or "batch" without its standard deviation.
    """
    if scale not in ("none", "std", "batch", "rloo"):
        raise ValueError(f"unknown advantage scale {scale!r}: use 'none', 'std', 'batch' or 'rloo'")
    if not std_floor > 0:
        raise ValueError(f"std_floor must be above 0, not {std_floor}")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError(f"a reward is not a finite number: {list(rewards)}")
    if are_equal(rewards):
        return [0.0] * len(rewards)
    size = len(rewards)
    mean = math.fsum(rewards) / size
    factor = 1.0
    if scale == "rloo":
        factor = size / (size - 1)
    elif scale != "none":
        factor = 1.0 / max(_deviation(rewards, scale, batch_std), std_floor)
    return [factor * (reward - mean) for reward in rewards]


def is_floored(
    rewards: Sequence[float], *, scale: Scale, std_floor: float = STD_FLOOR, batch_std: float | None = None
) -> bool:
    """Whether a group that differs at all is divided by the floor, and so counts for less than its scale says."""
    if scale not in ("std", "batch") or are_equal(rewards):
        return False
    return _deviation(rewards, scale, batch_std) < std_floor


def standard_deviation(rewards: Sequence[float]) -> float:
    """That of a sample; 0.0 of fewer than two."""
    return statistics.stdev(rewards) if len(rewards) > 1 else 0.0


def _deviation(rewards: Sequence[float], scale: Scale, batch_std: float | None) -> float:
    if scale == "std":
        return standard_deviation(rewards)
    if batch_std is None:
        raise ValueError("scale 'batch' needs the standard deviation of the batch")
    return batch_std
