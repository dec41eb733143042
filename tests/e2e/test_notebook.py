"""The notebook of 2048 by itself: a tiny model made on the spot, a server of its own, and a step of training.

test_examples.py runs it by default, beside the other examples.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from notebook import execute

pytestmark = [pytest.mark.e2e, pytest.mark.full]

FOLDER = Path(__file__).parents[2] / "examples" / "2048"


async def test_the_notebook_of_2048_runs_from_the_first_cell_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BASE_MODEL", raising=False)
    monkeypatch.setenv("ARTTRACE_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("TURNS", "8")
    monkeypatch.chdir(FOLDER)
    monkeypatch.syspath_prepend(str(FOLDER))
    before = set(sys.modules)
    try:
        printed = await execute(FOLDER / "2048.ipynb")
    finally:
        for name in set(sys.modules) - before:
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER.parent)):
                del sys.modules[name]
    assert "legal: " in printed[0]
    assert "policy@1 was trained on" in printed[-2]
    assert printed[-1] == "served: policy@1\n"
    assert (tmp_path / "data" / "policies" / "policy" / "policy@1" / "adapter_model.safetensors").is_file()
