"""Replicas on a machine with several CUDA cards: each has its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trainer.gateway.engines.vllm.cards import cards, first_is_free, share
from trainer.gateway.engines.vllm.engine import EngineOptions, cards_of_engine, engine_environment, max_lora_rank
from trainer.gateway.engines.vllm.model import ModelShape


@pytest.fixture
def options() -> EngineOptions:
    return EngineOptions(Path("/m"), ModelShape("m", 100, 1, 64, True))


def test_the_cards_of_the_machine_or_those_that_are_visible(tmp_path: Path) -> None:
    for name in ("nvidia10", "nvidia0", "nvidia2", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert cards({}, tmp_path) == ["0", "2", "10"]
    assert cards({"CUDA_VISIBLE_DEVICES": "3, GPU-abc"}, tmp_path) == ["3", "GPU-abc"]
    assert cards({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == []
    assert cards({}, tmp_path / "none") == []


def test_each_replica_has_cards_of_its_own() -> None:
    assert [share(["0", "1", "2", "3"], 2, number, 2) for number in (0, 1)] == [("0", "1"), ("2", "3")]
    assert [share(["0", "1", "2"], 3, number, 1) for number in (0, 1, 2)] == [("0",), ("1",), ("2",)]
    assert share(["0"], 1, 0, 1) is None, "one engine has the one card"
    assert share(["0", "1"], 1, 0, 2) is None, "one engine sees all of them"
    assert share(["0"], 2, 0, 1) is None, "too few: vLLM says what it lacks"
    assert share([], 2, 0, 1) is None


def test_the_first_card_is_left_to_the_learner_where_there_are_more_than_the_engines_need() -> None:
    assert share(["0", "1"], 1, 0, 1) == ("1",)
    assert [share(["0", "1", "2"], 2, number, 1) for number in (0, 1)] == [("1",), ("2",)]
    assert first_is_free(["0", "1"], 1, 1)
    assert not first_is_free(["0"], 1, 1)
    assert not first_is_free([], 1, 1)


@pytest.mark.parametrize(
    ("extra", "count"),
    [
        ((), 1),
        (("--tensor-parallel-size=2",), 2),
        (("-tp", "2", "--pipeline-parallel-size", "3"), 6),
        (("--tensor_parallel_size=2", "--data_parallel_size", "2"), 4),
        (("-tp=2", "--tensor-parallel-size=4", "-dp=2", "-pcp=2"), 16),
        (("--seed=4",), 1),
    ],
)
def test_an_engine_takes_as_many_cards_as_its_model_is_spread_over(
    options: EngineOptions, extra: tuple[str, ...], count: int
) -> None:
    assert cards_of_engine(replace(options, extra=extra)) == count


@pytest.mark.parametrize(
    ("extra", "rank"),
    [
        ((), 32),
        (("--max-lora-rank=64",), 64),
        (("--max_lora_rank=64",), 64),
        (("--max-lora-rank", "8", "--max-lora-rank=16"), 16),
    ],
)
def test_an_engine_loads_adapters_up_to_the_rank_it_is_given_last(
    options: EngineOptions, extra: tuple[str, ...], rank: int
) -> None:
    assert max_lora_rank(replace(options, extra=extra)) == rank


def test_the_engines_environment_names_its_cards(options: EngineOptions) -> None:
    base = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert engine_environment(replace(options, cards=("1",)), base, "k", cpu=False)["CUDA_VISIBLE_DEVICES"] == "1"
    assert engine_environment(options, base, "k", cpu=False)["CUDA_VISIBLE_DEVICES"] == "0,1"
