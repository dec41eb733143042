"""The odd batches: one-token answers, ids that mean padding elsewhere, masked trajectories, damaged rows, no memory."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from float64_reference import Reference, make_learner, near_policy, trainable
from torch.utils._python_dispatch import TorchDispatchMode

from arttrace.records.sequence import TokenSequence
from arttrace.rewards.combine import MOST_REWARD
from arttrace.system.errors import TrainingError
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import NotFinite, Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.packed.losses import Before, loss_terms
from trainer.learner.policy_model import make_optimizer, optimizer_settings
from trainer.learner.samples import split_minibatches
from trainer.learner.trl.engine import TrlLearner

pytestmark = pytest.mark.usefixtures("double_norms")

MakeSamples = Callable[[int], list[Sample]]


def sequence(ids: tuple[int, ...], trained: tuple[int, ...], trajectory: str = "t", agent: str = "a") -> TokenSequence:
    return TokenSequence(
        trajectory_id=trajectory,
        revision="r",
        agent_id=agent,
        token_ids=ids,
        trained=trained,
        logprobs=tuple(-3.0 if flag else None for flag in trained),
        versions=tuple(0 if flag else -1 for flag in trained),
        policy_versions=("p@0",),
        call_ids=("c",),
    )


def assert_gradients(gradients: dict[str, torch.Tensor], reference: Reference) -> None:
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, reference.adapter[name].grad, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("engine", ["packed", "trl"])
@pytest.mark.parametrize("loss", ["dapo", "grpo", "gspo"])
def test_one_token_answers_and_ids_that_mean_padding_elsewhere(base_model: Path, engine: str, loss: str) -> None:
    learner, gradients = make_learner(base_model, engine, loss=loss, kl_weight=0.1, use_bias_correction_kl=False)
    reference = Reference(base_model, trainable(learner))
    samples = [
        Sample((sequence((5, 0), (0, 1)),), 0.5),
        Sample((sequence((5, 7), (0, 1)),), -0.5),
        Sample((sequence((0, 0, 0, 0), (0, 1, 1, 1)),), 0.7),
        Sample((sequence((1, 47, 2, 2, 0), (0, 1, 0, 1, 1)),), -0.7),
    ]
    samples = near_policy(reference, samples, 0.3)
    metrics = learner.step(samples)
    expected, _, _ = reference.loss(samples, learner.config)
    expected.backward()
    assert metrics.trained_tokens == 8
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    assert_gradients(gradients[0], reference)


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_the_largest_reward_moves_the_policy(base_model: Path, engine: str) -> None:
    """The norm of its gradient is a number: clipped by one that is none, a gradient would be zeros."""
    learner, _ = make_learner(base_model, engine, dtype="float32", max_grad_norm=1.0)
    before = trainable(learner)
    answers = (sequence((5, 7, 9), (0, 1, 1)), MOST_REWARD), (sequence((5, 9, 7), (0, 1, 1)), -MOST_REWARD)
    metrics = learner.step([Sample((answer,), advantage) for answer, advantage in answers])
    assert math.isfinite(metrics.grad_norm)
    assert not all(torch.equal(weight, before[name]) for name, weight in trainable(learner).items())


@pytest.mark.parametrize("sampled", [-800.0, -30.0])
@pytest.mark.parametrize("engine", ["packed", "trl"])
@pytest.mark.parametrize(
    ("loss", "kl_weight"), [*((loss, kl) for loss in ("dapo", "grpo", "gspo") for kl in (0.0, 0.1)), ("cispo", 0.1)]
)
def test_a_token_that_was_sampled_by_a_policy_far_away_costs_no_other(
    base_model: Path, engine: str, loss: str, kl_weight: float, sampled: float
) -> None:
    """Its ratio is above e^20, or no number at all: with an advantage below 0 nothing bounds what it does to a step,
    and nor does anything in a KL term that is multiplied by it."""
    settings = {"loss": loss, "kl_weight": kl_weight, "use_bias_correction_kl": loss == "cispo"}
    learner, gradients = make_learner(base_model, engine, **settings)
    reference = Reference(base_model, trainable(learner))
    near = near_policy(
        reference, [Sample((sequence((5, 7), (0, 1)),), 0.5), Sample((sequence((9, 0), (0, 1)),), -0.7)], 0.3
    )
    far = msgspec.structs.replace(sequence((1, 47), (0, 1)), logprobs=(None, sampled))
    metrics = learner.step([*near, Sample((far,), -0.5)])
    expected = reference.loss(near, learner.config)[0] * 2 / 3
    expected.backward()
    assert metrics.far_tokens == 1
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    assert metrics.ratio_mean == pytest.approx((2 * learner.step(near).ratio_mean + 1) / 3, rel=0.1), "1 for it"
    assert_gradients(gradients[0], reference)


@pytest.mark.parametrize(("loss", "kl_weight"), [("dapo", 0.0), ("dapo", 0.1), ("cispo", 0.1)])
@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_a_step_of_tokens_from_far_away_alone_is_refused(
    base_model: Path, engine: str, loss: str, kl_weight: float
) -> None:
    learner, _ = make_learner(base_model, engine, loss=loss, kl_weight=kl_weight)
    before = trainable(learner)
    far = msgspec.structs.replace(sequence((1, 47), (0, 1)), logprobs=(None, -800.0))
    with pytest.raises(NotFinite, match="The policy has moved too far from every token"):
        learner.step([Sample((far,), -0.5)])
    assert all(torch.equal(after, before[name]) for name, after in trainable(learner).items())


@pytest.mark.parametrize("engine", ["packed", "trl"])
def test_equal_rewards_with_a_kl_term_train_the_kl_term_alone(
    base_model: Path, make_samples: MakeSamples, engine: str
) -> None:
    learner, gradients = make_learner(base_model, engine, loss="grpo", kl_weight=0.2)
    reference = Reference(base_model, trainable(learner))
    samples = [Sample(s.sequences, 0.0) for s in make_samples(1)]
    metrics = learner.step(samples)
    expected, _, _ = reference.loss(samples, learner.config)
    expected.backward()
    assert not metrics.skipped
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    assert_gradients(gradients[0], reference)


def test_one_token_that_the_reference_finds_likely_does_not_outweigh_a_step() -> None:
    """Of 4,000 tokens one was sampled against odds of 1 to 6,000: the KL term's gradient stays of the order of a
    reward's, and where the bias is not corrected it is hundreds of times as large."""
    d = torch.zeros(4000, dtype=torch.float64)
    d[7] = 8.7
    found = {}
    for corrected in (True, False):
        logps = torch.full_like(d, -0.01).requires_grad_()
        config = LearnerConfig(kl_weight=0.05, use_bias_correction_kl=corrected)
        before = Before(logps.detach(), logps.detach(), logps.detach() + d)
        terms = loss_terms(config, logps, torch.zeros_like(d), before)
        (found[corrected],) = torch.autograd.grad(terms.loss.sum(), logps)
    assert found[True][7].item() == pytest.approx(-0.05 * 8.7)
    assert found[False][7].item() == pytest.approx(-0.05 * (math.exp(8.7) - 1))
    assert found[True].count_nonzero() == found[False].count_nonzero() == 1


