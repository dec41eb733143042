"""A tiny random Qwen3 on disk, a maker of trajectories for it, and its norms in full precision."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from one_thread import one_thread as one_thread

import trainer.learner  # noqa: F401  (sets how threads wait, before torch is loaded)

torch = pytest.importorskip("torch")

from arttrace.records.sequence import TokenSequence  # noqa: E402
from trainer.learner.interface import Sample  # noqa: E402

VOCABULARY = 48

MakeSequence = Callable[..., TokenSequence]


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """For every test in this folder."""


@pytest.fixture(scope="session")
def base_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _random_model(tmp_path_factory.mktemp("base"), 3)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Other weights of the same shape."""
    return _random_model(tmp_path_factory.mktemp("other"), 4)


def _random_model(directory: Path, seed: int) -> Path:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        tie_word_embeddings=True,
        initializer_range=0.2,
        max_position_embeddings=128,
    )
    Qwen3ForCausalLM(config).save_pretrained(directory)
    return directory


@pytest.fixture(scope="session")
def make_samples() -> Callable[[int], list[Sample]]:
    """Trajectories of several sequences, unequal lengths, several turns each, advantages of both signs and zero."""

    def make(seed: int) -> list[Sample]:
        rng = random.Random(seed)

        def sequence(trajectory: str, prefix: tuple[int, ...] = ()) -> TokenSequence:
            ids, trained = [*prefix, rng.randrange(VOCABULARY)], [0] * (len(prefix) + 1)
            for _ in range(rng.randint(1, 3)):
                for flag, count in ((0, rng.randint(1, 6)), (1, rng.randint(1, 5))):
                    ids += [rng.randrange(VOCABULARY) for _ in range(count)]
                    trained += [flag] * count
            tail = rng.randint(0, 3)
            ids += [rng.randrange(VOCABULARY) for _ in range(tail)]
            trained += [0] * tail
            return TokenSequence(
                trajectory_id=trajectory,
                revision="r",
                agent_id="root",
                token_ids=tuple(ids),
                trained=tuple(trained),
                logprobs=tuple(rng.uniform(-6.0, -1.0) if flag else None for flag in trained),
                versions=tuple(0 if flag else -1 for flag in trained),
                policy_versions=("p@0",),
                call_ids=("c",),
            )

        samples = []
        for number, advantage in enumerate((0.75, -0.5, 0.25, 0.0, -0.5)):
            first = sequence(f"t{number}")
            forks = [sequence(f"t{number}", first.token_ids[:4]) for _ in range(number % 3)]
            samples.append(Sample((first, *forks), advantage))
        return samples

    return make


@pytest.fixture
def double_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3's norms round to float32 even in a float64 model, which would hide errors below 1e-7."""

    from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(Qwen3RMSNorm, "forward", forward)


@pytest.fixture
def on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention's own formula has a backward pass on a CPU; only its check says no. FlashAttention of many lengths
    has no CPU form at all: a stand-in has its arguments and their meaning."""
    from stand_in_varlen import stand_in_varlen_attn
    from torch.nn.attention import flex_attention, varlen

    from trainer.learner.packed.kernels import flex

    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    monkeypatch.setattr(flex, "LEAST_TOKENS", 1)
    monkeypatch.setattr("trainer.learner.packed.attention.LEAST_TOKENS", 1)
    monkeypatch.setattr(varlen, "varlen_attn", stand_in_varlen_attn)
