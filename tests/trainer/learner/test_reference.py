"""One optimisation step against a float64 reference that shares no code with the learner."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3RMSNorm

from arttrace.errors import TrainingError
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed import PackedLearner
from trainer.learner.trl import TrlLearner

LOW, HIGH, ALPHA, RANK, RATE = 0.2, 0.3, 16, 8, 1e-3


@pytest.fixture(autouse=True)
def double_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Qwen3's norms round to float32 even in a float64 model, which would hide errors below 1e-7."""

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)

    monkeypatch.setattr(Qwen3RMSNorm, "forward", forward)


def make_learner(base: Path, engine: str = "packed", **changes: Any) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """A learner with a LoRA that moves the model, and the gradients that its optimizer is about to use."""
    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "lora_rank": RANK,
        "lora_alpha": ALPHA,
        "epsilon_low": LOW,
        "epsilon_high": HIGH,
        "max_grad_norm": 1e9,
        "max_logprob_difference": 1e9,
        "dtype": "float64",
    }
    seen: list[dict[str, torch.Tensor]] = []

    class Watched({"packed": PackedLearner, "trl": TrlLearner}[engine]):  # type: ignore[misc]
        def check_before_optimizer_step(self, tally: Any) -> None:
            super().check_before_optimizer_step(tally)
            seen.append({n: p.grad.clone() for n, p in self.model.named_parameters() if p.requires_grad})

    learner = Watched(base, LearnerConfig(**(settings | changes)))
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        # A fresh LoRA has B = 0, which hides the gradient of A.
        for name, parameter in learner.model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return learner, seen


class Reference:
    """Plain weights W + alpha/r B A through the plain model, one sequence at a time, losses token by token."""

    def __init__(self, base: Path, adapter: dict[str, torch.Tensor]) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64)
        self.adapter = {n: p.detach().double().clone().requires_grad_() for n, p in adapter.items()}

    def logps(self, ids: tuple[int, ...], *, adapted: bool) -> torch.Tensor:
        weights = dict(self.model.named_parameters())
        for name in [n for n in self.adapter if "lora_A" in n] if adapted else []:
            target = name.removeprefix("base_model.model.").replace(".lora_A.default.weight", ".weight")
            a, b = self.adapter[name], self.adapter[name.replace("lora_A", "lora_B")]
            weights[target] = weights[target].detach() + (ALPHA / RANK) * (b @ a)
        logits = torch.func.functional_call(self.model, weights, (torch.tensor([ids]),)).logits[0]
        return torch.log_softmax(logits, dim=-1)

    def loss(self, samples: list[Sample], config: LearnerConfig) -> tuple[torch.Tensor, int, int]:
        """The loss, the number of clipped targets and the number of targets whose advantage is not zero."""
        total = sum(sum(q.trained) for s in samples for q in s.sequences)
        loss, clipped, active = torch.zeros((), dtype=torch.float64), 0, 0
        for sample in samples:
            own = sum(sum(q.trained) for q in sample.sequences)
            divisor = {
                "dapo": total,
                "cispo": total,
                "grpo": own * len(samples),
                "gspo": own * len(samples),
                "dr_grpo": len(samples) * config.dr_grpo_length,
            }[config.loss]
            targets = list(self.targets(sample, with_base=config.kl_weight > 0))
            whole = torch.stack([logp - old for logp, old, _ in targets]).mean().exp()
            for logp, captured, plain in targets:
                weight, old = 1.0, captured
                if config.importance != "clip":
                    moved, old = math.exp(logp.item() - captured), logp.item()
                    cap = config.importance_cap
                    weight = min(moved, cap) if config.importance == "truncate" else float(1 / cap <= moved <= cap)
                ratio = whole if config.loss == "gspo" else (logp - old).exp()
                if config.loss == "cispo":
                    surrogate = min(ratio.item(), config.cispo_max_ratio) * sample.advantage * logp
                    stopped = ratio.item() > config.cispo_max_ratio
                else:
                    held = torch.tensor(min(max(ratio.item(), 1 - LOW), 1 + HIGH), dtype=torch.float64)
                    surrogate = min(ratio * sample.advantage, held * sample.advantage)
                    stopped = not surrogate.requires_grad
                term = -weight * surrogate
                if sample.advantage:
                    active += 1
                    clipped += stopped
                if plain is not None:
                    d = plain - logp
                    term = term + config.kl_weight * (d.exp() - d - 1)
                loss = loss + term / divisor
        return loss, clipped, active

    def targets(self, sample: Sample, *, with_base: bool) -> Iterator[tuple[torch.Tensor, float, torch.Tensor | None]]:
        """Of each target: log-probability, captured log-probability, and that under the base model if asked."""
        for sequence in sample.sequences:
            adapted = self.logps(sequence.token_ids, adapted=True)
            plain = self.logps(sequence.token_ids, adapted=False).detach() if with_base else None
            for t, trained in enumerate(sequence.trained):
                captured, id = sequence.logprobs[t], sequence.token_ids[t]
                if trained:
                    assert captured is not None
                    yield adapted[t - 1, id], captured, None if plain is None else plain[t - 1, id]

    def entropy(self, samples: list[Sample]) -> float:
        """The mean entropy of the targets whose advantage is not zero."""
        found = []
        for sequence in (q for s in samples if s.advantage for q in s.sequences):
            logps = self.logps(sequence.token_ids, adapted=True).detach()
            found += [float(-(p.exp() * p).sum()) for p, m in zip(logps, sequence.trained[1:], strict=False) if m]
        return sum(found) / len(found)


