"""One optimisation step against the float64 reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
import torch
from float64_reference import RATE, Reference, make_learner, near_policy, trainable

from arttrace.system.errors import TrainingError
from trainer.learner.config import Loss
from trainer.learner.interface import Sample

pytestmark = pytest.mark.usefixtures("double_norms")

CASES: list[dict[str, Any]] = [
    {"loss": "dapo"},
    {"loss": "dapo", "micro_batch_tokens": 40},
    {"loss": "dapo", "kl_weight": 0.1, "micro_batch_tokens": 60},
    {"loss": "grpo", "micro_batch_tokens": 60},
    {"loss": "grpo", "kl_weight": 0.1, "use_bias_correction_kl": False},
    {"loss": "dr_grpo", "dr_grpo_length": 7, "micro_batch_tokens": 60},
    {"loss": "cispo", "cispo_max_ratio": 1.1, "micro_batch_tokens": 60},
    {"loss": "gspo", "micro_batch_tokens": 30},
    {"loss": "gspo", "kl_weight": 0.1, "use_bias_correction_kl": False},
    {"loss": "dapo", "importance": "token_truncate", "importance_clip_max": 1.1, "micro_batch_tokens": 60},
    {"loss": "dapo", "importance": "token_truncate", "importance_clip_max": 1.1, "importance_clip_min": 0.9},
    {"loss": "dapo", "importance": "token_mask", "importance_clip_max": 1.2, "importance_clip_min": 0.8},
    {"loss": "dapo", "importance": "sequence_truncate", "importance_clip_max": 1.1, "micro_batch_tokens": 40},
    {"loss": "grpo", "importance": "sequence_mask", "importance_clip_max": 1.2},
    {"loss": "gspo", "importance": "sequence_mask", "importance_clip_max": 1.2, "micro_batch_tokens": 40},
    {"loss": "dapo", "importance_sampling_level": "sequence", "micro_batch_tokens": 40},
    {"loss": "cispo", "importance_sampling_level": "sequence", "cispo_max_ratio": 1.01},
    {"loss": "dr_grpo", "importance_sampling_level": "sequence", "delta": 1.31},
    {"loss": "dapo", "delta": 1.35, "micro_batch_tokens": 60},
    {"loss": "grpo", "kl_weight": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False},
    {"loss": "gspo", "kl_weight": 0.1, "kl_estimator": "k1"},
    {"loss": "dapo", "kl_weight": 0.1, "temperatures": (0.7, 1.2)},
    {"loss": "dapo", "gradient_checkpointing": True, "micro_batch_tokens": 60},
    {"loss": "cispo", "cispo_max_ratio": 1.1, "temperatures": (0.5, 1.0, 1.5), "micro_batch_tokens": 60},
    {"loss": "grpo", "temperatures": (0.7,), "kl_weight": 0.1},
]


def computed_by(engine: str, case: dict[str, Any]) -> bool:
    return engine == "packed" or not {"importance", "kl_estimator"} & case.keys()


def sampled_at(samples: list[Sample], temperatures: tuple[float, ...]) -> list[Sample]:
    """The samples as if their targets had been sampled at these temperatures, by turns."""
    return [
        Sample(
            tuple(
                msgspec.structs.replace(
                    sequence,
                    temperatures=tuple(
                        temperatures[place % len(temperatures)] if trained else 1.0
                        for place, trained in enumerate(sequence.trained)
                    )
                    if temperatures
                    else (),
                )
                for sequence in sample.sequences
            ),
            sample.advantage,
            sample.agent_advantages,
        )
        for sample in samples
    ]


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
    temperatures = case.get("temperatures", ())
    learner, gradients = make_learner(
        base_model, engine, **{name: value for name, value in case.items() if name != "temperatures"}
    )
    config = learner.config
    before = trainable(learner)
    reference = Reference(base_model, before)
    samples = near_policy(reference, sampled_at(make_samples(1), temperatures), 0.3)
    assert {len(s.sequences) for s in samples} == {1, 2, 3}
    if engine == "trl" and config.ratio_of_trajectory:
        with pytest.raises(TrainingError, match="several rows"):
            learner.step(samples)
        samples = [Sample(s.sequences[:1], s.advantage) for s in samples]

    metrics = learner.step(samples)
    expected, clipped, active = reference.loss(samples, config)
    expected.backward()

    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    if config.correction == "clip" and not config.ratio_of_trajectory:
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


def distilled(reference: Reference, teacher: Reference, samples: list[Sample]) -> list[Sample]:
    """The samples with what their tokens teach by another model's log-probability less the sampler's."""
    found = []
    for sample in samples:
        of_tokens = []
        for sequence in sample.sequences:
            rated = teacher.logps(sequence.token_ids, adapted=False, temperatures=sequence.temperatures).detach()
            of_tokens.append(
                tuple(
                    0.0 if captured is None else float(rated[t - 1, sequence.token_ids[t]]) - captured
                    for t, captured in enumerate(sequence.logprobs)
                )
            )
        found.append(Sample(sample.sequences, 0.0, {}, tuple(of_tokens)))
    return found


@pytest.mark.parametrize("engine", ["packed", "trl"])
@pytest.mark.parametrize(
    "case",
    [
        {"loss": "cispo", "micro_batch_tokens": 60},
        {"loss": "dapo", "micro_batch_tokens": 40},
        {"loss": "grpo", "kl_weight": 0.1},
        {"loss": "dapo", "temperatures": (0.7, 1.2)},
        {"loss": "gspo", "micro_batch_tokens": 40},
        {"loss": "gspo", "kl_weight": 0.1, "use_bias_correction_kl": False},
        {"loss": "dapo", "importance_sampling_level": "sequence", "micro_batch_tokens": 60},
        {"loss": "cispo", "importance_sampling_level": "sequence", "cispo_max_ratio": 1.01},
    ],
    ids=lambda case: "-".join(map(str, case.values())),
)
def test_gradients_of_a_distillation_equal_the_reference(
    base_model: Path,
    other_model: Path,
    make_samples: Callable[[int], list[Sample]],
    engine: str,
    case: dict[str, Any],
) -> None:
    """Every token has an advantage of its own: the teacher's log-probability less that under which it was sampled."""
    options = {name: value for name, value in case.items() if name != "temperatures"}
    learner, gradients = make_learner(base_model, engine, **options)
    reference = Reference(base_model, trainable(learner))
    sampled = near_policy(reference, sampled_at(make_samples(1), case.get("temperatures", ())), 0.3)
    samples = distilled(reference, Reference(other_model, {}), sampled)
    if engine == "trl" and learner.config.ratio_of_trajectory:
        with pytest.raises(TrainingError, match="one ratio per row"):
            learner.step([Sample(s.sequences[:1], 0.0, {}, s.token_advantages[:1]) for s in samples])
        return
    metrics = learner.step(samples)
    expected, _, active = reference.loss(samples, learner.config)
    expected.backward()
    assert active == metrics.trained_tokens > 0
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-10)
    for name, gradient in gradients[0].items():
        wanted = reference.adapter[name].grad
        assert wanted is not None
        assert wanted.abs().max() > 1e-6, name
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_a_learner_rates_what_was_sampled_as_its_base_model_does(
    other_model: Path, make_samples: Callable[[int], list[Sample]], engine: str
) -> None:
    """Also in parts; beginnings that runs share are computed once, and have one rating."""
    sequences = [q for sample in sampled_at(make_samples(1), (0.7, 1.0)) for q in sample.sequences]
    learner, _ = make_learner(other_model, engine, micro_batch_tokens=40)
    teacher = Reference(other_model, {})
    told: list[int] = []
    rated = learner.rate(sequences, told.append)
    assert [len(one) for one in rated] == [len(sequence.token_ids) for sequence in sequences]
    for sequence, values in zip(sequences, rated, strict=True):
        expected = teacher.logps(sequence.token_ids, adapted=False, temperatures=sequence.temperatures).detach()
        for place, (trained, value) in enumerate(zip(sequence.trained, values, strict=True)):
            wanted = float(expected[place - 1, sequence.token_ids[place]]) if trained else None
            assert value == (None if wanted is None else pytest.approx(wanted, abs=1e-9))
    assert told == sorted(told)
    assert told[-1] == sum(sequence.trained_tokens for sequence in sequences)


def test_tokens_that_runs_share_learn_by_one_advantage(
    base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    """Two runs that sampled alike: the forest computes their tokens once; each run's advantage holds for its own."""
    learner, gradients = make_learner(base_model, "packed", loss="cispo")
    reference = Reference(base_model, trainable(learner))
    first = near_policy(reference, make_samples(1), 0.3)[0]
    of_tokens = tuple(tuple(0.1 * t - 0.4 for t in range(len(q.token_ids))) for q in first.sequences)
    twins = [Sample(first.sequences, 0.0, {}, of_tokens), Sample(first.sequences, 0.5, {}, of_tokens)]
    learner.step(twins)
    reference.loss(twins, learner.config)[0].backward()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradient, reference.adapter[name].grad, rtol=1e-8, atol=1e-12)


def test_every_loss_is_compared() -> None:
    assert {case["loss"] for case in CASES} == set(get_args(Loss))


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
