"""What a step keeps of every trained token: that which its loss used, beside the version, for the tokens it was for."""

from __future__ import annotations

import dataclasses
import io
import logging
import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import torch

from arttrace.records.sequence import TokenSequence
from arttrace.records.values import learned_tokens
from arttrace.records.values.learned_tokens import (
    CLIPPED,
    LEARNED_TOKENS,
    LEFT_OUT,
    MASKED,
    LearnedSequence,
    decode_learned,
    sequence_key,
)
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.interface import Sample
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.trl.engine import TrlLearner

LOOSE = LearnerConfig(lora_rank=8, learning_rate=1e-2, max_logprob_difference=1e9, micro_batch_tokens=20)
ENGINES = [PackedLearner, TrlLearner]
MakeSamples = Callable[[int], list[Sample]]


def read(directory: Path, samples: list[Sample]) -> dict[str, LearnedSequence]:
    keys = {sequence_key(sequence) for sample in samples for sequence in sample.sequences}
    return decode_learned(io.BytesIO((directory / LEARNED_TOKENS).read_bytes()), keys).sequences


def apart(samples: list[Sample]) -> list[Sample]:
    """The samples with call ids of their own, as recorded runs have them."""
    return [
        dataclasses.replace(
            sample,
            sequences=tuple(
                msgspec.structs.replace(one, call_ids=(f"{one.trajectory_id}-{number}",))
                for number, one in enumerate(sample.sequences)
            ),
        )
        for sample in samples
    ]


