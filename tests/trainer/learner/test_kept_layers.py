"""Layers that the free memory has room for are not computed again, where nobody chose that all are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from trainer.learner import base
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.machine.fitting import bytes_per_token, layers_kept
from trainer.learner.machine.memory import free_memory
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.packed.layers import kept
from trainer.learner.policy_model import trainable

QWEN_4B = {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728}
GIB = 1 << 30
MakeSamples = Callable[[int], list[Sample]]


class Learner(PackedLearner):
    """Counts how often a layer is computed in a step, and how many tokens go through the model at once."""

    computed = 0

    def __init__(self, base_model: Path, **fields: Any) -> None:
        settings = {"lora_rank": 8, "max_logprob_difference": 1e9, "dtype": "float64", **fields}
        super().__init__(base_model, LearnerConfig(**settings))
        self.count = len(self.model.get_base_model().get_decoder().layers)
        for name, module in self.model.named_modules():
            if name.endswith("input_layernorm"):
                module.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.computed += 1

    def step(self, samples: Any, **more: Any) -> Any:
        self.computed = 0
        return super().step(samples, **more)


@pytest.fixture
def has_room(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """As on a card, layers are computed again where nobody chose; the free memory is that of so many layers of 1000
    tokens."""
    fitted = base.fitted_to_machine

    def as_on_a_card(asked: LearnerConfig, directory: Path) -> LearnerConfig:
        found = fitted(asked, directory)
        return found if asked.gradient_checkpointing is not None else dataclasses.replace(
            found, gradient_checkpointing=True
        )  # fmt: skip

    monkeypatch.setattr(base, "fitted_to_machine", as_on_a_card)

    def free(layers: float) -> None:
        def of(config: LearnerConfig, shape: Any, _free: Any, tokens: int) -> int:
            count = shape["num_hidden_layers"]
            each = bytes_per_token(config, shape, checkpointing=False) / count
            needed = bytes_per_token(config, shape, checkpointing=True) * tokens + layers * each * 1000
            return layers_kept(config, shape, int(needed / 0.6) + 1, tokens)

        monkeypatch.setattr(kept, "layers_kept", of)

    return free


def test_layers_are_kept_as_the_memory_allows_and_the_step_is_the_same(
    base_model: Path, make_samples: MakeSamples, has_room: Callable[[float], None]
) -> None:
    samples = make_samples(0)
    has_room(0)
    without = Learner(base_model)
    expected = without.step(samples)
    assert without.computed == 2 * without.count > 2
    for layers in range(1, without.count + 1):
        has_room(layers * expected.forwarded_tokens / 1000)
        learner = Learner(base_model)
        metrics = learner.step(samples)
        assert learner.computed == 2 * learner.count - layers
        assert dataclasses.replace(metrics, step_s=0) == dataclasses.replace(expected, step_s=0)
        for name, weight in trainable(learner.model).items():
            assert torch.equal(weight, trainable(without.model)[name])
        has_room(0)
        learner.step(samples)
        assert learner.computed == 2 * learner.count, "each micro-batch has its own"


def test_where_it_was_chosen_all_layers_are_computed_again(
    base_model: Path, make_samples: MakeSamples, has_room: Callable[[float], None]
) -> None:
    has_room(1000)
    learner = Learner(base_model, gradient_checkpointing=True)
    learner.step(make_samples(0))
    assert learner.computed == 2 * learner.count


def test_of_several_ranks_none_keeps_more_than_the_others_know(
    base_model: Path, make_samples: MakeSamples, has_room: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One whose memory runs out cannot begin again by itself."""
    has_room(1000)
    monkeypatch.setattr(base, "rank_and_count", lambda: (0, 2))
    learner = Learner(base_model)
    learner.step(make_samples(0))
    assert learner.computed == 2 * learner.count


def test_when_memory_runs_out_layers_are_given_up_before_micro_batches_are_halved(
    base_model: Path, make_samples: MakeSamples, has_room: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fault is a stand-in for memory that is truly full."""
    samples = [sample for seed in range(4) for sample in make_samples(seed)]
    has_room(0)
    expected = (without := Learner(base_model)).step(samples)
    has_room(1000)
    learner = Learner(base_model)
    score, tried = learner._score, []

    def full(forest: Any) -> Any:
        tried.append((learner._budget, learner.layers.kept))
        if learner.layers.kept:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return score(forest)

    monkeypatch.setattr(learner, "_score", full)
    metrics = learner.step(samples)
    assert tried[:2] == [(learner._budget, learner.count), (learner._budget, 0)]
    assert metrics.micro_batch_tokens == expected.micro_batch_tokens
    for name, weight in trainable(learner.model).items():
        assert torch.equal(weight, trainable(without.model)[name])
    tried.clear()
    learner.step(samples)
    assert {kept for _, kept in tried} == {0}, "for good"


def test_memory_that_runs_out_while_versions_are_compared_gives_up_no_layers(
    base_model: Path, make_samples: MakeSamples, has_room: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    has_room(1000)
    learner = Learner(base_model)
    learner.step(make_samples(0))
    full = [torch.OutOfMemoryError("CUDA out of memory")]

    def once(*_: Any) -> None:
        if full:
            raise full.pop()

    monkeypatch.setattr(learner, "_check_version", once)
    learner.step(make_samples(0))
    assert (learner.layers.kept, learner.computed) == (learner.count, learner.count)


def test_how_many_layers_fit_follows_from_the_memory() -> None:
    card = LearnerConfig(device="cuda", gradient_checkpointing=True)
    assert layers_kept(card, QWEN_4B, 125 * GIB, 12_000) == 26
    assert layers_kept(card, QWEN_4B, 125 * GIB, 4_000) == 36
    assert layers_kept(card, QWEN_4B, 125 * GIB, 65_536) == 3
    assert layers_kept(card, QWEN_4B, 8 * GIB, 65_536) == 0
    assert layers_kept(card, QWEN_4B, None, 100) == 0
    assert layers_kept(card, {**QWEN_4B, "num_experts": 8}, 125 * GIB, 4_000) == 0


def test_what_pytorch_has_taken_and_does_not_use_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    card = SimpleNamespace(
        is_available=lambda: True,
        mem_get_info=lambda: (10, 100),
        memory_reserved=lambda: 60,
        memory_allocated=lambda: 25,
    )
    monkeypatch.setattr(torch, "cuda", card)
    assert free_memory("cuda") == 45