@pytest.mark.parametrize("kl_weight", [0.0, 0.1])
@pytest.mark.parametrize("loss", ["grpo", "gspo"])
def test_an_agent_with_its_own_advantage_of_zero_stays_part_of_its_trajectory(
    base_model: Path, make_samples: MakeSamples, loss: str, kl_weight: float
) -> None:
    """gspo's ratio is that of the whole trajectory, whether or not a KL term makes every row go through the model."""
    learner, gradients = make_learner(base_model, loss=loss, kl_weight=kl_weight, micro_batch_tokens=60)
    reference = Reference(base_model, trainable(learner))
    samples = []
    for sample in near_policy(reference, make_samples(1), 0.3):
        first, *others = sample.sequences
        others = [msgspec.structs.replace(one, agent_id="helper") for one in others]
        samples.append(Sample((first, *others), sample.advantage, {"helper": 0.0} if others else {}))
    assert any(sample.agent_advantages for sample in samples)
    metrics = learner.step(samples)
    expected, _, _ = reference.loss(samples, learner.config)
    expected.backward()
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    assert_gradients(gradients[0], reference)


def test_a_trajectory_whose_every_token_is_masked_counts_and_pushes_nothing(
    base_model: Path, make_samples: MakeSamples
) -> None:
    learner, gradients = make_learner(
        base_model, importance="token_mask", importance_clip_max=1.5, importance_clip_min=1 / 1.5
    )
    reference = Reference(base_model, trainable(learner))
    stale, *others = near_policy(reference, make_samples(1), 0.05)
    stale = Sample(
        tuple(
            msgspec.structs.replace(q, logprobs=tuple(None if p is None else p - 2.0 for p in q.logprobs))
            for q in stale.sequences
        ),
        stale.advantage,
    )
    metrics = learner.step([stale, *others])
    expected, _, active = reference.loss([stale, *others], learner.config)
    expected.backward()
    assert metrics.loss == pytest.approx(expected.item(), abs=1e-12)
    assert_gradients(gradients[0], reference)
    masked = sum(q.trained_tokens for q in stale.sequences)
    assert metrics.clip_fraction == pytest.approx(masked / active), "what is masked is shown"

    before = trainable(learner)
    with pytest.raises(NotFinite, match="left out every token") as raised:  # costs a daemon its round alone
        learner.step([stale])
    assert "importance_clip_max" in raised.value.hint
    assert all(torch.equal(weight, before[name]) for name, weight in trainable(learner).items())