def near_policy(reference: Reference, samples: list[Sample], spread: float) -> list[Sample]:
    """The samples as if sampled by a policy close to the current one, so that some ratios are clipped, some not."""
    import msgspec

    generator = torch.Generator().manual_seed(11)
    moved = []
    for sample in samples:
        sequences = []
        for sequence in sample.sequences:
            logps = reference.logps(sequence.token_ids, adapted=True).detach()
            noise = spread * torch.randn(len(sequence.token_ids), generator=generator, dtype=torch.float64)
            captured = tuple(
                float(logps[t - 1, sequence.token_ids[t]] + noise[t]) if trained else None
                for t, trained in enumerate(sequence.trained)
            )
            sequences.append(msgspec.structs.replace(sequence, logprobs=captured))
        moved.append(Sample(tuple(sequences), sample.advantage))
    return moved


def trainable(learner: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in learner.model.named_parameters() if p.requires_grad}


CASES: list[dict[str, Any]] = [
    {"loss": "dapo"},
    {"loss": "dapo", "micro_batch_tokens": 40},
    {"loss": "dapo", "kl_weight": 0.1, "micro_batch_tokens": 60},
    {"loss": "grpo", "micro_batch_tokens": 60},
    {"loss": "grpo", "kl_weight": 0.1},
    {"loss": "dr_grpo", "dr_grpo_length": 7, "micro_batch_tokens": 60},
    {"loss": "cispo", "cispo_max_ratio": 1.1, "micro_batch_tokens": 60},
    {"loss": "gspo", "micro_batch_tokens": 30},
    {"loss": "gspo", "kl_weight": 0.1},
    {"loss": "dapo", "importance": "truncate", "importance_cap": 1.1, "micro_batch_tokens": 60},
    {"loss": "dapo", "importance": "mask", "importance_cap": 1.2},
    {"loss": "dapo", "gradient_checkpointing": True, "micro_batch_tokens": 60},
]


def computed_by(engine: str, case: dict[str, Any]) -> bool:
    return engine == "packed" or not {"importance", "gradient_checkpointing"} & case.keys()


