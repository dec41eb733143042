"""A part of a step that another version sampled: one replica of two that missed the swap."""

from __future__ import annotations

import dataclasses
import math
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from arttrace.system.errors import TrainingError
from benchmarks.card.shapes import make_model
from benchmarks.card.torch_engine import TorchEngine, sampled_runs
from tests.trainer.learner.test_agreement import BFLOAT16, SERVED, as_sampled_by, scored
from trainer.learner import make_learner
from trainer.learner.base import BaseLearner
from trainer.learner.config import LearnerConfig
from trainer.learner.packed.engine import PackedLearner
from trainer.learner.samples import TokenRow
from trainer.learner.stale_adapter.looked_at import Looker
from trainer.learner.stale_adapter.parts import LEAST_EVIDENCE, part_gone
from trainer.learner.stale_adapter.share import share_gone, way_to
from trainer.learner.trl.engine import TrlLearner


@pytest.mark.parametrize(
    ("engine", "stale", "noise"),
    [
        *[(PackedLearner, stale, noise) for stale, noise in ((5, 0.0), (12, 0.0), (12, 0.01), (20, 0.01))],
        (TrlLearner, 12, 0.01),
        *[pytest.param(TrlLearner, *case, marks=pytest.mark.full) for case in ((5, 0.0), (12, 0.0), (20, 0.01))],
    ],
)
def test_the_runs_of_a_stale_replica_are_counted_and_one_is_named(
    engine: type[BaseLearner], base_model: Path, stale: int, noise: float
) -> None:
    learner = engine(base_model, dataclasses.replace(BFLOAT16, learning_rate=2e-2))
    learner.step(scored(learner, "p@0", noise=noise), current_version="p@0")
    before = scored(learner, "p@1", noise=noise, seed=1)
    learner.step(scored(learner, "p@1", noise=noise, seed=2), current_version="p@1")
    now = scored(learner, "p@2", noise=noise, seed=3)
    mixed = [*as_sampled_by(before, "p@2")[:stale], *now[stale:]]
    with pytest.raises(TrainingError, match="the version before it") as refused:
        learner.step(mixed, current_version="p@2")
    found = re.search(r"in (\d+) of (\d+) runs looked at, such as t(\d+): (\d+)% of their", refused.value.message)
    assert found is not None, refused.value.message
    assert int(found[2]) == 24
    assert abs(int(found[1]) - stale) <= (0 if noise == 0 else 2)
    assert int(found[3]) < stale
    assert int(found[4]) == pytest.approx(100 * stale / 24, abs=6)
    assert learner.steps == 2
    assert learner.step(now, current_version="p@2").checked_tokens == 240


