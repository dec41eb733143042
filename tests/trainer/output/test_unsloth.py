"""What loading Unsloth leaves behind on the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

_STAND_IN = "import sys, types; sys.modules['unsloth'] = types.ModuleType('unsloth');"
_LOADED_TWICE = "from trainer.output.quiet import import_unsloth; import_unsloth(); import_unsloth();"
_SAID = "import os; folder = os.environ['UNSLOTH_COMPILE_LOCATION']; print(folder, os.path.isdir(folder))"


def _load(temporary: Path, **environment: str) -> list[str]:
    env = {name: value for name, value in os.environ.items() if name != "UNSLOTH_COMPILE_LOCATION"}
    command = [sys.executable, "-c", _STAND_IN + _LOADED_TWICE + _SAID]
    env |= {"TMPDIR": str(temporary), **environment}
    return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.split()


def test_what_unsloth_compiles_is_removed_with_the_process(tmp_path: Path) -> None:
    folder, there = _load(tmp_path)
    assert Path(folder).parent == tmp_path
    assert there == "True"
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_the_user_named_is_taken_and_kept(tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    assert _load(tmp_path, UNSLOTH_COMPILE_LOCATION=str(own)) == [str(own), "True"]
    assert list(tmp_path.iterdir()) == [own]