@pytest.mark.parametrize(
    ("engine", "case"),
    [
        pytest.param(engine, case, id=f"{engine}-" + "-".join(map(str, case.values())))
        for engine in ("packed", "trl")
        for case in CASES
        if computed_by(engine, case)
    ],
)
def test_loss_gradients_and_weights_equal_the_reference(
    base_model: Path, make_samples: Callable[[int], list[Sample]], engine: str, case: dict[str, Any]
) -> None:
    learner, gradients = make_learner(base_model, engine, **case)
    config = learner.config
    before = trainable(learner)
    reference = Reference(base_model, before)
    samples = near_policy(reference, make_samples(1), 0.3)
    assert {len(s.sequences) for s in samples} == {1, 2, 3}
    if engine == "trl" and config.loss == "gspo":
        with pytest.raises(TrainingError, match="several rows"):
            learner.step(samples)
        samples = [Sample(s.sequences[:1], s.advantage) for s in samples]

    metrics = learner.step(samples)
    expected, clipped, active = reference.loss(samples, config)
    expected.backward()

    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    if config.importance == "clip" and config.loss != "gspo":
        assert 0 < clipped < active
    if not config.kl_weight:
        assert metrics.clip_fraction == pytest.approx(clipped / active)
    assert metrics.trained_tokens == sum(q.trained_tokens for s in samples for q in s.sequences)
    if config.loss == "dapo" and not config.kl_weight:
        assert metrics.entropy == pytest.approx(reference.entropy(samples))
    (seen,) = gradients
    assert set(seen) == set(reference.adapter)
    assert len(seen) == 2 * 2 * 7
    for name, gradient in seen.items():
        wanted = reference.adapter[name].grad
        assert wanted is not None
        assert wanted.abs().max() > 1e-6, name
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-12)
    norm = math.sqrt(sum(float((p.grad**2).sum()) for p in reference.adapter.values() if p.grad is not None))
    assert metrics.grad_norm == pytest.approx(norm)
    # Adam's first step: both moments are bias-corrected to the gradient and its square.
    for name, after in trainable(learner).items():
        g = reference.adapter[name].grad
        assert g is not None
        torch.testing.assert_close(after, before[name] - RATE * g / (g.abs() + 1e-8), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("loss", ["dapo", "gspo"])
def test_twins_share_positions_and_not_advantages(
    base_model: Path, make_samples: Callable[[int], list[Sample]], loss: str
) -> None:
    """Trajectories with the same tokens, other rewards, and other log-probabilities, as two versions sampled them."""
    import msgspec

    learner, gradients = make_learner(base_model, loss=loss, micro_batch_tokens=40)
    reference = Reference(base_model, trainable(learner))
    samples = near_policy(reference, make_samples(1), 0.2)
    twins = [
        Sample(
            tuple(
                msgspec.structs.replace(q, logprobs=tuple(None if p is None else p - 0.1 for p in q.logprobs))
                for q in sample.sequences
            ),
            advantage,
        )
        for sample, advantage in ((samples[0], -0.6), (samples[0], 0.3), (samples[2], -0.2))
    ]
    alone = learner.step(samples).forwarded_tokens
    learner, gradients = make_learner(base_model, loss=loss, micro_batch_tokens=10_000)
    metrics = learner.step([*samples, *twins])
    expected, _, _ = reference.loss([*samples, *twins], learner.config)
    expected.backward()
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    assert metrics.forwarded_tokens <= alone
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, reference.adapter[name].grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("loss", ["dapo", "grpo", "dr_grpo", "cispo"])
def test_both_engines_take_the_same_way_over_epochs_and_minibatches(
    base_model: Path, make_samples: Callable[[int], list[Sample]], loss: str
) -> None:
    ends, reports = [], []
    for engine in ("packed", "trl"):
        learner, gradients = make_learner(
            base_model, engine, loss=loss, epochs=2, minibatches=2, kl_weight=0.05, micro_batch_tokens=50
        )
        samples = near_policy(Reference(base_model, trainable(learner)), make_samples(6), 0.2)
        reports.append(learner.step(samples))
        assert len(gradients) == 4
        ends.append(trainable(learner))
    for name, weight in ends[0].items():
        torch.testing.assert_close(weight, ends[1][name], rtol=1e-7, atol=1e-9)
    for number in ("loss", "grad_norm", "ratio_mean", "clip_fraction", "entropy", "kl", "logprob_difference_mean"):
        assert getattr(reports[0], number) == pytest.approx(getattr(reports[1], number)), number
    assert reports[0].forwarded_tokens < reports[1].forwarded_tokens


def test_float32_stays_close_to_the_reference(base_model: Path, make_samples: Callable[[int], list[Sample]]) -> None:
    learner, gradients = make_learner(base_model, dtype="float32")
    reference = Reference(base_model, trainable(learner))
    samples = near_policy(reference, make_samples(2), 0.3)
    metrics = learner.step(samples)
    expected, _, _ = reference.loss(samples, learner.config)
    expected.backward()
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-6)
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient.double(), reference.adapter[name].grad, rtol=1e-3, atol=1e-6)


def test_order_splits_and_tails_change_nothing(base_model: Path, make_samples: Callable[[int], list[Sample]]) -> None:
    samples = make_samples(3)
    results = []
    for order, tokens in ((samples, 10_000), (samples[::-1], 10_000), (samples, 1), (samples[2:] + samples[:2], 45)):
        learner, gradients = make_learner(base_model, micro_batch_tokens=tokens)
        metrics = learner.step([Sample(s.sequences[::-1], s.advantage) for s in order])
        results.append((metrics.loss, gradients[0]))
    for loss, seen in results[1:]:
        assert loss == pytest.approx(results[0][0], abs=1e-13)
        for name, gradient in seen.items():
            torch.testing.assert_close(gradient, results[0][1][name], rtol=1e-9, atol=1e-14)


def test_one_trajectory_counts_once_however_often_it_forked(
    base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    """Two trajectories of one sequence each, against the same two where one is written as two half-masked rows."""
    import msgspec

    plain = [make_samples(4)[0], make_samples(5)[1]]
    plain = [Sample(s.sequences[:1], s.advantage) for s in plain]
    sequence = plain[0].sequences[0]
    middle = len(sequence.token_ids) // 2
    halves = []
    for part in (range(middle), range(middle, len(sequence.token_ids))):
        mask = tuple(int(trained and t in part) for t, trained in enumerate(sequence.trained))
        halves.append(msgspec.structs.replace(sequence, trained=mask))
    assert all(half.trained_tokens for half in halves)
    forked = [Sample(tuple(halves), plain[0].advantage), plain[1]]
    for loss in ("dapo", "grpo"):
        seen = []
        for samples in (plain, forked):
            learner, gradients = make_learner(base_model, loss=loss)
            metrics = learner.step(samples)
            seen.append((metrics.loss, metrics.trained_tokens, gradients[0]))
        assert seen[0][:2] == pytest.approx(seen[1][:2])
        for name, gradient in seen[0][2].items():
            torch.testing.assert_close(gradient, seen[1][2][name], rtol=1e-9, atol=1e-13)
