"""Whether the engine sampled with the weights that the learner holds: single tokens, means, and the wrong version."""

from __future__ import annotations

import dataclasses
import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from arttrace.records.sequence import TokenSequence
from arttrace.system.errors import TrainingError
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import trainable
from trainer.learner.stale_adapter import check_nearest, sigmas_nearer
from trainer.learner.trl.engine import TrlLearner

BFLOAT16 = LearnerConfig(lora_rank=8, learning_rate=1e-3, max_logprob_difference=1.0)
"""The bounds of bfloat16, which a neighbouring version passes."""


def scored(learner: BaseLearner, version: str, *, runs: int = 24, seed: int = 0, noise: float = 0.0) -> list[Sample]:
    """Random answers with the log-probabilities that the learner computes now, as an engine with some noise gives
    them."""
    rng, found = random.Random(seed), []
    for number in range(runs):
        ids = [rng.randrange(48) for _ in range(14)]
        with torch.no_grad():
            logits = learner.model(input_ids=torch.tensor([ids])).logits[0].float()
        logps = torch.log_softmax(logits, -1)
        own = [float(logps[at - 1, ids[at]]) + rng.gauss(0, noise) if at > 3 else None for at in range(14)]
        found.append(
            TokenSequence(
                trajectory_id=f"t{number}",
                revision="r",
                agent_id="root",
                token_ids=tuple(ids),
                trained=tuple(int(at > 3) for at in range(14)),
                logprobs=tuple(own),
                versions=tuple(0 if at > 3 else -1 for at in range(14)),
                policy_versions=(version,),
                call_ids=("c",),
            )
        )
    return [Sample((one,), (-1.0) ** at) for at, one in enumerate(found)]


def as_sampled_by(samples: list[Sample], version: str) -> list[Sample]:
    return [
        Sample(tuple(msgspec.structs.replace(q, policy_versions=(version,)) for q in one.sequences), one.advantage)
        for one in samples
    ]


def with_logprob(sample: Sample, at: int, value: float) -> Sample:
    (sequence,) = sample.sequences
    logprobs = tuple(value if place == at else logprob for place, logprob in enumerate(sequence.logprobs))
    return Sample((msgspec.structs.replace(sequence, logprobs=logprobs),), sample.advantage)


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
@pytest.mark.parametrize("noise", [0.0, 0.02])
def test_an_adapter_that_is_one_step_stale_is_found_within_the_bounds(
    engine: type[BaseLearner], base_model: Path, noise: float
) -> None:
    learner = engine(base_model, dataclasses.replace(BFLOAT16, learning_rate=2e-2))
    stale = scored(learner, "p@0", noise=noise)
    learner.step(stale, current_version="p@0")
    stale = scored(learner, "p@1", noise=noise, seed=1)
    learner.step(scored(learner, "p@1", noise=noise, seed=2), current_version="p@1")
    before = {name: weight.detach().clone() for name, weight in trainable(learner.model).items()}
    with pytest.raises(TrainingError, match="captured from p@2 are those of the version before it"):
        learner.step(as_sampled_by(stale, "p@2"), current_version="p@2")
    assert all(torch.equal(weight, before[name]) for name, weight in trainable(learner.model).items())
    assert learner.steps == 2
    learner.step(scored(learner, "p@2", noise=noise, seed=3), current_version="p@2")


def test_an_engine_that_serves_the_base_model_is_found(base_model: Path) -> None:
    learner = PackedLearner(base_model, dataclasses.replace(BFLOAT16, learning_rate=5e-3))
    for step in range(3):
        learner.step(scored(learner, f"p@{step}", seed=step), current_version=f"p@{step}")
    with learner.model.disable_adapter():
        base = scored(learner, "p@3", seed=9, noise=0.01)
    with pytest.raises(TrainingError, match="are those of the base model"):
        learner.step(base, current_version="p@3")


def test_a_learner_that_was_loaded_knows_the_version_before(base_model: Path, tmp_path: Path) -> None:
    learner = PackedLearner(base_model, dataclasses.replace(BFLOAT16, learning_rate=2e-2))
    for step in range(2):
        stale = scored(learner, f"p@{step}", seed=step)
        learner.step(stale, current_version=f"p@{step}")
        (tmp_path / f"p@{step + 1}").mkdir()
        learner.save(tmp_path / f"p@{step + 1}")
    again = PackedLearner(base_model, learner.config)
    again.load(tmp_path / "p@2")
    with pytest.raises(TrainingError, match="the version before it"):
        again.step(as_sampled_by(stale, "p@2"), current_version="p@2")


def test_steps_on_what_the_current_version_sampled_are_never_refused(base_model: Path) -> None:
    for rate, noise in ((1e-6, 1e-5), (1e-4, 0.05), (1e-3, 0.1)):
        learner = PackedLearner(base_model, dataclasses.replace(BFLOAT16, learning_rate=rate))
        for step in range(12):
            samples = scored(learner, f"p@{step}", seed=step, noise=noise, runs=8)
            learner.step(samples, current_version=f"p@{step}")


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
def test_one_token_beyond_the_bound_is_counted_and_ends_nothing(engine: type[BaseLearner], base_model: Path) -> None:
    learner = engine(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=0.5))
    samples = scored(learner, "p@0")
    off = with_logprob(samples[0], 5, -9.0)
    metrics = learner.step([off, *samples[1:]], current_version="p@0")
    assert metrics.masked_tokens == 1
    two = [with_logprob(samples[0], 5, -19.0), with_logprob(samples[1], 5, -19.0), *samples[2:]]
    learner = engine(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=0.5))
    with pytest.raises(TrainingError, match=r"the bound is 0\.5, and 2 of 240 tokens are beyond it"):
        learner.step(two, current_version="p@0")


