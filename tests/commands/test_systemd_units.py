"""The command lines of the systemd units in examples/ are ones that the program understands."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from arttrace.commands import cli

UNITS = sorted(Path(__file__).parents[2].joinpath("examples", "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_units_command_line_parses(unit: Path) -> None:
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    program, name, *arguments = shlex.split(line.removeprefix("ExecStart="))
    assert Path(program).name == "arttrace"
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, arguments, resilient_parsing=False)


def test_there_are_units() -> None:
    assert len(UNITS) == 3
