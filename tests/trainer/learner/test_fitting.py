"""What machine and base model decide where the config leaves it open, and what happens when it was too much."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import save_file

from arttrace.system.errors import TrainingError
from trainer.learner import make_learner
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import NoRoom, Sample
from trainer.learner.machine import memory
from trainer.learner.machine.fitting import choices, fitted, refuse_experts
from trainer.learner.machine.needs import weight_bytes
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import trainable
from trainer.learner.tally import StepTally

QWEN_4B = {"num_hidden_layers": 36, "hidden_size": 2560, "intermediate_size": 9728}
QWEN_30B_A3B = {"num_hidden_layers": 48, "hidden_size": 2048, "intermediate_size": 6144, "num_experts": 128}
GIB = 1 << 30


def test_a_cpu_keeps_full_precision_and_a_card_takes_that_of_the_engine() -> None:
    cpu = fitted(LearnerConfig(), QWEN_4B, 16 * GIB)
    card = fitted(LearnerConfig(device="cuda"), QWEN_4B, 100 * GIB)
    assert (cpu.dtype, cpu.gradient_checkpointing, cpu.lora_targets) == ("float32", False, "all-linear")
    assert (card.dtype, card.gradient_checkpointing, card.lora_targets) == ("bfloat16", True, "all-linear")
    assert (LearnerConfig().logprob_bound, LearnerConfig(device="cuda").logprob_bound) == (0.01, 1.0)


def test_a_ratio_that_rounding_would_clip_starts_from_the_policy_itself() -> None:
    card = LearnerConfig(device="cuda", loss="gspo")
    named = {one.name: one.value for one in choices(card, QWEN_4B, 100 * GIB)}
    assert (named["importance"], fitted(card, QWEN_4B, 100 * GIB).correction) == ("token_truncate", "token_truncate")
    others = {"dtype": "float32"}, {"loss": "dapo"}, {"importance": "clip"}, {"engine": "trl"}
    for other in others:
        config = dataclasses.replace(card, **other)
        assert config.correction == "clip"
        assert "importance" not in {one.name for one in choices(config, QWEN_4B, 100 * GIB)}


def test_micro_batches_fill_the_memory_that_is_free() -> None:
    card = LearnerConfig(device="cuda")
    sizes = [fitted(card, QWEN_4B, free * GIB).micro_batch_tokens for free in (1, 16, 40, 120)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 2048
    assert sizes[-1] == 65_536
    assert fitted(LearnerConfig(), {"num_hidden_layers": 2, "hidden_size": 64}, 8 * GIB).micro_batch_tokens == 16_384
    assert fitted(LearnerConfig(), QWEN_4B, None).micro_batch_tokens == 2048
    assert fitted(LearnerConfig(micro_batch_tokens=100), QWEN_4B, 8 * GIB).micro_batch_tokens == 100


@pytest.mark.parametrize(
    ("of_process", "group", "files"),
    [
        ("0::/a/b", "a", ("memory.max", "memory.current", "")),
        ("4:memory:/docker/of-the-host", "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")),
    ],
    ids=["version 2, of a parent", "version 1, in a container"],
)
def test_free_memory_is_what_the_limit_of_a_container_leaves(
    of_process: str, group: str, files: tuple[str, str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel's files are stand-ins: a test can put itself into no container."""
    (limit, used, before), top = files, tmp_path / "sys" / "fs" / "cgroup"
    (tmp_path / "proc" / "self").mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(f"MemTotal:  {64 << 20} kB\nMemAvailable:  {40 << 20} kB\n")
    monkeypatch.setattr(memory, "_ROOT", tmp_path)
    assert memory.free_memory("cpu") == 40 * GIB
    (tmp_path / "proc" / "self" / "cgroup").write_text(f"9:cpuset:/x\n{of_process}\n")
    (top / group / "b").mkdir(parents=True)
    (top / group / "b" / limit).write_text("max\n" if limit == "memory.max" else "9223372036854771712\n")
    (top / group / "b" / used).write_text(f"{5 * GIB}\n")
    assert memory.free_memory("cpu") == 40 * GIB
    (top / group / limit).write_text(f"{8 * GIB}\n")
    (top / group / used).write_text(f"{5 * GIB}\n")
    (top / group / "memory.stat").write_text(f"anon 9\n{before}active_file {GIB}\n{before}inactive_file {GIB}\n")
    assert memory.free_memory("cpu") == 5 * GIB, "files in memory give way"
    (top / group / used).write_text(f"{11 * GIB}\n")
    assert memory.free_memory("cpu") == 0