@pytest.mark.parametrize(("captured", "micro_batch_tokens"), [(-9.0, None), (-300.0, 20)])
@pytest.mark.parametrize(
    ("engine", "loss"),
    [
        (engine, loss)
        for engine in (PackedLearner, TrlLearner)
        for loss in ({"loss": "dr_grpo"}, {"loss": "dr_grpo", "importance_sampling_level": "sequence"})
    ]
    + [(PackedLearner, {"loss": "dr_grpo", "importance": one}) for one in ("token_mask", "sequence_truncate")],
)
def test_a_token_beyond_the_bound_pushes_nothing(
    engine: type[BaseLearner], loss: dict[str, Any], base_model: Path, captured: float, micro_batch_tokens: int | None
) -> None:
    """The gradient is that of the same batch in which the token was never a target, whatever was captured for it, and
    so is the ratio of its trajectory; in the later passes too."""
    of = LearnerConfig(lora_rank=8, max_logprob_difference=0.5, epochs=2, micro_batch_tokens=micro_batch_tokens, **loss)
    require_no_push(engine, base_model, of, captured, of_run=0)


@pytest.mark.parametrize("of_run", range(4))
@pytest.mark.parametrize(
    ("engine", "importance"), [(PackedLearner, "token_truncate"), (PackedLearner, "clip"), (TrlLearner, "clip")]
)
def test_a_token_beyond_the_bound_pushes_nothing_in_a_later_minibatch(
    engine: type[BaseLearner], importance: Any, base_model: Path, of_run: int
) -> None:
    config = LearnerConfig(
        lora_rank=8, max_logprob_difference=0.5, minibatches=2, loss="dr_grpo", importance=importance
    )
    require_no_push(engine, base_model, config, -9.0, of_run=of_run)


def require_no_push(
    engine: type[BaseLearner], base_model: Path, config: LearnerConfig, captured: float, *, of_run: int
) -> None:
    found = []
    for trained in (True, False):
        learner = engine(base_model, config)
        samples = scored(learner, "p@0", runs=4)
        samples[of_run] = with_logprob(samples[of_run], 5, captured)
        if not trained:
            (sequence,) = samples[of_run].sequences
            flags = tuple(0 if at == 5 else flag for at, flag in enumerate(sequence.trained))
            versions = tuple(-1 if at == 5 else version for at, version in enumerate(sequence.versions))
            sequence = msgspec.structs.replace(sequence, trained=flags, versions=versions)
            samples[of_run] = Sample((sequence,), samples[of_run].advantage)
        metrics = learner.step(samples, current_version="p@0")
        assert metrics.masked_tokens == int(trained)
        found.append(torch.cat([weight.detach().flatten() for _, weight in sorted(trainable(learner.model).items())]))
    assert torch.allclose(*found, atol=1e-7)


def test_a_mean_that_is_off_is_refused_though_no_token_is(base_model: Path) -> None:
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=0.5))
    samples = [
        Sample(
            tuple(
                msgspec.structs.replace(q, logprobs=tuple(None if p is None else p - 0.1 for p in q.logprobs))
                for q in one.sequences
            ),
            one.advantage,
        )
        for one in scored(learner, "p@0")
    ]
    with pytest.raises(TrainingError, match=r"by 0\.1 in the mean"):
        learner.step(samples, current_version="p@0")


def apart(seed: int, tokens: int = 512) -> tuple[list[float], list[float]]:
    """By how much an engine in bfloat16 differs from the version that it holds, and how far the next one is from that:
    much at a few tokens, little at most. As on an H200: 8e-3 and 7e-3 nats, as root mean squares."""
    rng = random.Random(seed)
    return (
        [rng.gauss(0, 8e-3) for _ in range(tokens)],
        [rng.gauss(0, 2.5e-3) * math.exp(rng.gauss(0, 1)) for _ in range(tokens)],
    )


def test_a_version_is_distinguished_from_its_neighbour_by_tokens_that_differ_by_less_than_the_noise() -> None:
    for seed in range(200):
        noise, moved = apart(seed)
        next_one = [its + step for its, step in zip(noise, moved, strict=True)]
        with pytest.raises(TrainingError, match="captured from p@2 are those of the version before it"):
            check_nearest({"p@2": next_one, "the version before it": noise}, "p@2")
        check_nearest({"p@2": noise, "the version before it": next_one}, "p@2")


def test_few_tokens_and_near_versions_decide_nothing() -> None:
    check_nearest({"p@2": [1.0, 0.0] * 16, "the base model": [0.0, 0.9] * 16}, "p@2")
    for seed in range(200):
        noise, moved = apart(seed)
        nearly = [its + step / 100 for its, step in zip(noise, moved, strict=True)]
        check_nearest({"p@2": nearly, "the base model": noise}, "p@2")
        check_nearest({"p@2": noise, "the base model": nearly}, "p@2")
    assert sigmas_nearer([0.5, 0.5], [0.5, 0.5]) == 0.0
    assert sigmas_nearer([0.0, 0.0], [1e-3, 0.0]) == math.inf
