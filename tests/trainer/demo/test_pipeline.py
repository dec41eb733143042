"""The demo's phases that need no engine."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from arttrace.paths import DataDir
from trainer.demo.pipeline import Settings, _Demo
from trainer.demo.screen import Screen


def test_a_demo_in_which_no_round_taught_anything_still_closes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with ExitStack() as stack:
        demo = _Demo(Settings(DataDir(tmp_path), 1, 1), Screen(), stack)
        demo._began = 0.0
        demo._close(tmp_path / "base")
    assert (tmp_path / "report.md").is_file()
    assert "arttrace ls" in capsys.readouterr().out
