"""Memory that runs out: what the failed step held is free before anyone needs it, and the error says what to lower."""

from __future__ import annotations

import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from arttrace.system.errors import TrainingError
from tests.trainer.learner.test_agreement import scored
from trainer.gateway.status import EngineStatus
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import load_policy
from trainer.learner.stale_adapter.looked_at import LEAST_TARGETS
from trainer.learner.trl.engine import TrlLearner
from trainer.serving import GatewayStatus
from trainer.step.engines import engines_asleep
from trainer.step.retry import no_retry

MakeSamples = Callable[[int], list[Sample]]

FULL = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


class SleepyGateway:
    """Stands in for one whose engines sleep; `at_waking` is what it looks at before they wake."""

    def __init__(self, at_waking: Callable[[], None]) -> None:
        self._at_waking = at_waking

    def status(self) -> GatewayStatus:
        return GatewayStatus("policy", "policy@0", 0, "", {}, EngineStatus("ready", None, 0), sleeps=True)

    def fall_asleep(self) -> Callable[[], None]:
        return self._at_waking


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
@pytest.mark.parametrize("fault", [FULL, RuntimeError("a kernel failed"), KeyboardInterrupt()])
def test_a_failed_step_holds_no_activations_when_the_engines_wake(
    base_model: Path,
    make_samples: MakeSamples,
    monkeypatch: pytest.MonkeyPatch,
    engine: type[BaseLearner],
    fault: BaseException,
) -> None:
    """The fault is a stand-in for memory that is truly full: it comes where the loss is summed up."""
    learner = engine(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))
    held: list[weakref.ref[Any]] = []

    def fail(*_: Any, **__: Any) -> None:
        activations = torch.zeros(3)
        held.append(weakref.ref(activations))
        raise fault

    monkeypatch.setattr(learner.model.get_output_embeddings(), "forward", fail)
    alive: list[bool] = []
    gateway = SleepyGateway(lambda: alive.extend(ref() is not None for ref in held))
    with pytest.raises((TrainingError, type(fault))), engines_asleep(gateway, no_retry):
        learner.step(make_samples(1))
    assert alive
    assert not any(alive)


def test_an_error_of_any_kind_inside_holds_nothing_when_the_engines_wake() -> None:
    held: list[weakref.ref[Any]] = []

    def inner() -> None:
        activations = torch.zeros(3)
        held.append(weakref.ref(activations))
        raise ValueError("the first")

    def outer() -> None:
        try:
            inner()
        except ValueError as error:
            raise LookupError("the second") from error

    alive: list[bool] = []
    gateway = SleepyGateway(lambda: alive.extend(ref() is not None for ref in held))
    with pytest.raises(LookupError, match="the second"), engines_asleep(gateway, no_retry):
        outer()
    assert alive == [False]


def test_a_base_model_that_does_not_fit_says_what_to_lower(base_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM

    def full(*_: Any, **__: Any) -> None:
        raise FULL

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", full)
    with pytest.raises(TrainingError, match="needs more memory than there is") as raised:
        load_policy(base_model, LearnerConfig(lora_rank=8))
    assert "--engine-memory-share" in raised.value.hint


def test_damaged_weights_are_named(base_model: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "base"
    shutil.copytree(base_model, damaged)
    weights = damaged / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(TrainingError, match="cannot be loaded"):
        load_policy(damaged, LearnerConfig(lora_rank=8))


@pytest.mark.filterwarnings("error::FutureWarning")  # a name that transformers gives up would be reported to the user
@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
def test_checkpointed_layers_are_computed_again_by_either_engine(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    found = []
    for checkpointing in (False, True):
        config = LearnerConfig(max_logprob_difference=1e9, gradient_checkpointing=checkpointing)
        learner, calls = engine(base_model, config), [0]
        for name, module in learner.model.named_modules():
            if name.endswith("input_layernorm"):
                module.register_forward_hook(lambda *_, calls=calls: calls.__setitem__(0, calls[0] + 1))
        learner.step(make_samples(0))
        found.append(calls[0])
    assert found[1] == 2 * found[0] > 0


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
@pytest.mark.parametrize("times", [1, 2])
def test_a_dear_look_for_which_memory_runs_out_is_done_in_smaller_parts(
    engine: type[BaseLearner], base_model: Path, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """It had spent what was saved for it, so that the step was taken without a look at the version of its runs."""
    learner = engine(base_model, LearnerConfig(lora_rank=8, learning_rate=1e-4))
    learner.step(scored(learner, "p@0"), current_version="p@0")
    samples = scored(learner, "p@1", runs=48, length=40, context=39, seed=1)
    budget, compared = learner._budget, learner._compared
    budgets: list[int] = []

    def failing(*given: Any) -> Any:
        budgets.append(learner._budget)
        if len(budgets) <= times:
            raise FULL
        return compared(*given)

    monkeypatch.setattr(learner, "_compared", failing)
    metrics = learner.step(samples, current_version="p@1")
    assert metrics.checked_tokens == LEAST_TARGETS
    assert budgets[: times + 1] == [budget // 2**n for n in range(times + 1)]
    assert metrics.micro_batch_tokens == budget // 2**times
