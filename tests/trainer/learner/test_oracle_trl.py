"""The loss against TRL's own code: its weights for how far the policy moved, and the loss that they go into."""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from trl.trainer.grpo_trainer import GRPOTrainer

from trainer.learner.config import LearnerConfig
from trainer.learner.packed.losses import Before, loss_terms, trajectory_sums

ROWS, LENGTH, LIMIT, MOST = 5, 9, 11, 1.15
MODES = ("token_truncate", "token_mask", "sequence_truncate", "sequence_mask")


def weights_by_trl(mode: str, bounds: tuple[float | None, float], **tensors: torch.Tensor) -> torch.Tensor:
    """By the statements of TRL's trainer that make them, which are no function of their own."""
    source = ast.parse(textwrap.dedent(inspect.getsource(GRPOTrainer._generate_and_score_completions)))
    [made] = [
        node
        for node in ast.walk(source)
        if isinstance(node, ast.If)
        and ast.unparse(node.test) == "self.use_vllm and self.vllm_importance_sampling_correction"
        and "vllm_importance_sampling_ratio = torch.exp(logps_diff)" in ast.unparse(node)
    ]
    names: dict[str, Any] = {"torch": torch, "math": math, "tool_mask": None, **tensors}
    names["self"] = SimpleNamespace(
        use_vllm=True,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode=mode,
        vllm_importance_sampling_clip_min=bounds[0],
        vllm_importance_sampling_clip_max=bounds[1],
    )
    exec(compile(ast.Module([made], []), "trl", "exec"), names)
    weights = names["vllm_importance_sampling_ratio"]
    assert isinstance(weights, torch.Tensor)
    return weights


def loss_by_trl(config: LearnerConfig, new: torch.Tensor, mask: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    low, high = config.clip_range
    trainer = SimpleNamespace(
        _get_per_token_logps_and_entropies=lambda *_, **__: (new, torch.zeros_like(new), None),
        accelerator=SimpleNamespace(num_processes=1, gather=lambda one: one, reduce=lambda one, **_: one),
        args=SimpleNamespace(
            use_bias_correction_kl=config.use_bias_correction_kl, delta=config.delta, steps_per_generation=1
        ),
        model=SimpleNamespace(training=True),
        loss_type="grpo" if config.loss == "gspo" else config.loss,
        importance_sampling_level="sequence" if config.ratio_of_trajectory else "token",
        beta=config.kl_weight,
        epsilon_low=1 - low,
        epsilon_high=config.cispo_max_ratio if config.loss == "cispo" else high - 1,
        max_completion_length=LIMIT,
        current_gradient_accumulation_steps=1,
        use_vllm=config.correction != "clip",
        vllm_importance_sampling_correction=True,
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        _entropy_bonus_enabled=False,
        _metrics={"train": defaultdict(list)},
    )
    prompt = torch.zeros(ROWS, 1, dtype=torch.long)
    given = {
        "prompt_ids": prompt,
        "prompt_mask": prompt,
        "completion_ids": torch.zeros(ROWS, LENGTH, dtype=torch.long),
        "completion_mask": mask,
        "num_items_in_batch": mask.sum(),
    }
    loss = GRPOTrainer._compute_loss(trainer, None, given | inputs)
    assert isinstance(loss, torch.Tensor)
    return loss


@pytest.mark.parametrize("more", [{}, {"kl_weight": 0.1}, {"delta": 1.35}], ids=["", "kl", "dual clip"])
@pytest.mark.parametrize("least", [None, 0.8])
@pytest.mark.parametrize("importance", ["clip", *MODES])
@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "cispo", "gspo"])
def test_loss_and_gradient_are_those_of_trl(
    loss: str, importance: str, least: float | None, more: dict[str, Any]
) -> None:
    torch.manual_seed(0)
    sampled = -3 * torch.rand(ROWS, LENGTH, dtype=torch.float64)
    old = sampled + 0.2 * torch.randn(ROWS, LENGTH, dtype=torch.float64)
    new = (old + 0.3 * torch.randn(ROWS, LENGTH, dtype=torch.float64)).requires_grad_()
    reference = old + 0.2 * torch.randn(ROWS, LENGTH, dtype=torch.float64)
    mask = (torch.arange(LENGTH) < torch.tensor([9, 4, 7, 1, 6])[:, None]).double()
    advantages = torch.tensor([0.7, -1.0, 0.2, -0.4, 0.5], dtype=torch.float64)
    config = LearnerConfig(
        loss=loss,  # type: ignore[arg-type]
        importance=importance,  # type: ignore[arg-type]
        importance_clip_min=least,
        importance_clip_max=MOST,
        epsilon_low=0.1,
        epsilon_high=0.2,
        cispo_max_ratio=1.2,
        use_bias_correction_kl=loss != "gspo",
        **more,
    )
    weights = torch.ones(())
    if importance != "clip":
        weights = weights_by_trl(
            importance,
            (least, MOST),
            old_per_token_logps=old,
            sampling_per_token_logps=sampled,
            completion_mask=mask,
        )
        inner = weights[(weights != MOST) & (weights != least) & (weights != 0) & (weights != 1)]
        assert len(inner), "some keep a weight of their own"
        assert len(inner) < weights.numel(), "and some do not"
    theirs = loss_by_trl(
        config,
        new,
        mask,
        advantages=advantages,
        old_per_token_logps=old,
        ref_per_token_logps=reference,
        importance_sampling_ratio=weights,
    )
    (wanted,) = torch.autograd.grad(theirs, new)

    chosen, counts = mask.bool(), mask.sum(1, keepdim=True)
    trajectory = torch.arange(ROWS).repeat_interleave(LENGTH).view(ROWS, LENGTH)[chosen]

    def sums(values: torch.Tensor) -> torch.Tensor:
        return trajectory_sums([values[chosen].detach()], [trajectory], ROWS, "cpu")

    shift, moved = sums(new - old), sums(old - sampled)
    before = Before(
        sampled[chosen],
        old[chosen],
        reference[chosen] if config.kl_weight else None,
        (shift[0] / shift[1])[trajectory],
        moved[0][trajectory],
    )
    terms = loss_terms(config, new[chosen], advantages[trajectory], before).loss
    share, normaliser = {
        "dapo": (mask, mask.sum()),
        "cispo": (mask, mask.sum()),
        "dr_grpo": (mask, ROWS * LIMIT),
        "grpo": (mask / counts, ROWS),
        "gspo": (mask / counts, ROWS),
    }[loss]
    ours = (share[chosen] * terms).sum() / normaliser
    (got,) = torch.autograd.grad(ours, new)
    assert float(ours) == pytest.approx(float(theirs), abs=1e-12)
    assert wanted.abs().max() > 1e-3
    if config.ratio_of_trajectory and importance.startswith("token"):
        # A ratio of all tokens is pulled at by each: in TRL with the mean of their weights, here by each with its own.
        got, wanted = got.sum(1), wanted.sum(1)
    torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-12)
