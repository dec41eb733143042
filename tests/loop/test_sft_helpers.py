"""Files, learning rates and chunks of a training by imitation. Orders and rates are those of openpipe-art 0.5.18."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import arttrace.loop as art
from arttrace.system.errors import ArttraceError


def trajectory(number: int) -> art.Trajectory:
    said = [{"role": "user", "content": str(number)}, {"role": "assistant", "content": "a"}]
    return art.Trajectory(messages_and_choices=said)


def numbers(trajectories: Any) -> list[int]:
    return [int(one.messages_and_choices[0]["content"]) for one in trajectories]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    lines = [json.dumps({"messages": trajectory(number).messages_and_choices}) for number in range(6)]
    path.write_text("\n".join([*lines[:3], "  ", *lines[3:]]) + "\n\n")
    return path


class Asked:
    """A model that keeps what it is to imitate."""

    def __init__(self) -> None:
        self.given: list[int] = []
        self.config = art.TrainSFTConfig()
        self.settings: dict[str, Any] = {}

    async def train_sft(self, trajectories: Any, config: Any, *_: Any, **settings: Any) -> list[Any]:
        self.given, self.config, self.settings = numbers(trajectories), config, settings
        return [SimpleNamespace(version="policy@1")]


@pytest.mark.parametrize(
    ("given", "rates"),
    [
        ((0, 1.0), []),
        ((1, 1.0), [1.0]),
        ((5, 1.0), [1.0, 0.75, 0.5, 0.25, 0.0]),
        ((5, 1.0, "linear", 2), [0.5, 1.0, 1.0, 0.5, 0.0]),
        ((3, 1.0, "cosine", 0, 0.5), [1.0, 0.75, 0.5]),
        ((3, 1.0, "constant", 2), [0.5, 1.0, 1.0]),
        ((2, 1.0, "linear", 5), [0.2, 0.4]),
    ],
)
def test_learning_rates_of_all_steps(given: Any, rates: list[float]) -> None:
    assert art.create_lr_schedule(*given) == pytest.approx(rates)


def test_a_schedule_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no schedule 'step': pass one of cosine, linear, constant"):
        art.create_lr_schedule(3, 1.0, "step")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "order"),
    [
        ({}, ORDER := [3, 1, 2, 4, 0, 5]),
        ({"epochs": 2, "initial_skip": 4}, [0, 5, 5, 4, 3, 1, 2, 0]),
        ({"shuffle_buffer_size": 3}, [2, 0, 1, 5, 3, 4]),
        ({"shuffle_buffer_size": 1}, [0, 1, 2, 3, 4, 5]),
    ],
)
def test_a_file_in_arts_order(file: Path, given: dict[str, Any], order: list[int]) -> None:
    assert numbers(art.iterate_file(str(file), **given)) == order
    assert art.get_file_row_count(str(file)) == 6


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 2 of .* is no JSON"),
        ("[]", "line 2 of .* has no list of messages"),
        ('{"messages": "hello"}', "line 2 of .* has no list of messages"),
        ('{"messages": [], "loss_mask": [1]}', "line 2 of .* has a loss_mask, which is not read"),
    ],
)
def test_a_line_that_is_none_of_a_conversation_is_named(tmp_path: Path, line: str, said: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"messages": [], "tools": []}}\n{line}\n')
    with pytest.raises(ArttraceError, match=said):
        list(art.iterate_file(path))


def test_another_form_of_file_is_refused_at_once() -> None:
    for reads in (art.get_file_row_count, art.iterate_file):
        with pytest.raises(ValueError, match=r"data\.csv is no \.jsonl file: `arttrace import` reads other forms"):
            reads("data.csv")


async def test_a_file_is_trained_on_in_one_call(file: Path) -> None:
    model: Any = Asked()
    [step] = await art.train_sft_from_file(
        model, str(file), epochs=3, batch_size=4, peak_lr=1.0, schedule_type="constant", warmup_ratio=0.5, lora_rank=8
    )
    assert step.version == "policy@1"
    assert model.given[:6] == ORDER
    assert sorted(model.given) == sorted([*range(6)] * 3)
    assert model.config == art.TrainSFTConfig([0.5, 1.0, 1.0, 1.0, 1.0], 4)
    assert model.settings == {"log_metrics": True, "lora_rank": 8}


async def test_a_part_of_a_file_has_the_rates_of_that_part(file: Path) -> None:
    model: Any = Asked()
    await art.train_sft_from_file(
        model, file, initial_step=1, final_step=2, peak_lr=1.0, warmup_ratio=0.0, assistant_turns="last"
    )
    assert model.given == ORDER[2:4]
    assert model.config == art.TrainSFTConfig([0.5], 2, "last")
    await art.train_sft_from_file(model, file, final_step=99)
    assert model.given == ORDER
    model.given = []
    assert await art.train_sft_from_file(model, file, initial_step=3) == []
    assert model.given == [], "all steps were taken before"


async def test_a_file_without_a_conversation_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n")
    with pytest.raises(ArttraceError, match=r"empty\.jsonl has no conversation to imitate"):
        await art.train_sft_from_file(Asked(), tmp_path / "empty.jsonl")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batch_size must be at least 1, not 0"):
        await art.train_sft_from_file(Asked(), tmp_path / "empty.jsonl", batch_size=0)  # type: ignore[arg-type]


def test_chunks_have_the_rates_of_the_whole_in_arts_order() -> None:
    data = [trajectory(number) for number in range(7)]
    chunks = list(art.create_sft_dataset_iterator(data, chunk_size=3, epochs=2, peak_lr=1.0, warmup_ratio=0.25))
    assert [(one.step, one.epoch, one.epoch_step) for one in chunks] == [(0, 0, 0), (3, 0, 3), (4, 1, 0), (7, 1, 3)]
    assert [numbers(one.trajectories) for one in chunks] == [[1, 3, 4, 2, 6, 0], [5], [5, 6, 4, 3, 1, 2], [0]]
    rates = [rate for one in chunks for rate in one.config.learning_rates(3 if one.epoch_step == 0 else 1)]
    assert rates == pytest.approx(art.create_lr_schedule(8, 1.0, "linear", 2))
    assert all(one.config.batch_size == 2 for one in chunks)
    ordered = list(art.create_sft_dataset_iterator(data, shuffle=False, show_progress=False))
    assert [numbers(one.trajectories) for one in ordered] == [[*range(7)]]
    assert list(art.create_sft_dataset_iterator([])) == []


@pytest.mark.parametrize(("done", "first"), [(0, 0), (2, 0), (3, 3), (4, 4), (5, 4), (7, 7), (8, None)])
def test_chunks_of_steps_that_are_done_are_left_out(done: int, first: int | None) -> None:
    data = [trajectory(number) for number in range(7)]
    steps = [one.step for one in art.create_sft_dataset_iterator(data, 3, 2, initial_step=done)]
    assert (steps[0] if steps else None) == first
    assert all(one < two for one, two in pairwise(steps))


def test_chunks_of_nothing_are_refused() -> None:
    for name in ("chunk_size", "batch_size"):
        with pytest.raises(ValueError, match=f"{name} must be at least 1, not 0"):
            art.create_sft_dataset_iterator([trajectory(1)], **{name: 0})
