"""Rotary positions by halves: the rotation of transformers and its gradient, in fewer passes over memory."""

from __future__ import annotations

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import make_base_model
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.llama import modeling_llama as llama

from trainer.learner.config import LearnerConfig
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.packed.layers.rotary import _rotated, rotate_by_halves

TOKENS, SIZE = 6, 8


class Operations(TorchDispatchMode):
    """Counts them by name."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[function.overloadpacket.__name__] += 1
        return function(*args, **(kwargs or {}))


def given(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Queries of four heads, keys of two, cosines and sines whose halves differ, and gradients of both results."""
    torch.manual_seed(4)
    queries, keys = (torch.randn(1, TOKENS, heads, SIZE).transpose(1, 2) for heads in (4, 2))
    angles = torch.randn(1, TOKENS, SIZE)
    gradients = torch.randn(1, 4, TOKENS, SIZE), torch.randn(1, 2, TOKENS, SIZE)
    return tuple(x.to(dtype) for x in (queries, keys, angles.cos(), angles.sin(), *gradients))


def computed(function: Any, queries: Any, keys: Any, cosine: Any, sine: Any, *gradients: Any) -> list[torch.Tensor]:
    """Both results, and both gradients."""
    inputs = [x.detach().clone().requires_grad_() for x in (queries, keys)]
    out = function(*inputs, cosine, sine)
    torch.autograd.backward(out, gradients)
    return [*(x.detach() for x in out), *(x.grad for x in inputs if x.grad is not None)]


def off(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found.double() - true).norm() / true.norm())


@pytest.mark.parametrize(("dtype", "within"), [(torch.float64, 1e-15), (torch.float32, 1e-6)])
def test_results_and_gradients_are_those_of_transformers(dtype: torch.dtype, within: float) -> None:
    wanted = computed(llama.apply_rotary_pos_emb, *given(dtype))
    for found, true in zip(computed(_rotated, *given(dtype)), wanted, strict=True):
        assert found.shape == true.shape
        assert found.stride() == true.stride(), "what follows finds it as it was"
        assert off(found, true) < within


def test_gradients_are_those_of_finite_differences() -> None:
    queries, keys, cosine, sine, *_ = given(torch.float64)
    inputs = queries.requires_grad_(), keys.requires_grad_()
    assert torch.autograd.gradcheck(lambda q, k: _rotated(q, k, cosine, sine), inputs)


def test_sixteen_bits_are_nearer_to_the_truth_than_by_transformers() -> None:
    half = given(torch.bfloat16)
    true = computed(llama.apply_rotary_pos_emb, *(x.double() for x in half))
    by_transformers, ours = (
        [off(found, one) for found, one in zip(computed(function, *half), true, strict=True)]
        for function in (llama.apply_rotary_pos_emb, _rotated)
    )
    assert all(mine < theirs for mine, theirs in zip(ours, by_transformers, strict=True))
    assert max(ours) < 2**-8


def test_mixed_precisions_and_another_place_for_heads_are_as_in_transformers() -> None:
    queries, keys, cosine, sine, *_ = given(torch.float32)
    mixed = (queries.bfloat16(), keys, cosine.bfloat16(), sine.bfloat16())
    for found, true in zip(_rotated(*mixed), llama.apply_rotary_pos_emb(*mixed), strict=True):
        assert found.dtype == true.dtype
        assert off(found, true.double()) < 2**-7
    turned = queries.transpose(1, 2), keys.transpose(1, 2), cosine, sine
    for found, true in zip(_rotated(*turned, 2), llama.apply_rotary_pos_emb(*turned, 2), strict=True):
        assert off(found, true.double()) < 1e-6


@pytest.mark.parametrize("family", ["gemma3_text", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"])
def test_every_layer_of_a_family_rotates_so_and_its_module_does_not(family: str, tmp_path: Path) -> None:
    learner = PackedLearner(make_base_model(tmp_path, family=family), LearnerConfig(lora_rank=8))
    causal = learner.model.get_base_model()
    attention = next(module for module in causal.modules() if type(module).__name__.endswith("Attention"))
    layers = causal.config.num_hidden_layers
    ids = torch.tensor([[1, 2, 3, 4]])
    with torch.no_grad(), Operations() as operations:
        ours = causal(input_ids=ids, use_cache=False).logits
    assert operations.seen["addcmul_"] == 4 * layers
    assert operations.seen["neg"] == 0
    for module in causal.modules():
        if type(module) is type(attention):
            del module.forward
    with torch.no_grad(), Operations() as operations:
        theirs = causal(input_ids=ids, use_cache=False).logits
    assert operations.seen["addcmul_"] == 0
    assert operations.seen["neg"] == 2 * layers
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_decorators_of_a_forward_stay_around_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the one by which transformers 5.24 takes an argument by its older name."""
    config = llama.LlamaConfig(
        vocab_size=8, hidden_size=32, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2
    )
    inner, calls = llama.LlamaAttention.forward, [0]

    @functools.wraps(inner)
    def counted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        return inner(*args, **kwargs)

    monkeypatch.setattr(llama.LlamaAttention, "forward", counted)
    model = llama.LlamaForCausalLM(config)
    rotate_by_halves(model)
    with torch.no_grad(), Operations() as operations:
        model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
    assert (operations.seen["addcmul_"], calls) == (4, [1])


def test_what_rotates_otherwise_stays_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Phi3Config, Phi3ForCausalLM
    from transformers.models.phi3 import modeling_phi3 as phi3

    config = Phi3Config(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = Phi3ForCausalLM(config)
    rotate_by_halves(model)
    assert not any("forward" in vars(module) for module in model.modules()), "of each head a part, the rest passed on"
    monkeypatch.setattr(phi3, "apply_rotary_pos_emb", llama.apply_rotary_pos_emb)
    rotate_by_halves(model)
    assert not any("forward" in vars(module) for module in model.modules()), "not of the module that looks it up"
