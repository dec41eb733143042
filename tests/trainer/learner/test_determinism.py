"""Steps that repeat themselves bit for bit, where that is asked for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_model import make_base_model

from arttrace.system.errors import TrainingError
from benchmarks.card.torch_engine import sampled_runs
from trainer.learner import LearnerConfig, make_learner
from trainer.learner.machine.determinism import deterministic, prepare_determinism
from trainer.learner.policy_model import trainable
from trainer.offline.plan import OfflinePlan
from trainer.offline.render import TrainingExample
from trainer.offline.step import load_tokenizer
from trainer.offline.train import OfflineLearner

ASKED = LearnerConfig(lora_rank=8, full_determinism=True, max_logprob_difference=1e9)


@pytest.fixture(scope="module")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a tokenizer."""
    return make_base_model(tmp_path_factory.mktemp("base") / "tiny")


def runs() -> list[Any]:
    rows = [[*range(8), *range(70 * number, 70 * number + 8)] for number in range(4)]
    return sampled_runs(rows, 8, [[-9.0] * 8] * 4, "policy@9")


def noting(optimizer: torch.optim.Optimizer) -> list[bool]:
    """Whether PyTorch's switch was on, at each step of the optimizer from now on."""
    found: list[bool] = []
    optimizer.register_step_pre_hook(lambda *_: found.append(torch.are_deterministic_algorithms_enabled()))
    return found


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_a_step_takes_deterministic_kernels_and_what_follows_takes_any(engine: Any, base_model: Path) -> None:
    weights = []
    for _ in range(2):
        learner: Any = make_learner(base_model, LearnerConfig(**{**vars(ASKED), "engine": engine}))
        seen = noting(learner.optimizer)
        learner.step(runs())
        assert seen == [True]
        assert not torch.are_deterministic_algorithms_enabled()
        weights.append(trainable(learner.model))
    assert all(torch.equal(one, weights[1][name]) for name, one in weights[0].items())


def test_imitation_takes_them_too(base_model: Path) -> None:
    learner = OfflineLearner(base_model, ASKED)
    seen = noting(learner.optimizer)
    example = TrainingExample((5, 6, 7, 8), (False, False, True, True))
    learner.train(OfflinePlan("sft", sft=(example,)), load_tokenizer(base_model))
    assert seen == [True]


def test_what_cannot_repeat_itself_is_refused_and_the_weights_are_left(
    base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner: Any = make_learner(base_model, ASKED)
    before = {name: one.detach().clone() for name, one in trainable(learner.model).items()}

    def unordered(*_: Any) -> Any:
        return torch.zeros(3).put_(torch.tensor([0]), torch.ones(1))

    monkeypatch.setattr(learner, "_train", unordered)
    with pytest.raises(TrainingError, match=r"exactly: put_ does not have a deterministic implementation") as refused:
        learner.step(runs())
    assert "--full-determinism" in str(refused.value.hint)
    assert not torch.are_deterministic_algorithms_enabled()
    assert all(torch.equal(one, before[name]) for name, one in trainable(learner.model).items())


def test_an_error_of_another_kind_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="another"), deterministic(ASKED):
        raise RuntimeError("another")


def test_cublas_is_given_a_workspace_of_a_fixed_size_on_a_card_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that what is set below is taken back, too
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    for config in (LearnerConfig(device="cuda"), ASKED):
        prepare_determinism(config)
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    prepare_determinism(LearnerConfig(device="cuda", full_determinism=True))
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"


@pytest.mark.parametrize(
    ("others", "named"), [({"loader": "unsloth"}, "Unsloth"), ({"use_liger_kernel": True}, "Liger")]
)
def test_kernels_that_promise_nothing_are_refused(others: dict[str, Any], named: str) -> None:
    with pytest.raises(TrainingError, match=f"{named} does not say"):
        LearnerConfig(full_determinism=True, **others).checked()
