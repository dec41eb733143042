"""Layers whose parts are compiled, or Liger's: the same numbers, or a refusal that names what is missing."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from arttrace.system.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.machine.card import placed
from trainer.learner.machine.fused import fuse_layers
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import trainable

LOOSE = LearnerConfig(lora_rank=8, max_logprob_difference=1e9, learning_rate=1e-2)


@pytest.fixture
def rotary() -> Iterator[ModuleType]:
    """The module in which Qwen3 finds its rotary positions, as it was afterwards."""
    from transformers.models.qwen3 import modeling_qwen3 as found

    before = found.apply_rotary_pos_emb
    yield found
    found.apply_rotary_pos_emb = before
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "more",
    [{}, pytest.param({"gradient_checkpointing": True, "kl_weight": 0.1}, marks=pytest.mark.full)],
    ids=["plain", "with a reference, layers computed again"],
)
def test_compiled_layers_make_the_same_step(
    base_model: Path, make_samples: Callable[[int], list[Sample]], rotary: ModuleType, more: dict[str, Any]
) -> None:
    config = dataclasses.replace(LOOSE, **more)
    plain = PackedLearner(base_model, config)
    wanted = [plain.step(make_samples(seed)).loss for seed in range(2)]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()  # of tests before
    compiled = PackedLearner(base_model, dataclasses.replace(config, torch_compile=True))
    assert hasattr(rotary.apply_rotary_pos_emb, "_torchdynamo_orig_callable")
    found = [compiled.step(make_samples(seed)).loss for seed in range(2)]
    assert found == pytest.approx(wanted, abs=1e-5)
    for name, weight in trainable(plain.model).items():
        assert torch.allclose(weight, trainable(compiled.model)[name], atol=2e-4), name
    counts = torch._dynamo.utils.counters
    assert not counts["graph_break"]
    assert counts["stats"]["unique_graphs"] <= 12, "each kind of part once, not once a layer"


def test_nothing_is_compiled_unasked(base_model: Path, rotary: ModuleType) -> None:
    before = rotary.apply_rotary_pos_emb
    learner = PackedLearner(base_model, LOOSE)
    assert not any(module._compiled_call_impl for module in learner.model.modules())
    assert rotary.apply_rotary_pos_emb is before


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_liger_kernel": True}, "CUDA device"),
        ({"use_liger_kernel": True, "torch_compile": True, "device": "cuda"}, "the same parts"),
        ({"loader": "unsloth", "torch_compile": True}, "Unsloth puts kernels"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(TrainingError, match=message):
        placed(dataclasses.replace(LOOSE, **fields))


def test_liger_is_asked_for_these_parts_and_no_other(base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = dataclasses.replace(LOOSE, use_liger_kernel=True, device="cuda").checked()
    causal = PackedLearner(base_model, LOOSE).model.get_base_model()
    monkeypatch.setitem(sys.modules, "liger_kernel", None)
    with pytest.raises(TrainingError, match="cannot be used here") as error:
        fuse_layers(causal, config)
    assert "pip install liger-kernel" in (error.value.hint or "")
    asked: dict[str, Any] = {}
    stand_in = ModuleType("stand_in_liger")
    stand_in.MODEL_TYPE_TO_APPLY_LIGER_FN = {"llama": None}  # type: ignore[attr-defined]
    stand_in._apply_liger_kernel_to_instance = lambda **given: asked.update(given)  # type: ignore[attr-defined]
    monkeypatch.setattr("trainer.learner.machine.fused._liger", lambda: stand_in)
    with pytest.raises(TrainingError, match="no kernels for Qwen3ForCausalLM"):
        fuse_layers(causal, config)
    stand_in.MODEL_TYPE_TO_APPLY_LIGER_FN["qwen3"] = None  # type: ignore[attr-defined]
    fuse_layers(causal, config)
    assert asked.pop("model") is causal
    assert {name for name, wanted in asked.items() if wanted} == {"rope", "rms_norm", "swiglu", "geglu"}
