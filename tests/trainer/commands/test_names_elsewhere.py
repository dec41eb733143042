"""Whoever comes from another trainer is told what its options are here, and which defaults differ."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner

from arttrace.commands import cli
from trainer.commands.names_elsewhere import OPTIONS
from trainer.commands.train.cli import command
from trainer.learner import LearnerConfig

OURS = {option for parameter in command.params for option in parameter.opts}


def said(*options: str) -> str:
    found = CliRunner().invoke(cli, ["train", *options])
    assert found.exit_code == 2
    return found.output


def test_an_option_of_another_trainer_is_answered_with_ours() -> None:
    assert "No such option '--beta'; here it is --kl-weight" in said("--beta", "0.1")
    assert "here it is `arttrace rollout -n 8`" in said("--num_generations=8")
    assert "No such option '--nonsense'." in said("--nonsense", "1")


def test_a_setting_of_a_section_is_answered_as_the_option_is() -> None:
    assert "'--trainer.optim.lr'; here it is --learning-rate" in said("--trainer.optim.lr", "1e-5")
    found = said("trainer.algorithm.eps_clip_low=0.1", "+data.unknown=2", "trainer.algorithm.advantage_estimator=rloo")
    assert "eps_clip_low=0.1 is --epsilon-low; trainer.algorithm.advantage_estimator=rloo is --advantages" in found
    assert "actor.model.lora_rank=8 is --lora-rank" in said("actor.model.lora_rank=8")
    assert "Got unexpected extra argument (data.unknown=2)" in said("data.unknown=2")


def test_what_is_named_is_there_and_what_is_there_is_not_named() -> None:
    assert not {f"--{name}" for name in OPTIONS} & OURS
    named = {option for here in OPTIONS.values() for option in re.findall(r"(?<!serve )(--[a-z-]+)", here)}
    assert named - {"--reward", "--input"} <= OURS


def test_the_defaults_differ_from_those_of_trl_as_the_documentation_says() -> None:
    config = pytest.importorskip("trl").GRPOConfig
    named = {
        "loss_type",
        "scale_rewards",
        "learning_rate",
        "lr_scheduler_type",
        "vllm_importance_sampling_mode",
        "beta",
    }
    theirs = {name: config.__dataclass_fields__[name].default for name in named}
    assert theirs == {
        "loss_type": "dapo", "scale_rewards": "group", "learning_rate": 1e-6, "lr_scheduler_type": "linear",
        "vllm_importance_sampling_mode": "sequence_mask", "beta": 0.0,
    }  # fmt: skip
    ours = LearnerConfig()
    assert (ours.loss, ours.learning_rate, ours.kl_weight) == ("cispo", 5e-5, 0.0)
    [advantages] = [one.default for one in command.params if one.name == "advantages"]
    assert advantages == "none"
