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
from benchmarks.card.shapes import TOY, make_model
from benchmarks.card.torch_engine import TorchEngine, sampled_runs
from trainer.learner import make_learner
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.policy_model import trainable
from trainer.learner.samples import plan_step
from trainer.learner.stale_adapter.check import check_nearest
from trainer.learner.stale_adapter.looked_at import Looker
from trainer.learner.stale_adapter.share import FIRST, Share, share_gone, way_to
from trainer.learner.trl.engine import TrlLearner

BFLOAT16 = LearnerConfig(lora_rank=8, learning_rate=1e-3, max_logprob_difference=1.0)
"""The bounds of bfloat16, which a neighbouring version passes."""
SERVED = dataclasses.replace(TOY, vocabulary=1024, layers=1)
"""What an engine in bfloat16 serves here: it is off by two to three times as much as neighbouring versions differ."""


def scored(
    learner: BaseLearner,
    version: str,
    *,
    runs: int = 24,
    seed: int = 0,
    noise: float = 0.0,
    length: int = 14,
    context: int = 4,
) -> list[Sample]:
    """Random answers with the log-probabilities that the learner computes now, as an engine with some noise gives
    them: rows of so many tokens, of which the first are context."""
    rng, found = random.Random(seed), []
    rows = [[rng.randrange(48) for _ in range(length)] for _ in range(runs)]
    with torch.no_grad():
        logps = torch.log_softmax(learner.model(input_ids=torch.tensor(rows)).logits.float(), -1)
    targets = [at >= context for at in range(length)]
    for number, ids in enumerate(rows):
        own = [
            float(logps[number, at - 1, ids[at]]) + rng.gauss(0, noise) if target else None
            for at, target in enumerate(targets)
        ]
        found.append(
            TokenSequence(
                trajectory_id=f"t{number}",
                revision="r",
                agent_id="root",
                token_ids=tuple(ids),
                trained=tuple(map(int, targets)),
                logprobs=tuple(own),
                versions=tuple(int(target) - 1 for target in targets),
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
    assert learner.step(scored(learner, "p@2", noise=noise, seed=3), current_version="p@2").checked_tokens == 240
    few = scored(learner, "p@3", runs=3)
    assert learner.step(few, current_version="p@3").checked_tokens == 0, "chance would decide"


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


@pytest.mark.parametrize(("times", "more"), [(1.0, 0.03), (1.0, -0.03), (1.01, 0.0), (0.99, 0.0)])
def test_an_engine_that_is_off_alike_everywhere_serves_no_other_version(
    times: float, more: float, base_model: Path
) -> None:
    """It is off by much more than the versions are apart, whose way is upwards at nearly every token."""
    learner = PackedLearner(base_model, dataclasses.replace(BFLOAT16, learning_rate=1e-5))
    for step in range(4):
        samples = []
        for one in scored(learner, f"p@{step}", runs=36):
            (sequence,) = one.sequences
            logprobs = tuple(None if p is None else p * times + more for p in sequence.logprobs)
            samples.append(Sample((msgspec.structs.replace(sequence, logprobs=logprobs),), 1.0))
        learner.step(samples, current_version=f"p@{step}")


def test_equal_tokens_of_many_runs_are_one_observation(base_model: Path) -> None:
    """Thirty-two runs that answered word for word alike, of which an engine says the same thirty-two times."""
    learner = PackedLearner(base_model, dataclasses.replace(BFLOAT16, learning_rate=5e-5))
    for step in range(1, 7):
        samples = [one for one in scored(learner, f"p@{step}", seed=step, noise=0.03, runs=4) for _ in range(32)]
        learner.step(samples, current_version=f"p@{step}")
    rows = plan_step(samples, learner.config).rows
    looker = Looker(rounded=False, shares_beginnings=True)
    chosen = looker.choose(rows, "p@6")
    assert sum(version is not None for row in chosen for version in row.versions) == 40
    assert looker.choose(plan_step(samples[:64], learner.config).rows, "p@6") == []


def apart(seed: int, tokens: int = 512) -> tuple[list[float], list[float]]:
    """By how much an engine in bfloat16 differs from the version that it holds, and how far the next one is from that:
    much at a few tokens, little at most. As on an H200: 8e-3 and 7e-3 nats, as root mean squares."""
    rng = random.Random(seed)
    return (
        [rng.gauss(0, 8e-3) for _ in range(tokens)],
        [rng.gauss(0, 2.5e-3) * math.exp(rng.gauss(0, 1)) for _ in range(tokens)],
    )


def added(one: list[float], other: list[float], times: float = 1.0) -> list[float]:
    return [its + times * more for its, more in zip(one, other, strict=True)]


def gone_of(captured: list[float], way: list[float]) -> Share:
    rng = random.Random(7)
    logps, entropies = [-rng.expovariate(1) for _ in way], [rng.expovariate(1) for _ in way]
    return share_gone(captured, way, logps, entropies, [(at // 32, 0) for at in range(len(way))])


def judge(captured: list[float], **ways: list[float]) -> None:
    check_nearest({name: gone_of(captured, way) for name, way in ways.items()}, "p@2")


def test_a_version_is_distinguished_from_its_neighbour_by_tokens_that_differ_by_less_than_the_noise() -> None:
    for seed in range(200):
        noise, way = apart(seed)
        with pytest.raises(TrainingError, match="captured from p@2 are those of before"):
            judge(added(noise, way), before=way)
        judge(noise, before=way)


def test_the_nearest_of_two_versions_is_named() -> None:
    noise, way = apart(0)
    further = added(way, apart(1)[1])
    with pytest.raises(TrainingError, match=r"of before: .* gone (0\.9|1\.0)\d \(standard error 0\.0\d+\)"):
        judge(added(noise, way), base=further, before=way)
    with pytest.raises(TrainingError, match="are those of base"):
        judge(added(noise, further), base=further, before=way)


def test_few_tokens_and_near_versions_decide_nothing() -> None:
    judge([1.0, 0.0] * 16, base=[0.1, 0.9] * 16)
    judge([0.0] * 40, base=[0.0] * 40)
    judge([1e-3] * 40, base=[1.0] + [0.0] * 39)
    for seed in range(200):
        noise, way = apart(seed)
        near = added([0.0] * len(way), way, 1 / 100)
        judge(added(noise, near), base=near)
        judge(noise, base=near)


def test_one_token_far_off_does_not_make_another_version_of_it() -> None:
    """What fits itself says nothing: the token has all of the way's length."""
    noise, way = apart(0)
    way[7], noise[7] = 2.0, 1.9
    assert gone_of(noise, way).gone > 0.9
    judge(noise, base=way)


def test_an_engine_whose_logits_are_off_in_proportion_serves_no_other_version() -> None:
    """By a hundredth, where a version differs from the one before it in being surer, and little in anything else."""
    rng = random.Random(5)
    logits = torch.tensor([[rng.gauss(0, 1) * size for _ in range(24)] for size in [1, 2, 4, 8] * 500]).double()
    known = logits.log_softmax(-1)
    entropies = -(known.exp() * known).sum(-1)
    sampled = torch.tensor([rng.choices(range(24), row)[0] for row in known.exp().tolist()])
    logps = known.gather(1, sampled[:, None])[:, 0]
    captured = (1.01 * logits).log_softmax(-1).gather(1, sampled[:, None])[:, 0] - logps
    surer = (logps + entropies).tolist()
    way = [1e-4 * one + rng.gauss(0, 3e-4) for one in surer]
    answers = [(at // 32, 0) for at in range(len(way))]
    assert share_gone(captured.tolist(), way, logps.tolist(), [0.0] * len(way), answers).is_sure
    share = share_gone(captured.tolist(), way, logps.tolist(), entropies.tolist(), answers)
    assert not share.is_sure
    assert not share.part.is_sure
    stale = share_gone(added(captured.tolist(), way), way, logps.tolist(), entropies.tolist(), answers)
    assert stale.is_sure
    assert stale.gone == pytest.approx(1 + share.gone)


@pytest.mark.parametrize("each", [5e-5, 3e-4, 4e-3, 0.3])
def test_the_way_between_versions_is_measured_where_rounding_does_not_hide_it(each: float) -> None:
    """Log-probabilities near -8 in bfloat16, whose places are 2^-5 apart there: all but the last of these ways are none
    of theirs, taken directly."""
    rng = random.Random(3)
    true = [rng.gauss(0, each) for _ in range(800)]
    start = [-8 + rng.random() for _ in true]

    def at(times: float) -> list[float]:
        exact = [own + times * one for own, one in zip(start, true, strict=True)]
        return torch.tensor(exact, dtype=torch.bfloat16).double().tolist()

    share = gone_of(way_to(at, at(0), rounded=True)[0], true)
    assert share.gone == pytest.approx(1, abs=0.08)
    assert math.sqrt(share.left) < 0.25 * each
    direct = gone_of(way_to(at, at(0), rounded=False)[0], true)
    assert each == 0.3 or math.sqrt(direct.left) > 0.9 * each


def test_a_way_that_cannot_be_gone_on_is_measured_directly() -> None:
    def at(times: float) -> list[float]:
        return [times if abs(times) <= 1 else math.nan] * 40

    assert way_to(at, at(0), rounded=True) == ([1.0] * 40, FIRST)
    assert way_to(lambda times: [0.0] * 40, [0.0] * 40, rounded=True)[0] == [0.0] * 40


def test_the_length_at_which_a_way_was_measured_is_where_the_next_one_begins() -> None:
    asked = []

    def at(times: float) -> list[float]:
        asked.append(times)
        return [2e-4 * times] * 40

    way, times = way_to(at, at(0), rounded=True)
    assert way == pytest.approx([2e-4] * 40)
    assert asked == [0, 16, -16, pytest.approx(250), pytest.approx(-250)]
    asked.clear()
    assert way_to(at, [0.0] * 40, rounded=True, times=times) == (way, times)
    assert asked == [times, -times]


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_in_bfloat16_a_stale_adapter_is_found_and_the_current_one_is_not_refused(
    engine: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The engine is PEFT's model in bfloat16, which rounds by itself: neighbouring versions are nearer to one another
    than it is to either."""
    model = make_model(SERVED, tmp_path_factory.getbasetemp() / "toy-bfloat16", "cpu")
    config = LearnerConfig(engine=engine, device="cpu", dtype="bfloat16", lora_rank=16, learning_rate=1e-4)
    learner = make_learner(model, config)
    served, rng = TorchEngine(model, learner), random.Random(1)
    for step in range(3):
        rows = [[rng.randrange(SERVED.vocabulary) for _ in range(80)] for _ in range(16)]
        version = f"p@{step}"
        if step:
            stale = sampled_runs(rows, 16, served.score(rows, 16, "before"), version)
            with pytest.raises(TrainingError, match=r"are those of the (version before it|base model)"):
                learner.step(stale, current_version=version)
            assert learner.steps == step
        learner.step(sampled_runs(rows, 16, served.score(rows, 16), version), current_version=version)
        served.take(learner)


@pytest.mark.parametrize(("dtype", "importance"), [("bfloat16", None), ("bfloat16", "clip"), ("float32", None)])
def test_what_an_engine_in_bfloat16_rounds_does_not_clip_the_ratio_of_a_trajectory(
    dtype: Any, importance: Any, base_model: Path
) -> None:
    """The engine is off by a hundredth of a nat in the mean of a trajectory, gspo's bounds are 3e-4 and 4e-4."""
    config = LearnerConfig(
        dtype=dtype,
        lora_rank=8,
        loss="gspo",
        importance=importance,
        max_logprob_difference=1.0,
        gradient_checkpointing=False,
    )
    learner = PackedLearner(base_model, config)
    rows = [[random.Random(seed).randrange(48) for _ in range(24)] for seed in range(8)]
    with torch.no_grad():
        logits = learner.model(input_ids=torch.tensor(rows)).logits[:, :-1].float()
    known = torch.log_softmax(logits, -1).gather(2, torch.tensor(rows)[:, 1:, None])[:, 15:, 0]
    off = torch.tensor([1e-2, 1e-2, -1e-2, -1e-2] * 2)[:, None]
    metrics = learner.step(sampled_runs(rows, 16, (known + off).tolist(), "p@0"), current_version="p@0")
    if dtype == "bfloat16" and importance is None:
        assert learner.config.correction == "token_truncate"
        assert (metrics.clip_fraction, metrics.ratio_mean) == (0, 1)
    else:
        assert learner.config.correction == "clip"
        assert metrics.clip_fraction == 0.5
