"""A version of a model in bfloat16: what engine and learner multiply by is handed over, and nothing is lost by it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from arttrace.records.policy import PolicyStep
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed import engine as engine_module
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.packed.layers import lora
from trainer.learner.policy_model import trainable
from trainer.learner.samples import plan_step
from trainer.learner.state import Weights
from trainer.learner.trl.engine import TrlLearner
from trainer.policies.checkpoints import Checkpoints
from trainer.policies.tensor_file import write_tensors

HALF = LearnerConfig(learning_rate=1e-3, lora_rank=8, max_logprob_difference=1e9, dtype="bfloat16")
ADAPTER = "adapter_model.safetensors"

MakeSamples = Callable[[int], list[Sample]]


@pytest.fixture(params=[PackedLearner, TrlLearner])
def engine(request: pytest.FixtureRequest) -> Any:
    return request.param


def weights(learner: BaseLearner) -> dict[str, torch.Tensor]:
    return {name.replace(".default.", "."): p.detach().clone() for name, p in trainable(learner.model).items()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(tensor, right[name]) for name, tensor in left.items())


def test_training_goes_on_from_the_bit_it_was_left_at(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    straight = engine(base_model, HALF)
    for seed in range(4):
        straight.step(make_samples(seed))
    first = engine(base_model, HALF)
    for seed in range(2):
        first.step(make_samples(seed))
    first.save(tmp_path)
    handed_over = load_file(tmp_path / ADAPTER)
    assert {tensor.dtype for tensor in handed_over.values()} == {torch.bfloat16}
    second = engine(base_model, dataclasses.replace(HALF, seed=99))
    second.load(tmp_path)
    assert same(weights(second), weights(first))
    assert not same(weights(second), {name: tensor.float() for name, tensor in handed_over.items()})
    for seed in range(2, 4):
        second.step(make_samples(seed))
    assert same(weights(second), weights(straight))


def test_beside_a_base_model_in_4_bits_the_lora_stays_in_float32(
    engine: type[BaseLearner], base_model: Path, make_samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mark stands in for the bits, which need a card: it is what TRL's trainers look at."""
    monkeypatch.setattr("transformers.PreTrainedModel.is_loaded_in_4bit", True, raising=False)
    learner = engine(base_model, dataclasses.replace(HALF, learning_rate=5e-5))
    before = weights(learner)
    learner.step(make_samples(0))
    learner.step(make_samples(1))
    after = weights(learner)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32}
    moved = [float((tensor != before[name]).float().mean()) for name, tensor in after.items() if "lora_A" in name]
    assert min(moved) > 0.5, "in bfloat16 most stay where they are"


def test_the_learner_computes_with_what_was_handed_over(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    learner = engine(base_model, HALF)
    learner.step(make_samples(0))
    learner.save_adapter(tmp_path)
    rows = plan_step(make_samples(1), HALF).rows
    mine = learner._compared(rows, "p@0")
    served = Weights.of_version(learner.model, tmp_path)
    assert served is not None
    kept = weights(learner)
    served.restore()
    assert not same(weights(learner), kept), "they are rounded"
    assert learner._compared(rows, "p@0") == mine


def test_a_version_that_lost_its_state_goes_on_from_what_was_served(
    base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    learner = PackedLearner(base_model, HALF)
    checkpoints = Checkpoints(tmp_path, "p")
    for step in (1, 2):
        learner.step(make_samples(step))
        checkpoints.write(step, learner.save, PolicyStep("p", step, ""))
    checkpoints.drop_states([1])
    again = PackedLearner(base_model, HALF)
    again.load(checkpoints.path(1))
    served = load_file(checkpoints.path(1) / ADAPTER)
    assert same(weights(again), {name: tensor.float() for name, tensor in served.items()})


def test_a_version_whose_adapter_is_whole_in_float32_is_read_as_ever(
    base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    learner = PackedLearner(base_model, HALF)
    learner.step(make_samples(0))
    learner.save(tmp_path)
    state = torch.load(tmp_path / "trainer_state.pt", weights_only=True)
    save_file(state.pop("weights"), tmp_path / ADAPTER)
    torch.save(state, tmp_path / "trainer_state.pt")
    again = PackedLearner(base_model, dataclasses.replace(HALF, seed=99))
    again.load(tmp_path)
    assert same(weights(again), weights(learner))


def test_an_adapter_beside_float32_is_written_in_it(base_model: Path, tmp_path: Path) -> None:
    PackedLearner(base_model, dataclasses.replace(HALF, dtype="float32")).save(tmp_path)
    assert {tensor.dtype for tensor in load_file(tmp_path / ADAPTER).values()} == {torch.float32}
    assert "weights" not in torch.load(tmp_path / "trainer_state.pt", weights_only=True)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_tensors_are_written_as_the_library_reads_them(tmp_path: Path, dtype: torch.dtype | None) -> None:
    given = {"b": torch.randn(3, 5).t(), "a": torch.randn(7, dtype=torch.float64), "none": torch.zeros(0, 4)}
    write_tensors(tmp_path / "x.safetensors", given, dtype)
    found = load_file(tmp_path / "x.safetensors")
    assert same(found, {name: tensor.to(dtype or tensor.dtype) for name, tensor in given.items()})


@pytest.mark.parametrize("part", [1, 24, 1 << 20])
def test_parts_of_every_size_make_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: int) -> None:
    monkeypatch.setattr("trainer.policies.tensor_file._PART", part)
    kinds = (torch.float32, torch.float64, torch.bfloat16, torch.float32)
    given = {f"t{n}": torch.randn(3, 2 * n + 1, dtype=kind) for n, kind in enumerate(kinds)}
    write_tensors(tmp_path / "x.safetensors", given)
    assert same(load_file(tmp_path / "x.safetensors"), given)


@pytest.mark.parametrize("forward", ["the engine's", "PEFT's"])
def test_a_layer_keeps_its_input_once_for_all_the_modules_that_take_it(
    base_model: Path, make_samples: MakeSamples, forward: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if forward == "PEFT's":
        monkeypatch.setattr(engine_module, "add_within_products", lambda model: None)
    learner = PackedLearner(base_model, HALF)
    taken: dict[str, set[tuple[torch.dtype, int]]] = {}
    current: list[str] = []
    for name, module in learner.model.named_modules():
        if hasattr(module, "lora_A") and not name.endswith(("o_proj", "down_proj")):
            part = name.partition(".self_attn.")[0] if ".self_attn." in name else name.partition(".mlp.")[0] + ".mlp"
            module.lora_A["default"].register_forward_pre_hook(partial(_remember, taken.setdefault(part, set())))
            module.register_forward_pre_hook(partial(lambda part, *_: current.append(part), part))
    multiplied = lora._Prepared.apply

    def remembered(x: torch.Tensor, *others: Any) -> Any:
        if current:
            taken[current.pop()].add((x.dtype, x.data_ptr()))
        return multiplied(x, *others)

    monkeypatch.setattr(lora._Prepared, "apply", remembered)
    learner.step(make_samples(0))
    assert all(len(inputs) == 1 for inputs in taken.values()), taken
    assert {dtype for inputs in taken.values() for dtype, _ in inputs} == {torch.bfloat16}


def _remember(inputs: set[tuple[torch.dtype, int]], module: Any, given: tuple[torch.Tensor]) -> None:
    inputs.add((given[0].dtype, given[0].data_ptr()))