def test_in_bfloat16_a_stale_half_is_found_and_the_current_version_is_not_refused(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    served_shape = dataclasses.replace(SERVED, layers=2)  # of one the half is not told apart
    model = make_model(served_shape, tmp_path_factory.getbasetemp() / "toy-part", "cpu")
    config = LearnerConfig(device="cpu", dtype="bfloat16", lora_rank=16, learning_rate=1e-4)
    learner: Any = make_learner(model, config)
    served, rng = TorchEngine(model, learner), random.Random(5)
    for step in range(3):
        rows = [[rng.randrange(SERVED.vocabulary) for _ in range(64)] for _ in range(24)]
        version = f"p@{step}"
        if step == 2:
            half = [*served.score(rows[:12], 16, "before"), *served.score(rows[12:], 16)]
            with pytest.raises(TrainingError, match=r"the version before it in \d+ of 24 runs looked at, such as t\d"):
                learner.step(sampled_runs(rows, 16, half, version), current_version=version)
        learner.step(sampled_runs(rows, 16, served.score(rows, 16), version), current_version=version)
        served.take(learner)


def test_versions_that_are_nearer_than_float32_rounds_are_not_mistaken_for_one_another() -> None:
    """What rounded the current version's own numbers is in the way, and in how far they are from those captured."""
    rng = random.Random(4)
    true = [rng.gauss(0, 1e-7) for _ in range(600)]
    rounded: dict[float, list[float]] = {}

    def at(times: float) -> list[float]:
        off = rounded.setdefault(times, [rng.gauss(0, 1e-6) for _ in true])
        return [times * one + its for one, its in zip(true, off, strict=True)]

    way, _ = way_to(at, at(0), rounded=False)
    known = [-rng.expovariate(1) for _ in true], [rng.expovariate(1) for _ in true]
    share = share_gone([-one for one in at(0)], way, *known, [(at // 30, 0) for at in range(600)])
    assert abs(share.gone) < 4 * share.error
    assert not share.part.is_sure


@pytest.mark.parametrize("tokens", [1, 12, 60])
@pytest.mark.parametrize("noise", ["even", "in proportion to the way", "a few tokens far off"])
def test_no_run_of_the_current_version_is_mistaken_in_200_steps(tokens: int, noise: str) -> None:
    highest = max(part_gone(*drawn(seed, 12, tokens, noise, stale=0)).evidence for seed in range(200))
    assert highest < LEAST_EVIDENCE / 2


@pytest.mark.parametrize("noise", ["even", "in proportion to the way", "a few tokens far off"])
def test_runs_too_short_to_tell_by_themselves_tell_together(noise: str) -> None:
    found = [part_gone(*drawn(seed, 64, 24, noise, stale=32)) for seed in range(8)]
    assert sum(one.is_sure for one in found) >= 6
    assert sum(one.share for one in found) / 8 == pytest.approx(0.5, abs=0.1)


def test_calls_of_one_run_that_went_to_two_engines_are_told_apart() -> None:
    left, along, answers = drawn(3, 64, 24, "even", stale=32)
    part = part_gone(left, along, [(answer % 8, answer) for _, answer in answers])
    assert part.is_sure
    assert part.looked_at == 8
    assert part.share == pytest.approx(0.5, abs=0.15)


def test_a_quarter_of_the_way_in_all_runs_is_no_part() -> None:
    for seed in range(20):
        left, along, answers = drawn(seed, 24, 64, "even", stale=0)
        drifted = [off + 0.25 * way for off, way in zip(left, along, strict=True)]
        assert not part_gone(drifted, along, answers).is_sure


def drawn(
    seed: int, runs: int, tokens: int, noise: str, *, stale: int
) -> tuple[list[float], list[float], list[tuple[int, int]]]:
    """What an engine is off by, the way to the version before (as on an H200, nats), and the runs."""
    rng = random.Random(seed)
    left, along, answers = [], [], []
    for run in range(runs):
        for _ in range(tokens):
            way = rng.gauss(0, 2.5e-3) * math.exp(rng.gauss(0, 1))
            off = rng.gauss(0, 8e-3) if noise == "even" else abs(way) * rng.gauss(0, 1)
            if noise == "a few tokens far off":
                off = rng.gauss(0, 1e-3) if rng.random() > 0.02 else 3 * way / rng.gauss(0, 1)
            left.append(off + way * (run < stale))
            along.append(way)
            answers.append((run, run))
    return left, along, answers


@pytest.mark.parametrize("shares_beginnings", [True, False])
@pytest.mark.parametrize(("runs", "prompt", "answer"), [(40, 500, 1), (40, 60, 200), (3, 2000, 60), (200, 30, 20)])
def test_what_is_looked_at_is_a_small_part_of_the_step_and_never_nothing(
    runs: int, prompt: int, answer: int, shares_beginnings: bool
) -> None:
    rng = random.Random(runs)
    rows = []
    for run in range(runs):
        if not run % 4:
            begin = [rng.randrange(1000) for _ in range(prompt)]
        rows.append(row([*begin, *(rng.randrange(1000) for _ in range(answer))], answer, run))
    looker = Looker(rounded=False, shares_beginnings=shares_beginnings)
    whole = forwarded(rows, shares_beginnings)
    steps = [looker.choose(rows, "p@1") for _ in range(33)]
    looked = [forwarded(chosen, shares_beginnings) for chosen in steps[1:]]
    assert steps[0], "the first look of a process is free"
    assert sum(looked) <= max(32 * 512, 32 * whole / 16)
    assert any(looked)
    assert all(
        sum(version is not None for one in chosen for version in one.versions) >= 32 for chosen in steps if chosen
    )
    if answer > 32:
        assert len({one.trajectory for one in steps[0]}) >= 1
        assert all(len(one.token_ids) < prompt + answer for one in steps[0])


def test_a_step_that_begins_again_in_smaller_parts_was_looked_at(
    base_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second look would have been too dear, and `checked_tokens` said that there was none."""
    learner = PackedLearner(base_model, BFLOAT16)
    learner.step(scored(learner, "p@0"), current_version="p@0")
    learner._looker._least = 1

    def full(*_: Any) -> None:
        monkeypatch.undo()
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr(learner, "_optimise", full)
    assert learner.step(scored(learner, "p@1"), current_version="p@1").checked_tokens >= 32


def row(ids: list[int], sampled: int, run: int) -> TokenRow:
    targets = (*[False] * (len(ids) - sampled), *[True] * sampled)
    versions = tuple("p@1" if one else None for one in targets)
    return TokenRow(tuple(ids), targets, (0.0,) * len(ids), versions, 1.0, 1.0, run)


def forwarded(rows: Sequence[TokenRow], shares_beginnings: bool) -> int:
    if not shares_beginnings:
        return sum(len(one.token_ids) for one in rows)
    return len({one.token_ids[:end] for one in rows for end in range(1, len(one.token_ids) + 1)})
