"""The loss terms against unsloth_zoo's `grpo_compute_loss`, which comes from other hands, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

ORACLE = """
import json, os, sys
os.environ["UNSLOTH_IS_PRESENT"] = "1"
import torch
from unsloth_zoo.rl_replacements import grpo_compute_loss

from trainer.learner.config import LearnerConfig
from trainer.learner.packed.losses import Before, loss_terms, trajectory_sums

torch.manual_seed(0)
rows, length, limit = 5, 9, 11
old = -3 * torch.rand(rows, length, dtype=torch.float64)
new = (old + 0.3 * torch.randn(rows, length, dtype=torch.float64)).requires_grad_()
reference = old + 0.2 * torch.randn(rows, length, dtype=torch.float64)
mask = (torch.arange(length) < torch.tensor([9, 4, 7, 1, 6])[:, None]).double()
advantages = torch.tensor([0.7, -1.0, 0.2, -0.4, 0.5], dtype=torch.float64)
trajectory = torch.arange(rows).repeat_interleave(length).view(rows, length)
chosen, total, counts = mask.bool(), mask.sum(), mask.sum(1, keepdim=True)

found = {}
for loss in ("dapo", "grpo", "dr_grpo", "cispo", "gspo"):
    for kl_weight in (0.0, 0.1):
        config = LearnerConfig(
            loss=loss, kl_weight=kl_weight, use_bias_correction_kl=False, epsilon_low=0.1, epsilon_high=0.2,
            cispo_max_ratio=1.2,
        )
        theirs = grpo_compute_loss(
            reference, new, old, None, torch.zeros(rows, length, dtype=torch.long), mask, kl_weight, advantages,
            loss_type="grpo" if loss == "gspo" else loss, epsilon_low=0.1,
            epsilon_high=1.2 if loss == "cispo" else 0.2, max_completion_length=limit, num_items_in_batch=total,
            importance_sampling_level="sequence" if loss == "gspo" else "token",
        )[0]
        (wanted,) = torch.autograd.grad(theirs, new)
        logps, shift = new[chosen], (new - old).detach()
        sums = trajectory_sums([shift[chosen]], [trajectory[chosen]], rows, "cpu")
        before = Before(
            old[chosen], old[chosen], reference[chosen] if kl_weight else None,
            (sums[0] / sums[1])[trajectory[chosen]],
        )
        terms = loss_terms(config, logps, advantages[trajectory[chosen]], before).loss
        weights, normaliser = {
            "dapo": (mask, total),
            "cispo": (mask, total),
            "dr_grpo": (mask, rows * limit),
            "grpo": (mask / counts, rows),
            "gspo": (mask / counts, rows),
        }[loss]
        ours = (weights[chosen] * terms).sum() / normaliser
        (got,) = torch.autograd.grad(ours, new)
        found[f"{loss} kl {kl_weight}"] = {
            "loss": [float(ours), float(theirs)],
            "gradient": float((got - wanted).abs().max()),
            "scale": float(wanted.abs().max()),
        }
print(json.dumps(found))
"""


def test_terms_and_gradients_are_those_of_unsloth_zoo() -> None:
    done = subprocess.run([sys.executable, "-c", ORACLE], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, dict[str, Any]] = json.loads(done.stdout.strip().splitlines()[-1])
    assert len(found) == 10
    for case, numbers in found.items():
        ours, theirs = numbers["loss"]
        # The oracle's mask is float32, its terms are float64.
        assert ours == pytest.approx(theirs, rel=1e-6), case
        assert numbers["scale"] > 1e-3, case
        assert numbers["gradient"] < 1e-7, case