def test_weights_count_as_they_are_loaded(tmp_path: Path) -> None:
    """Files in 16 bits are twice as large beside a learner in 32; what is quantised stays as it is."""
    floats = {"a": torch.zeros(3, 4, dtype=torch.bfloat16), "b": torch.zeros(8, dtype=torch.float32)}
    save_file({**floats, "c": torch.zeros(16, dtype=torch.uint8)}, tmp_path / "model.safetensors")
    save_file(floats, tmp_path / "consolidated.safetensors")
    assert weight_bytes(tmp_path, "float32") == 4 * 20 + 16
    assert weight_bytes(tmp_path, "bfloat16") == 2 * 20 + 16
    (tmp_path / "model.safetensors").rename(tmp_path / "model-00001-of-00001.safetensors")
    index = {"weight_map": dict.fromkeys("abc", "model-00001-of-00001.safetensors")}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert weight_bytes(tmp_path, "float32") == 4 * 20 + 16, "the same weights in another form are not loaded"
    (tmp_path / "model-00001-of-00001.safetensors").write_bytes(b"damaged")
    assert weight_bytes(tmp_path, "float32") == len(b"damaged"), "whoever loads it says what is wrong"
    assert weight_bytes(tmp_path / "none", "float32") == 0


def test_every_choice_comes_with_its_reason() -> None:
    found = {one.name: one for one in choices(LearnerConfig(device="cuda", loss="dapo"), QWEN_30B_A3B, 40 * GIB)}
    assert found["dtype"].value == "bfloat16"
    assert found["gradient_checkpointing"].value is True
    assert "128 experts" in found["lora_targets"].reason
    assert "40.0 GiB free" in found["micro_batch_tokens"].reason
    assert found["max_logprob_difference"].value == 1.0
    assert (found["epsilon_low"].value, found["epsilon_high"].value) == (0.2, 0.28)
    assert all(one.reason for one in found.values())
    left_open = {"gradient_checkpointing", "lora_targets", "micro_batch_tokens", "max_logprob_difference"}
    dapo = LearnerConfig(dtype="float32", loss="dapo", epsilon_low=0.1)
    assert {one.name for one in choices(dapo, QWEN_4B, None)} == {*left_open, "epsilon_high"}
    assert {one.name for one in choices(LearnerConfig(dtype="float32"), QWEN_4B, None)} == left_open, "cispo clips none"


def test_what_was_chosen_stays() -> None:
    chosen = LearnerConfig(
        device="cuda", dtype="float32", gradient_checkpointing=False, micro_batch_tokens=7, lora_targets="q_proj"
    )
    assert fitted(chosen, QWEN_30B_A3B, GIB) == chosen


def test_a_mixture_of_experts_is_trained_in_its_attention_alone() -> None:
    assert fitted(LearnerConfig(), QWEN_30B_A3B, None).lora_targets == ("q_proj", "k_proj", "v_proj", "o_proj")
    refuse_experts(LearnerConfig(lora_targets=("q_proj", "o_proj")), QWEN_30B_A3B)
    for targets in ("all-linear", ("q_proj", "gate")):
        with pytest.raises(TrainingError, match="mixture of 128 experts") as raised:
            refuse_experts(LearnerConfig(lora_targets=targets), QWEN_30B_A3B)
        assert "lora_targets" in str(raised.value)
    refuse_experts(LearnerConfig(lora_targets="all-linear"), QWEN_4B)


def test_a_small_mixture_of_experts_is_trained_without_its_experts(
    tmp_path: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=48, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
        num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4, num_experts_per_tok=2,
        initializer_range=0.2, max_position_embeddings=128,
    )  # fmt: skip
    Qwen3MoeForCausalLM(config).save_pretrained(tmp_path)
    learner = PackedLearner(tmp_path, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))
    assert all("self_attn" in name for name in trainable(learner.model))
    before = {name: weight.detach().clone() for name, weight in trainable(learner.model).items()}
    learner.step(make_samples(0))
    assert any(not torch.equal(weight, before[name]) for name, weight in trainable(learner.model).items())
    with pytest.raises(TrainingError, match="mixture of 4 experts"):
        PackedLearner(tmp_path, LearnerConfig(lora_rank=8, lora_targets="all-linear"))