def test_an_unequal_minibatch_and_a_dropped_one_count_what_was_forwarded(
    base_model: Path, make_samples: MakeSamples
) -> None:
    one = make_samples(1)[0]
    samples = [one, Sample((sequence((1, 2, 3), (0, 1, 1)),), 0.0)]
    config = LearnerConfig(lora_rank=8, max_logprob_difference=1e9)
    once = PackedLearner(base_model, config).step([one]).forwarded_tokens
    several = dataclasses.replace(config, epochs=3, minibatches=4)
    assert PackedLearner(base_model, several).step(samples).forwarded_tokens == once


def test_minibatches_are_the_same_whatever_the_order_of_twins(make_samples: MakeSamples) -> None:
    """Twins have the same tokens and advantage, but were sampled with other log-probabilities."""
    (ids, trained) = ((1, 2, 3), (0, 1, 1))
    samples = [
        Sample((msgspec.structs.replace(sequence(ids, trained), logprobs=(None, -1.0 - n, -1.0)),), 0.5)
        for n in range(4)
    ]
    samples += make_samples(1)
    assert split_minibatches(samples, 3) == split_minibatches(samples[::-1], 3)


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"token_ids": (1, -7, 3)}, "Token id -7 of trajectory t-9 "),
        ({"token_ids": (1, 48, 3)}, "Token id 48 of trajectory t-9 "),
        ({"token_ids": (1, 2)}, "trajectory t-9 .* 2 token ids"),
        ({"logprobs": (None, -1.0)}, "trajectory t-9 .* 2 log-probabilities"),
        ({"versions": (-1, 0)}, "trajectory t-9 .* 2 versions"),
        ({"logprobs": (None, 0.5, -1.0)}, "trajectory t-9 .*0.5"),
        ({"logprobs": (None, -9999.0, -1.0)}, "trajectory t-9 .*-9999"),
    ],
)
def test_a_damaged_sequence_is_named_with_its_trajectory(
    base_model: Path, engine: type[BaseLearner], fields: dict[str, Any], message: str
) -> None:
    damaged = msgspec.structs.replace(sequence((1, 2, 3), (0, 1, 1), "t-9"), **fields)
    learner = engine(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))
    with pytest.raises(TrainingError, match=message) as raised:
        learner.step([Sample((sequence((1, 2, 3), (0, 1, 1)),), -1.0), Sample((damaged,), 1.0)])
    assert raised.value.hint
    assert learner.steps == 0


@pytest.mark.parametrize("targets", [("q_proj", "qroj"), ("nothing",)])
def test_a_lora_target_that_does_not_exist_is_named(base_model: Path, targets: tuple[str, ...]) -> None:
    with pytest.raises(TrainingError, match=repr(targets[-1])) as raised:
        PackedLearner(base_model, LearnerConfig(lora_rank=8, lora_targets=targets))
    assert "q_proj" in raised.value.hint


@pytest.mark.parametrize(
    "wrong",
    [
        {"adam_betas": (0.9, 1.0)},
        {"adam_epsilon": 0.0},
        {"max_logprob_difference": -0.1},
        {"kl_reference": "policies/one"},
        {"epsilon_low": float("nan"), "loss": "dapo"},
        {"epsilon_low": 0.1},
        {"epsilon_high": 5.0},
        {"max_kl": 0.5},
        {"max_kl": 0.0, "kl_weight": 0.1},
        {"learning_rate": float("inf")},
        {"kl_weight": float("inf")},
        {"adam_epsilon": float("inf")},
        {"weight_decay": float("inf")},
        {"cispo_max_ratio": float("inf")},
        {"max_logprob_difference": float("inf")},
        {"max_grad_norm": float("inf")},
        {"seed": 2**32},
    ],
)
def test_settings_without_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(TrainingError, match=next(iter(wrong))):
        LearnerConfig(**wrong).checked()


def test_the_optimizer_follows_the_config_and_not_the_one_before(base_model: Path, tmp_path: Path) -> None:
    PackedLearner(base_model, LearnerConfig(lora_rank=8)).save(tmp_path)
    changed = LearnerConfig(lora_rank=8, weight_decay=0.1, adam_betas=(0.8, 0.95), adam_epsilon=1e-6)
    learner = PackedLearner(base_model, changed)
    learner.load(tmp_path)
    (group,) = learner.optimizer.param_groups
    assert (group["weight_decay"], group["betas"], group["eps"]) == (0.1, (0.8, 0.95), 1e-6)


