"""A run of autorl is gone on with by one process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import arttrace
from arttrace.commands import cli
from arttrace.commands.autorl.state import StateFile
from arttrace.system.errors import ArttraceError


def test_a_second_process_does_not_go_on_with_the_same_run(tmp_path: Path) -> None:
    command = ["autorl", "Say what a thing is.", "--base-model", "base", "--policy", "things", "--stand-in"]
    with StateFile(tmp_path / "autorl" / "things").held():
        try:
            refused = CliRunner().invoke(cli, [*command, "--dir", str(tmp_path)]).exception
        finally:
            arttrace.shutdown()
    assert isinstance(refused, ArttraceError)
    assert refused.message == "another process goes on with things"
    with StateFile(tmp_path / "autorl" / "things").held():
        pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "autorl").write_text("")
    with (
        pytest.raises(ArttraceError, match="things cannot be written") as refused,
        StateFile(tmp_path / "autorl/things").held(),
    ):
        pass
    assert refused.value.hint == "Name another data directory with --dir, or give this user the right to write there."
