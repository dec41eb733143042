"""A data directory that cannot be named or made is an error with its cause, and an age may be any."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from simulated_agent import research_run

from arttrace.commands import cli
from arttrace.commands.shared.machine_errors import machine_error
from arttrace.store import Store
from arttrace.system.paths import DataDir


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_a_data_directory_that_cannot_be_named_or_made_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No home directory in a container whose user is nobody's, a file in the way, a folder that was removed."""
    monkeypatch.setenv("ARTTRACE_DIR", "~nobody-here/runs")
    said = str(run("ls").exception)
    assert said.startswith("~nobody-here/runs: there is no such home directory\n")
    assert "ARTTRACE_DIR" in said
    (file := tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError) as caught:
        (file / "runs" / "spool").mkdir()
    shown = machine_error(caught.value)
    assert shown is not None
    assert str(shown).startswith(f"{file / 'runs' / 'spool'}: Not a directory\n")
    monkeypatch.delenv("ARTTRACE_DIR")
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    try:
        said = [str(run(command).exception) for command in ("ls", "init")]
    finally:
        os.chdir(tmp_path)
    for one in said:
        assert one.startswith("the working directory is not there any more\n")
        assert "--dir" in one


@pytest.mark.parametrize(
    ("command", "far"), [*itertools.product(("ls", "stats --by model"), ("99999999w", f"{'9' * 400}d"))]
)
def test_an_age_or_a_day_that_no_column_holds_is_taken_for_what_it_is(command: str, far: str, tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("one", "s"))
    far_back, yet_to_come = (
        run(*command.split(), "--since", one, "--dir", str(tmp_path)) for one in (far, "9999-12-31")
    )
    assert (far_back.exit_code, yet_to_come.exit_code) == (0, 0)
    assert len(far_back.output) > len(yet_to_come.output)
    assert "neither an age such as 2h or 7d" in run("ls", "--since", "0001-01-01", "--dir", str(tmp_path)).output