def test_on_a_card_an_optimizer_step_takes_no_memory_that_could_run_out_half_way(
    base_model: Path, make_samples: MakeSamples
) -> None:
    """Where memory ran out between a moment and its weight, the step was begun again, and moved the moments twice."""
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))
    learner.optimizer = make_optimizer(learner.model, LearnerConfig(device="cuda"))  # which runs on a CPU, too
    learner.step(make_samples(0))
    taken: set[str] = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "aten":
                taken.add(func._opname)
            return func(*args, **(kwargs or {}))

    for parameter in learner.model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    with Watch():
        learner.optimizer.step()
    assert taken
    assert all(name.endswith("_") for name in taken), "each writes where something is already"


def test_a_state_goes_on_from_a_cpu_to_a_card_and_back(base_model: Path, make_samples: MakeSamples) -> None:
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9))
    learner.step(make_samples(0))
    for device, fused in (("cuda", True), ("cpu", None)):
        settings = optimizer_settings(LearnerConfig(device=device))  # type: ignore[arg-type]
        for group in learner.optimizer.param_groups:
            group.update(settings)
        assert learner.optimizer.param_groups[0]["fused"] is fused
        learner.step(make_samples(1))


@pytest.mark.parametrize(
    ("fault", "raised"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), TrainingError),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9"),
            TrainingError,
        ),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), TrainingError),
        (KeyboardInterrupt(), KeyboardInterrupt),
    ],
)
def test_a_step_broken_off_half_way_leaves_weights_and_optimizer_as_they_were(
    base_model: Path,
    make_samples: MakeSamples,
    monkeypatch: pytest.MonkeyPatch,
    fault: BaseException,
    raised: type[BaseException],
) -> None:
    """The fault is a stand-in for memory that is truly full: it comes in the second of two optimizer steps."""
    learner = PackedLearner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e9, epochs=2))
    learner.step(make_samples(0))
    before, second_pass = trainable(learner), learner._optimise
    state_before = copy.deepcopy(learner.optimizer.state_dict()["state"])

    def optimise(minibatch: Any, tally: Any, *rest: Any) -> None:
        if tally.optimizer_steps:
            raise fault
        second_pass(minibatch, tally, *rest)

    monkeypatch.setattr(learner, "_optimise", optimise)
    with pytest.raises(raised) as error:
        learner.step(make_samples(1))
    if isinstance(error.value, TrainingError):
        assert "micro_batch_tokens" in error.value.hint
    assert all(torch.equal(weight, before[name]) for name, weight in trainable(learner).items())
    state = learner.optimizer.state_dict()["state"]
    assert {int(one["step"]) for one in state.values()} == {2}
    assert all(torch.equal(one["exp_avg"], state_before[number]["exp_avg"]) for number, one in state.items())


def test_bfloat16_keeps_the_adapter_in_float32_and_goes_the_way_of_float32(
    base_model: Path, make_samples: MakeSamples
) -> None:
    found = {}
    for engine, dtype in (("packed", "float32"), ("packed", "bfloat16"), ("trl", "bfloat16")):
        learner, gradients = make_learner(base_model, engine, dtype=dtype, loss="dapo")
        samples = near_policy(Reference(base_model, trainable(learner)), make_samples(2), 0.1)
        metrics = learner.step(samples)
        assert {parameter.dtype for parameter in trainable(learner).values()} == {torch.float32}
        found[engine, dtype] = metrics, torch.cat([g.flatten() for _, g in sorted(gradients[0].items())])
    exact = found.pop(("packed", "float32"))
    for metrics, gradient in found.values():
        assert metrics.loss == pytest.approx(exact[0].loss, abs=0.02)
        assert metrics.logprob_difference_mean < exact[0].logprob_difference_mean + 0.05
        assert torch.cosine_similarity(gradient, exact[1], dim=0) > 0.99


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
def test_a_step_tells_how_far_it_is(
    engine: type[BaseLearner], base_model: Path, make_samples: Callable[[int], list[Sample]]
) -> None:
    learner = engine(base_model, LearnerConfig(epochs=2, micro_batch_tokens=1, max_logprob_difference=1e6))
    shown: list[tuple[int, int]] = []
    learner.progress = lambda total: lambda done: shown.append((done, total))
    metrics = learner.step(make_samples(0))
    total = 2 * metrics.forwarded_tokens
    assert [done for done, _ in shown] == sorted({done for done, _ in shown})
    assert len(shown) > 2
    assert shown[-1] == (total, total)
