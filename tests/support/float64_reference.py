"""A float64 reference of one optimisation step that shares no code with the learner; learners to compare with it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModelForCausalLM

from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.trl.engine import TrlLearner

LOW, HIGH, ALPHA, RANK, RATE = 0.2, 0.3, 16, 8, 1e-3


def make_learner(base: Path, engine: str = "packed", **changes: Any) -> tuple[Any, list[dict[str, torch.Tensor]]]:
    """A learner with a LoRA that moves the model, and the gradients that its optimizer is about to use."""
    settings: dict[str, Any] = {
        "learning_rate": RATE,
        "lora_rank": RANK,
        "lora_alpha": ALPHA,
        "max_grad_norm": 1e9,
        "max_logprob_difference": 1e9,
        "dtype": "float64",
        "loss": "dapo",
    }
    if changes.get("loss") != "cispo":
        settings |= {"epsilon_low": LOW, "epsilon_high": HIGH}
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


@functools.lru_cache(maxsize=2)
def _loaded(base: Path) -> Any:
    """Frozen: what is trained is only ever added to its weights."""
    return AutoModelForCausalLM.from_pretrained(base, dtype=torch.float64).requires_grad_(requires_grad=False)


class Reference:
    """Plain weights W + alpha/r B A through the plain model, one sequence at a time, losses token by token."""

    def __init__(self, base: Path, adapter: dict[str, torch.Tensor]) -> None:
        self.model = _loaded(base)
        self.adapter = {n: p.detach().double().clone().requires_grad_() for n, p in adapter.items()}

    def logps(self, ids: tuple[int, ...], *, adapted: bool, temperatures: tuple[float, ...] = ()) -> torch.Tensor:
        """Of every token after each position, at the temperature at which the next one was sampled."""
        weights = dict(self.model.named_parameters())
        for name in [n for n in self.adapter if "lora_A" in n] if adapted else []:
            target = name.removeprefix("base_model.model.").replace(".lora_A.default.weight", ".weight")
            a, b = self.adapter[name], self.adapter[name.replace("lora_A", "lora_B")]
            weights[target] = weights[target] + (ALPHA / RANK) * (b @ a)
        logits = torch.func.functional_call(self.model, weights, (torch.tensor([ids]),)).logits[0]
        if temperatures:
            logits = logits / torch.tensor([*temperatures[1:], 1.0], dtype=torch.float64)[:, None]
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
            old_of = [captured if config.correction == "clip" else logp.item() for logp, captured, *_ in targets]
            pairs = list(zip(targets, old_of, strict=True))
            whole = torch.stack([logp - old for (logp, *_), old in pairs]).mean().exp()
            moved_whole = math.exp(sum(old - captured for (_, captured, *_), old in pairs))
            by_trajectory = config.loss == "gspo" or config.importance_sampling_level == "sequence"
            for (logp, captured, plain, advantage), old in pairs:
                weight = 1.0
                if config.correction != "clip":
                    level, _, way = config.correction.partition("_")
                    moved = moved_whole if level == "sequence" else math.exp(old - captured)
                    least, most = config.importance_clip_min or 0.0, config.importance_clip_max
                    if way == "truncate":
                        weight = min(max(moved, least), most)
                    else:
                        weight = moved if least <= moved <= most else 0.0
                of_token = (logp - old).exp()
                ratio = whole if by_trajectory else of_token
                if by_trajectory and (
                    sample.agent_advantages or sample.token_advantages
                ):  # the paper's form for unequal advantages
                    ratio = whole.detach() * (logp - logp.detach()).exp()
                if config.loss == "cispo":
                    surrogate = min(ratio.item(), config.cispo_max_ratio) * advantage * logp
                    stopped = ratio.item() > config.cispo_max_ratio
                else:
                    held = torch.tensor(min(max(ratio.item(), 1 - LOW), 1 + HIGH), dtype=torch.float64)
                    surrogate = min(ratio * advantage, held * advantage)
                    if config.delta is not None and advantage < 0:  # dual clip, equation 5 of its paper
                        surrogate = max(surrogate, torch.tensor(config.delta * advantage, dtype=torch.float64))
                    stopped = not surrogate.requires_grad
                term = -weight * surrogate
                if advantage:
                    active += 1
                    clipped += stopped or weight == 0
                if plain is not None:
                    d = plain - logp
                    kl = -d if config.kl_estimator == "k1" else d.exp() - d - 1
                    term = term + config.kl_weight * (kl * of_token if config.use_bias_correction_kl else kl)
                loss = loss + term / divisor
        return loss, clipped, active

    def targets(
        self, sample: Sample, *, with_base: bool
    ) -> Iterator[tuple[torch.Tensor, float, torch.Tensor | None, float]]:
        """Of each target: log-probability, captured log-probability, that under the base model if asked, advantage."""
        for number, sequence in enumerate(sample.sequences):
            ids, heat = sequence.token_ids, sequence.temperatures
            of_tokens = sample.token_advantages[number] if sample.token_advantages else [0.0] * len(ids)
            adapted = self.logps(ids, adapted=True, temperatures=heat)
            plain = self.logps(ids, adapted=False, temperatures=heat).detach() if with_base else None
            advantage = sample.agent_advantages.get(sequence.agent_id, sample.advantage)
            for t, trained in enumerate(sequence.trained):
                captured, id = sequence.logprobs[t], sequence.token_ids[t]
                if trained:
                    assert captured is not None
                    own = advantage + of_tokens[t]
                    yield adapted[t - 1, id], captured, None if plain is None else plain[t - 1, id], own

    def entropy(self, samples: list[Sample]) -> float:
        """The mean entropy of the targets whose advantage is not zero."""
        found = []
        for sequence in (q for s in samples if s.advantage for q in s.sequences):
            logps = self.logps(sequence.token_ids, adapted=True, temperatures=sequence.temperatures).detach()
            found += [float(-(p.exp() * p).sum()) for p, m in zip(logps, sequence.trained[1:], strict=False) if m]
        return sum(found) / len(found)


def near_policy(reference: Reference, samples: list[Sample], spread: float) -> list[Sample]:
    """The samples as if sampled by a policy close to the current one, so that some ratios are clipped, some not."""
    generator = torch.Generator().manual_seed(11)
    moved = []
    for sample in samples:
        sequences = []
        for sequence in sample.sequences:
            logps = reference.logps(sequence.token_ids, adapted=True, temperatures=sequence.temperatures).detach()
            noise = spread * torch.randn(len(sequence.token_ids), generator=generator, dtype=torch.float64)
            captured = tuple(
                float(logps[t - 1, sequence.token_ids[t]] + noise[t]) if trained else None
                for t, trained in enumerate(sequence.trained)
            )
            sequences.append(msgspec.structs.replace(sequence, logprobs=captured))
        moved.append(Sample(tuple(sequences), sample.advantage, sample.agent_advantages, sample.token_advantages))
    return moved


def trainable(learner: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in learner.model.named_parameters() if p.requires_grad}
