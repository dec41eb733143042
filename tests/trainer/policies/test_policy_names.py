"""A name that no policy can have is refused where it is given, with the rule, before anything is fetched or started."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from arttrace.commands.autorl.command import command as autorl
from arttrace.loop import TrainableModel
from arttrace.system.errors import TrainingError
from trainer.commands.serve import command as serve
from trainer.commands.train.cli import command as train

RULE = "Use letters, digits, '.', '_' and '-', at most 100"
NAMES = ["a/b", "../up", "a@1", "", "x" * 101, ".a", "a b"]
"""The model's name is none that is on this machine: to look for it would be another error."""
COMMANDS = (
    (serve, "--base-model", "nobody/nothing"),
    (train, "--base-model", "nobody/nothing"),
    (train, "--daemon", "--base-model", "nobody/nothing"),
    (autorl, "Answer.", "--base-model", "nobody/nothing", "--stand-in"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_cannot_have_it(name: str) -> None:
    """It was refused by the server that `register` starts, a base model later."""
    with pytest.raises(TrainingError, match="cannot name a policy") as refused:
        TrainableModel(name, "base")
    assert RULE in str(refused.value.hint)


@pytest.mark.parametrize("command", COMMANDS, ids=["serve", "train", "the daemon", "autorl"])
def test_no_command_begins_with_it(command: tuple[click.Command, *tuple[str, ...]], tmp_path: Path) -> None:
    called, *given = command
    data = tmp_path / "data"
    for name in NAMES:
        ended = CliRunner().invoke(called, [*given, f"--policy={name}", "--dir", str(data)])
        assert isinstance(ended.exception, TrainingError), ended.output
        assert f"{name!r} cannot name a policy" in str(ended.exception)
    assert not data.exists()