def computed(learner: BaseLearner, sequence: TokenSequence) -> dict[int, float]:
    """By place, the log-probability under the model as it is now, of each trained token."""
    with torch.no_grad():
        logits = learner.model(input_ids=torch.tensor([list(sequence.token_ids)])).logits[0]
    logps = torch.log_softmax(logits.double(), -1)
    return {at: float(logps[at - 1, sequence.token_ids[at]]) for at, trained in enumerate(sequence.trained) if trained}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_step_keeps_what_its_loss_used(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    samples = apart(make_samples(1))
    learner = engine(base_model, dataclasses.replace(LOOSE, loss="dapo", epochs=2))
    learner.step(apart(make_samples(2)))  # the policy has moved away from the base model
    before = {sequence_key(one): computed(learner, one) for sample in samples for one in sample.sequences}
    learner.step(samples)
    learner.save(tmp_path)
    found = read(tmp_path, samples)
    low, high = learner.config.clip_range
    for sample in samples:
        for sequence in sample.sequences:
            key = sequence_key(sequence)
            if sample.advantage == 0:
                assert key not in found, "it has no gradient, and is not computed"
                continue
            one = found[key]
            assert set(one.advantages) == {sample.advantage}
            assert one.places == tuple(before[key])
            assert one.logprobs == pytest.approx(list(before[key].values()), rel=2e-3, abs=2e-3)
            for place, logprob, ratio, flags in zip(one.places, one.logprobs, one.ratios, one.flags, strict=True):
                sampled = sequence.logprobs[place]
                assert sampled is not None
                exact = torch.tensor(before[key][place] - sampled).exp().item()
                assert ratio == pytest.approx(exact, rel=5e-3)
                assert logprob <= 0
                if abs(exact - low) > 0.01 and abs(exact - high) > 0.01:
                    beyond = exact > high if sample.advantage > 0 else exact < low
                    assert bool(flags & CLIPPED) == beyond
                assert not flags & LEFT_OUT


@pytest.mark.parametrize("engine", [PackedLearner, TrlLearner])
def test_a_token_beyond_the_bound_is_marked(
    engine: type[BaseLearner], base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    learner = PackedLearner(base_model, LOOSE)
    samples = apart(make_samples(1))
    exact = [
        dataclasses.replace(
            sample,
            sequences=tuple(
                msgspec.structs.replace(
                    one, logprobs=tuple(computed(learner, one).get(at) for at in range(len(one.token_ids)))
                )
                for one in sample.sequences
            ),
        )
        for sample in samples
    ]
    first = exact[0].sequences[0]
    at = first.trained.index(1)
    wrong = [*first.logprobs]
    wrong[at] = -30.0
    exact[0] = dataclasses.replace(exact[0], sequences=(msgspec.structs.replace(first, logprobs=tuple(wrong)),))
    strict = engine(base_model, dataclasses.replace(LOOSE, max_logprob_difference=8.0))
    assert strict.step(exact, current_version="p@0").masked_tokens == 1
    strict.save(tmp_path)
    one = read(tmp_path, exact)[sequence_key(first)]
    assert [place for place, flags in zip(one.places, one.flags, strict=True) if flags & LEFT_OUT] == [at]


def test_what_the_importance_mask_dropped_is_distinguished_from_what_was_clipped(
    base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    masking = dataclasses.replace(LOOSE, importance="token_mask", importance_clip_max=1.5, importance_clip_min=0.7)
    learner, samples = PackedLearner(base_model, masking), apart(make_samples(1))
    before = {sequence_key(one): computed(learner, one) for sample in samples for one in sample.sequences}
    metrics = learner.step(samples)
    learner.save(tmp_path)
    sampled = {sequence_key(one): one.logprobs for sample in samples for one in sample.sequences}
    masked = 0
    for key, one in read(tmp_path, samples).items():
        for place, flags in zip(one.places, one.flags, strict=True):
            assert not flags & CLIPPED, "the ratio starts from the policy before the step: it is 1"
            weight = math.exp(before[key][place] - (sampled[key][place] or 0.0))
            if min(abs(weight - 0.7), abs(weight - 1.5)) > 0.01:
                assert bool(flags & MASKED) == (not 0.7 <= weight <= 1.5)
            masked += bool(flags & MASKED)
    assert masked > 0
    assert metrics.clip_fraction > 0


def test_a_ratio_beyond_sixteen_bits_is_the_largest_that_they_hold(
    base_model: Path, tmp_path: Path, make_samples: MakeSamples
) -> None:
    """It was infinite, which JSON has no number for."""
    samples = apart(make_samples(1))
    first = samples[0].sequences[0]
    at = first.trained.index(1)
    rare = tuple(-40.0 if place == at else logprob for place, logprob in enumerate(first.logprobs))
    samples[0] = dataclasses.replace(samples[0], sequences=(msgspec.structs.replace(first, logprobs=rare),))
    learner = PackedLearner(base_model, LOOSE)
    learner.step(samples)
    learner.save(tmp_path)
    one = read(tmp_path, samples)[sequence_key(first)]
    assert one.ratios[one.places.index(at)] == 65504


def test_what_another_step_computed_is_not_kept(base_model: Path, tmp_path: Path, make_samples: MakeSamples) -> None:
    learner = PackedLearner(base_model, LOOSE)
    for name in ("p@1", "p@2"):
        (tmp_path / name).mkdir()
    learner.step(make_samples(1))
    learner.save(tmp_path / "p@1")
    learner.load(tmp_path / "p@1")
    learner.save(tmp_path / "p@2")
    assert not (tmp_path / "p@2" / LEARNED_TOKENS).exists()


def test_a_disk_that_refuses_the_file_costs_a_warning(
    base_model: Path, tmp_path: Path, make_samples: MakeSamples, caplog: pytest.LogCaptureFixture
) -> None:
    learner = PackedLearner(base_model, LOOSE)
    learner.step(make_samples(1))
    (tmp_path / LEARNED_TOKENS).mkdir()  # nothing can be written under the name
    with caplog.at_level(logging.WARNING, "trainer"):
        learner.save(tmp_path)
    assert "was not written" in caplog.text
    PackedLearner(base_model, LOOSE).load(tmp_path)


def test_the_file_is_bounded_and_a_damaged_one_is_distinguished_from_a_sound_one(
    base_model: Path, tmp_path: Path, make_samples: MakeSamples, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, samples = PackedLearner(base_model, LOOSE), apart(make_samples(1))
    learner.step(samples)
    learner.save(tmp_path)
    whole = (tmp_path / LEARNED_TOKENS).read_bytes()
    assert len(read(tmp_path, samples)) > 1
    keys = {sequence_key(sequence) for sample in samples for sequence in sample.sequences}
    for damaged in (b"", whole[:10], whole[:40], whole[:-3], whole.replace(b"sequences", b"sequencer")):
        with pytest.raises(ValueError, match=r"damaged|no file|unlikely"):
            decode_learned(io.BytesIO(damaged), keys)
    monkeypatch.setattr(learned_tokens, "MOST_BYTES", 200)
    learner.save(tmp_path)
    assert 0 < len((tmp_path / LEARNED_TOKENS).read_bytes()) < 400
    found = decode_learned(io.BytesIO((tmp_path / LEARNED_TOKENS).read_bytes()), keys)
    assert found.without_room > 0
    total = sum(sum(one.trained) for sample in samples if sample.advantage for one in sample.sequences)
    assert found.without_room + sum(len(one.places) for one in found.sequences.values()) == total
