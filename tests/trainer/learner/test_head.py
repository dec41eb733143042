"""The output head in chunks and by TRL's kernel, against logits all at once; in both engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from float64_reference import make_learner

from trainer.learner.interface import Sample
from trainer.learner.packed import head as heads
from trainer.learner.packed.head import Head, log_probabilities
from trainer.offline.torch_head import TorchHead, use_on_cpus


@pytest.mark.parametrize("softcap", [None, 3.0])
@pytest.mark.parametrize("kernel", [None, TorchHead], ids=["chunks", "stand-in for TRL's kernel"])
@pytest.mark.parametrize("temperatures", [(1.0,), (0.5, 1.0, 1.5)])
def test_the_numbers_and_gradients_are_those_of_all_logits(
    temperatures: tuple[float, ...], kernel: Any, softcap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "CHUNK", 7)
    torch.manual_seed(0)
    module = torch.nn.Linear(8, 50, bias=True).requires_grad_(False)
    hidden = torch.randn(20, 8, requires_grad=True)
    ids, heat = torch.randint(50, (20,)), torch.tensor([temperatures[n % len(temperatures)] for n in range(20)])
    logps, entropies = log_probabilities(Head(module, softcap, kernel), hidden, ids, heat)
    assert not entropies.requires_grad

    logits = module(hidden)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    wanted = torch.log_softmax(logits / heat[:, None], dim=-1)
    torch.testing.assert_close(logps, wanted[torch.arange(20), ids])
    torch.testing.assert_close(entropies, -(wanted.exp() * wanted).sum(-1).detach())
    weights = torch.randn(20)
    (got,) = torch.autograd.grad((logps * weights).sum(), hidden)
    torch.testing.assert_close(got, torch.autograd.grad((wanted[torch.arange(20), ids] * weights).sum(), hidden)[0])


def test_on_a_cpu_trls_trainers_have_a_head_though_triton_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's builds for CUDA bring Triton, and TRL its kernel, which no CPU runs."""
    from trl.trainer import utils

    def apply(*_given: Any) -> Any:
        raise RuntimeError("0 active drivers ([]). There should only be one.")

    monkeypatch.setattr(utils, "_ChunkedLogProbFunction", SimpleNamespace(apply=apply))
    use_on_cpus()
    hidden, weight, ids = torch.randn(3, 4), torch.randn(9, 4), torch.tensor([1, 5, 8])
    logps, *_ = utils._ChunkedLogProbFunction.apply(hidden, weight, None, ids, 1.0, 2, None, 1.0, ())
    wanted = torch.log_softmax(hidden @ weight.t(), dim=-1)
    torch.testing.assert_close(logps, wanted[torch.arange(3), ids])
    with pytest.raises(RuntimeError, match="active drivers"):
        utils._ChunkedLogProbFunction.apply(hidden.to("meta"), weight, None, ids, 1.0, 2, None, 1.0, ())


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_no_engine_holds_the_logits_of_all_its_targets(
    base_model: Path, make_samples: Callable[[int], list[Sample]], engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heads, "CHUNK", 5)
    learner, _ = make_learner(base_model, engine, micro_batch_tokens=10_000)
    most: list[int] = []
    learner.model.get_output_embeddings().register_forward_hook(
        lambda _module, _given, logits: most.append(logits.numel() // logits.shape[-1])
    )
    assert learner.step(make_samples(1)).trained_tokens > 30
    assert max(most) == 5


def test_a_model_that_does_more_to_its_logits_is_not_taken_for_its_head() -> None:
    module = torch.nn.Linear(4, 9)
    causal = SimpleNamespace(
        config=SimpleNamespace(get_text_config=lambda: SimpleNamespace()), get_output_embeddings=lambda: module
    )
    hidden = torch.randn(1, 3, 4)
    head = Head.of(causal)
    assert head.kernel is None, "no kernel on a CPU"
    assert head.gives(module(hidden), hidden)
    assert not head.gives(module(hidden) * 0.5, hidden)