@pytest.mark.parametrize(("engine", "passes"), [("packed", 1), ("packed", 2), ("trl", 1)])
def test_when_memory_runs_out_smaller_micro_batches_give_the_same_step(
    base_model: Path,
    make_samples: Callable[[int], list[Sample]],
    monkeypatch: pytest.MonkeyPatch,
    engine: Any,
    passes: int,
) -> None:
    """The fault is a stand-in for memory that is truly full: it comes whenever a micro-batch has more than 600 tokens,
    in the first pass over it or, as where a moment's buffers are made meanwhile, in the last."""
    config = LearnerConfig(
        engine=engine, lora_rank=8, max_logprob_difference=1e9, dtype="float64", kl_weight=0.1, epochs=passes
    )
    samples = [sample for seed in range(8) for sample in make_samples(seed)]
    whole = make_learner(base_model, config)
    expected = whole.step(samples)
    learner = make_learner(base_model, config)
    assert isinstance(learner, BaseLearner)
    counting, refused = learner._counting, []

    def full(tally: StepTally) -> Callable[[int], None]:
        computed = counting(tally)

        def and_refuse(tokens: int) -> None:
            computed(tokens)
            if tokens > 600 and tally.optimizer_steps == passes - 1:
                refused.append(tokens)
                raise torch.OutOfMemoryError("CUDA out of memory")

        return and_refuse

    monkeypatch.setattr(learner, "_counting", full)
    metrics = learner.step(samples)
    assert refused
    assert metrics.loss == pytest.approx(expected.loss, abs=1e-9)
    assert metrics.trained_tokens == expected.trained_tokens
    assert metrics.micro_batch_tokens < expected.micro_batch_tokens == whole.config.micro_batch_tokens
    for name, weight in trainable(learner.model).items():
        torch.testing.assert_close(weight, trainable(whole.model)[name], rtol=1e-6, atol=1e-9)
    refused.clear()
    learner.step(samples)
    assert not refused, "later steps begin with what fits"
    learner.refit()
    learner.step(samples)
    assert not refused, "nor do they try again what did not fit"


def test_memory_that_runs_out_while_versions_are_compared_makes_smaller_micro_batches_too(
    base_model: Path, make_samples: Callable[[int], list[Sample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))
    budgets: list[int] = []

    def full(*_: Any) -> None:
        budgets.append(learner._budget)
        if len(budgets) < 3:
            raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learner, "_check_version", full)
    metrics = learner.step(make_samples(0))
    assert budgets == [metrics.micro_batch_tokens * times for times in (4, 2, 1)]


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_micro_batches_grow_into_what_a_sleeping_engine_gives_back(
    base_model: Path, make_samples: Callable[[int], list[Sample]], monkeypatch: pytest.MonkeyPatch, engine: Any
) -> None:
    """A learner is loaded beside an engine that is awake, and steps while it sleeps."""
    samples = [sample for seed in range(20) for sample in make_samples(seed)]
    config = LearnerConfig(engine=engine, lora_rank=8, max_logprob_difference=1e9)

    def free(size: int) -> None:
        for module in ("machine.needs", "base"):
            monkeypatch.setattr(f"trainer.learner.{module}.free_memory", lambda _: size)

    def parts(learner: Any) -> int:
        done: list[int] = []
        learner.progress = lambda _total: done.append
        learner.step(samples)
        return len(done)

    free(0)
    learner = make_learner(base_model, config)
    chosen = make_learner(base_model, dataclasses.replace(config, micro_batch_tokens=2048))
    beside = parts(learner)
    assert beside > 1
    free(64 * GIB)
    for one in (learner, chosen):
        one.refit()
    assert parts(learner) == 1
    assert learner.step(samples).micro_batch_tokens > learner.config.micro_batch_tokens, "a version's numbers say so"
    assert parts(chosen) == beside, "what was chosen stays"
    free(0)
    learner.refit()
    assert parts(learner) == 1, "an engine that wakes takes nothing from the next step"


def test_memory_that_is_never_enough_is_an_error_with_what_to_lower(
    base_model: Path, make_samples: Callable[[int], list[Sample]], monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))

    def full(*_: Any) -> float:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learner, "_accumulate", full)
    samples = make_samples(0)
    longest = max((one for sample in samples for one in sample.sequences), key=lambda one: len(one.token_ids))
    named = f"the longest row, of trajectory {longest.trajectory_id}, has {len(longest.token_ids)} tokens"
    with pytest.raises(NoRoom, match=f"more memory than there is: CUDA out of memory .{named}") as raised:
        learner.step(samples)
    assert "--gradient-checkpointing" in str(raised.value)


def test_a_fitted_config_is_what_a_version_keeps(base_model: Path) -> None:
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8))
    kept = json.loads(msgspec.json.encode(learner.config))
    assert None not in (kept["dtype"], kept["micro_batch_tokens"], kept["gradient_checkpointing"], kept["lora_targets"])
