"""RMS norms by PyTorch's one function: the numbers of transformers, at fewer passes over memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import make_base_model
from torch.nn import functional
from transformers.models.gemma.modeling_gemma import GemmaRMSNorm
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssRMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from trainer.learner.config import LearnerConfig
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.packed.layers.norms import norm_in_one_kernel

FORMS = [LlamaRMSNorm, GptOssRMSNorm, GemmaRMSNorm]
SHAPE = (3, 7, 48)


def norm_of(kind: type, dtype: torch.dtype) -> Any:
    """With weights that are not all alike, frozen as those of a base model."""
    torch.manual_seed(3)
    norm = kind(SHAPE[-1])
    with torch.no_grad():
        norm.weight.add_(torch.randn(SHAPE[-1]))
    return norm.to(dtype).requires_grad_(False)


def computed(norm: Any, x: torch.Tensor, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The output, and the gradient of the input."""
    x = x.clone().requires_grad_()
    out = norm(x)
    out.backward(gradient)
    assert x.grad is not None
    return out.detach(), x.grad


def off(found: torch.Tensor, true: torch.Tensor) -> float:
    return float((found.double() - true).norm() / true.norm())


@pytest.fixture
def normed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[torch.dtype, bool]]:
    """Calls of PyTorch's function: what they were given, and whether autocast had its way with it."""
    calls: list[tuple[torch.dtype, bool]] = []
    usual = functional.rms_norm

    def noted(x: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        calls.append((x.dtype, torch.is_autocast_enabled(x.device.type)))
        return usual(x, *given, **named)

    monkeypatch.setattr(functional, "rms_norm", noted)
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", FORMS)
def test_numbers_are_those_of_transformers(
    kind: type, dtype: torch.dtype, normed: list[tuple[torch.dtype, bool]]
) -> None:
    norm = norm_of(kind, dtype)
    x, gradient = (3 * torch.randn(SHAPE, dtype=dtype) for _ in range(2))
    wanted = computed(norm, x, gradient)
    norm_in_one_kernel(norm)
    found = computed(norm, x, gradient)
    assert len(normed) == 1
    assert torch.equal(found[0], wanted[0])
    assert found[1].dtype == dtype
    within = 1e-6 if dtype == torch.float32 else 2**-8
    assert off(found[1], wanted[1].double()) < within
    exact = norm_of(kind, dtype).double()
    if kind is not GemmaRMSNorm:  # whose own formula is in float32
        norm_in_one_kernel(exact)
    true = computed(exact, x.double(), gradient.double())
    assert off(found[0], true[0]) < within
    assert off(found[1], true[1]) < within


@pytest.mark.parametrize("kind", FORMS)
def test_gradients_are_those_of_finite_differences(kind: type) -> None:
    norm = norm_of(kind, torch.float64)
    norm_in_one_kernel(norm)
    x = torch.randn(2, SHAPE[-1], dtype=torch.float64, requires_grad=True)
    if kind is GemmaRMSNorm:
        assert torch.autograd.gradcheck(norm, (x,), eps=1e-2, atol=1e-3)
    else:
        assert torch.autograd.gradcheck(norm, (x,))


@pytest.mark.parametrize("kind", FORMS)
def test_autocast_does_not_widen_what_a_norm_gives(kind: type, normed: list[tuple[torch.dtype, bool]]) -> None:
    """On CUDA it would: rms_norm is among the functions that it computes in float32."""
    norm = norm_of(kind, torch.bfloat16)
    norm_in_one_kernel(norm)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = norm(torch.randn(SHAPE, dtype=torch.bfloat16))
    assert out.dtype == torch.bfloat16
    assert normed == [(torch.float32 if kind is GemmaRMSNorm else torch.bfloat16, False)]


@pytest.mark.parametrize("family", ["gemma3_text", "gpt_oss", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"])
def test_every_norm_of_a_family_is_reached(family: str, tmp_path: Path, normed: list[tuple[torch.dtype, bool]]) -> None:
    learner = PackedLearner(make_base_model(tmp_path, family=family), LearnerConfig(lora_rank=8))
    norms = [module for module in learner.model.modules() if type(module).__name__.endswith("RMSNorm")]
    assert norms
    normed.clear()
    with torch.no_grad():
        for norm in norms:
            norm(torch.randn(2, norm.weight.shape[0]))
    assert len(normed) == len(norms)


class OtherEpsilon(LlamaRMSNorm):  # type: ignore[misc]
    """Not what its base class computes."""

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states + 1.0)  # type: ignore[no-any-return]


class OtherMean(GemmaRMSNorm):  # type: ignore[misc]
    """Its forward is Gemma's, what that calls is not."""

    def _norm(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + self.eps)


def taken_over(norm: Any) -> None:
    norm.forward = lambda x: 2 * type(norm).forward(norm, x)


@pytest.mark.parametrize(
    ("kind", "change"),
    [(OtherEpsilon, None), (OtherMean, None), (torch.nn.RMSNorm, None), (LlamaRMSNorm, taken_over)],
)
def test_what_is_not_known_stays_as_it_is(
    kind: type, change: Callable[[Any], None] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    norm = norm_of(kind, torch.float32)
    if change:
        change(norm)
    x = torch.randn(SHAPE)
    wanted = norm(x)
    before = dict(vars(norm))
    norm_in_one_kernel(norm)
    assert vars(norm) == before
    assert torch.equal(norm(x), wanted)


def test_weights_in_another_precision_are_left_to_transformers(recwarn: pytest.WarningsRecorder) -> None:
    norm = norm_of(GptOssRMSNorm, torch.float32)
    x = torch.randn(SHAPE, dtype=torch.bfloat16)
    wanted = norm(x)
    norm_in_one_kernel(norm)
    assert torch.equal(norm(x), wanted)
    assert not recwarn.list
