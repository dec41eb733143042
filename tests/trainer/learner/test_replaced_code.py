"""Libraries that put their own code into a model or a trainer, as Unsloth does on CUDA: refused by name, or not used.

The replacements here are stand-ins: Unsloth's own need a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from float64_reference import make_learner

from arttrace.system.errors import TrainingError
from trainer.learner.interface import Sample
from trainer.learner.packed.kernels import flex
from trainer.learner.packed.layout import Layout
from trainer.learner.trl import trainer as trl_trainer


def test_attention_that_asks_nobody_is_refused_by_its_name(base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention

    def forward(self: Any, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return self.o_proj(self.q_proj(hidden_states)), None

    forward.__module__ = "unsloth.models.qwen3"
    monkeypatch.setattr(Qwen3Attention, "forward", forward)
    with pytest.raises(TrainingError, match=r"Unsloth .* Qwen3Attention, which knows no forest") as raised:
        make_learner(base_model)
    assert "--loader transformers" in str(raised.value.hint)


def test_positions_that_are_counted_anew_are_noticed(base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3RotaryEmbedding

    whole = Qwen3RotaryEmbedding.forward

    def forward(self: Any, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        return whole(self, x, torch.arange(position_ids.shape[1])[None])

    monkeypatch.setattr(Qwen3RotaryEmbedding, "forward", forward)
    for dtype in ("float64", "bfloat16"):
        with pytest.raises(TrainingError, match="share a beginning come out otherwise than alone"):
            make_learner(base_model, dtype=dtype)


@pytest.mark.usefixtures("on_a_cpu")
def test_a_kernel_that_computes_something_else_is_noticed_before_a_step(
    base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is that of CUDA by PyTorch's formula, with the tokens that a real forest has."""
    monkeypatch.setattr("trainer.learner.packed.engine.usual_kernel", lambda _: "flex")
    monkeypatch.setattr("trainer.learner.packed.attention.LEAST_TOKENS", 128)
    make_learner(base_model, dtype="bfloat16")
    whole = flex.block_mask

    def without_the_beginning(layout: Layout, window: int | None) -> Any:
        return whole(layout, 20)

    monkeypatch.setattr(flex, "block_mask", without_the_beginning)
    with pytest.raises(TrainingError, match="share a beginning come out otherwise than alone"):
        make_learner(base_model, dtype="bfloat16")


def test_a_last_norm_in_full_precision_is_no_reason_to_refuse(
    base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers.models.qwen3.modeling_qwen3 import Qwen3Model

    whole = Qwen3Model.forward

    def forward(self: Any, *arguments: Any, **options: Any) -> Any:
        # The noise of bfloat16 under a hidden state that is float32, as libraries keep or upcast a norm's weights.
        given = whole(self, *arguments, **options)
        state = given.last_hidden_state.float()
        given.last_hidden_state = state * (1 + 0.005 * torch.sin(1e3 * torch.arange(state.shape[1]))[None, :, None])
        return given

    monkeypatch.setattr(Qwen3Model, "forward", forward)
    monkeypatch.setattr("trainer.learner.packed.head.Head.gives", lambda *_: True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        make_learner(base_model, dtype="bfloat16")


def test_a_loss_put_into_trls_trainer_is_not_taken(
    base_model: Path, make_samples: Callable[[int], list[Sample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, _ = make_learner(base_model, "trl")
    loss = wanted.step(make_samples(1)).loss
    monkeypatch.setattr(
        trl_trainer._trl.GRPOTrainer,
        "compute_loss",
        lambda self, model, inputs, *_, **__: torch.zeros(()) * inputs["x"],
    )
    learner, _ = make_learner(base_model, "trl")
    assert learner.step(make_samples(1)).loss == loss


def test_a_loss_past_the_gate_ends_the_step(
    base_model: Path, make_samples: Callable[[int], list[Sample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def bypass(self: Any, model: Any, inputs: Any, *_: Any, **__: Any) -> torch.Tensor:
        return sum(p.sum() for p in model.parameters() if p.requires_grad)  # type: ignore[return-value]

    monkeypatch.setattr(trl_trainer.GivenTrajectoriesTrainer, "compute_loss", bypass)
    learner, _ = make_learner(base_model, "trl")
    before = {name: p.detach().clone() for name, p in learner.model.named_parameters() if p.requires_grad}
    with pytest.raises(TrainingError, match="past the check"):
        learner.step(make_samples(1))
    for name, parameter in learner.model.named_parameters():
        if name in before:
            assert torch.equal(parameter, before[name])
