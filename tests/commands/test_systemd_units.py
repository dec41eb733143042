"""The command lines of the systemd units in examples/ are ones that the program understands."""

from __future__ import annotations

import shlex
from pathlib import Path

import click
import pytest

from arttrace.commands import cli

UNITS = sorted(Path(__file__).parents[2].joinpath("examples", "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_units_command_line_parses(unit: Path, tmp_path: Path) -> None:
    (line,) = [line for line in unit.read_text().splitlines() if line.startswith("ExecStart=")]
    program, name, *arguments = shlex.split(line.removeprefix("ExecStart="))
    assert Path(program).name == "arttrace"
    (tmp_path / "daemon.toml").touch()
    (tmp_path / "model").mkdir()
    arguments = [argument.replace("/var/lib/arttrace", str(tmp_path)) for argument in arguments]
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    command.make_context(name, arguments, resilient_parsing=False)


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_writes_to_its_data_and_to_a_directory_for_temporary_files_that_goes_with_it(unit: Path) -> None:
    said = dict(line.split("=", 1) for line in unit.read_text().splitlines() if "=" in line)
    assert (said["ProtectSystem"], said["ReadWritePaths"]) == ("strict", said["WorkingDirectory"])
    assert said["PrivateTmp"] == "yes"  # else /tmp cannot be written, and sockets and caches stay beside the data


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_service_that_is_stopped_while_it_is_loaded_has_not_failed(unit: Path) -> None:
    assert "SuccessExitStatus=130" in unit.read_text().splitlines()


def test_there_are_units() -> None:
    assert len(UNITS) == 3
