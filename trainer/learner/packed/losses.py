"""Losses: the term of every target, so that a step's loss is `sum of weight * term / normaliser` in any layout. Pure.

Terms are differentiable in the log-probabilities under the policy in training, `logps`; everything else is data. All
tensors have shape (M,), one entry per target. Formulas: the papers named in config.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainer.learner.config import LearnerConfig

FARTHEST = 20.0
"""The largest logarithm of a ratio: e^20 is 485 million, and beyond e^88 float32 has no number."""


@dataclass(frozen=True, slots=True)
class Before:
    """What is known about the targets besides the policy in training.

    `sampled`: log-probabilities as captured. `old`: where the importance ratio starts from, the captured ones or those
    of the policy before the step. `reference`: under the KL term's reference, None without such a term.
    Where a ratio or a weight is a trajectory's, over all targets of the target's trajectory: `trajectory_shift`, the
    mean of `logps - old`, and `trajectory_moved`, the sum of `old - sampled`.
    """

    sampled: torch.Tensor
    old: torch.Tensor
    reference: torch.Tensor | None = None
    trajectory_shift: torch.Tensor | None = None
    trajectory_moved: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossTerms:
    """Per target: the loss term, the importance ratio, whether it was clipped, whether the importance mask took the
    target's weight, whether it has no term since its ratio is too large to be computed with (1 then), and the KL
    estimate or 0."""

    loss: torch.Tensor
    ratio: torch.Tensor
    clipped: torch.Tensor
    masked: torch.Tensor
    far: torch.Tensor
    kl: torch.Tensor


def loss_terms(config: LearnerConfig, logps: torch.Tensor, advantages: torch.Tensor, before: Before) -> LossTerms:
    """The terms of one micro-batch, under `config.loss`, `config.correction` and `config.kl_weight`."""
    own = logps - before.old
    shift, ratio = own, (of_token := own.clamp(max=FARTHEST).exp())
    if config.ratio_of_trajectory:
        assert before.trajectory_shift is not None
        # One ratio per trajectory; each token carries its share of the ratio's gradient.
        shift = before.trajectory_shift + logps - logps.detach()
        ratio = shift.clamp(max=FARTHEST).exp()
    far = is_far(config, shift.detach(), own.detach())
    low, high = config.clip_range
    if config.loss == "cispo":
        weight = ratio.detach().clamp(max=config.cispo_max_ratio)
        loss = -weight * advantages * logps
        clipped = ratio.detach() > config.cispo_max_ratio
    else:
        bounded = ratio if config.delta is None else ratio.clamp(max=config.delta)
        loss = -torch.minimum(bounded * advantages, ratio.clamp(low, high) * advantages)
        falling = ratio.detach() < low
        if config.delta is not None:
            falling |= ratio.detach() > config.delta
        clipped = torch.where(advantages > 0, ratio.detach() > high, falling)
    masked = torch.zeros_like(clipped)
    if config.correction != "clip":
        weight = staleness_weight(config, before)
        loss, masked = loss * weight, weight == 0
    kl = torch.zeros_like(logps)
    if before.reference is not None:
        d = before.reference - logps
        d = d - (d.detach() - FARTHEST).clamp(min=0)
        kl = -d if config.kl_estimator == "k1" else d.exp() - d - 1
        loss = loss + config.kl_weight * (kl * of_token if config.use_bias_correction_kl else kl)
    loss = torch.where(far, torch.zeros_like(loss), loss)
    ratio = ratio.detach().masked_fill(far, 1.0)
    return LossTerms(loss, ratio, clipped & ~far, masked, far, kl.detach())


def is_far(config: LearnerConfig, shift: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
    """Which targets have no term, by the logarithm of the ratio in the loss and that of the token's `own`: where a loss
    bounds the ratio of a token that is to become likelier alone, one that is to become less likely would outweigh all
    others; and so would any by a KL term that is multiplied by its ratio."""
    far = shift > FARTHEST if config.loss != "cispo" else torch.zeros_like(own, dtype=torch.bool)
    return far | (own > FARTHEST) if config.kl_weight and config.use_bias_correction_kl else far


def staleness_weight(config: LearnerConfig, before: Before) -> torch.Tensor:
    """How much each target counts, by how far the policy had moved between sampling and this step."""
    moved = before.old - before.sampled
    if config.weight_of_trajectory:
        assert before.trajectory_moved is not None
        moved = before.trajectory_moved
    weight, least, most = moved.exp(), config.importance_clip_min or 0.0, config.importance_clip_max
    if config.correction.endswith("truncate"):
        return weight.clamp(least, most)
    return torch.where((weight >= least) & (weight <= most), weight, torch.zeros_like(weight))


def trajectory_sums(
    values: Sequence[torch.Tensor], trajectory: Sequence[torch.Tensor], count: int, device: str
) -> torch.Tensor:
    """Over the targets of each of `count` trajectories, the sum of values and the number of targets, shape (2, count).

    `values` and `trajectory` are lists of tensors (M,), one pair per micro-batch; there may be none. In
    float64, so that ranks with and without micro-batches can add theirs up.
    """
    sums = torch.zeros(2, count, dtype=torch.float64, device=device)
    for some, of in zip(values, trajectory, strict=True):
        sums[0].index_add_(0, of, some.double())
        sums[1].index_add_(0, of, torch.ones_like(some).double())
    return sums
