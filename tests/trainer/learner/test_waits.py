"""How often a step waits for its card: what a program reads of it stands behind all that was started before."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.utils._python_dispatch import TorchDispatchMode

from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import trainable


class HostReads(TorchDispatchMode):
    """Counts the operations that on a card make the program wait until all that was started is done."""

    count = 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += operation.name() in ("aten::_local_scalar_dense", "aten::nonzero", "aten::_unique2")
        return operation(*args, **(kwargs or {}))


def test_a_step_waits_no_more_often_with_more_weights_and_targets(
    base_model: Path, make_samples: Callable[[int], list[Sample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waited for each weight's gradient, and twice for each part of the head."""
    monkeypatch.setattr("trainer.learner.packed.head.CHUNK", 8)
    found = []
    for names, seeds in ((("q_proj",), range(1)), ("all-linear", range(6))):
        config = LearnerConfig(lora_rank=8, max_logprob_difference=1e9, lora_targets=names)
        learner = PackedLearner(base_model, config)
        for group in learner.optimizer.param_groups:
            group["fused"] = True  # as on a card
        samples = [sample for seed in seeds for sample in make_samples(seed)]
        learner.step(samples)
        with HostReads() as reads:
            targets = learner.step(samples).trained_tokens
        found.append((reads.count, targets, len(trainable(learner.model))))
    (few, few_targets, few_weights), (many, many_targets, many_weights) = found
    assert many_targets > 4 * few_targets
    assert many_weights > 4 * few_weights
    assert few == many < 30
