"""What docs/frameworks.md claims of each framework, tried in an environment of its own (environments.py)."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "frameworks.md"
spec = importlib.util.spec_from_file_location("framework_environments", HERE / "environments.py")
assert spec is not None
assert spec.loader is not None
environments: Any = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = environments
spec.loader.exec_module(environments)


def claimed() -> dict[str, dict[str, bool]]:
    """The table of the docs, by title."""
    rows = [
        [cell.strip() for cell in line.strip("|\n").split("|")]
        for line in TABLE.read_text().splitlines()
        if "|" in line
    ]
    return {
        title: {column: mark == "yes" for column, mark in zip(environments.COLUMNS, marks, strict=True)}
        for title, _, *marks in rows[2:]
    }


def test_the_table_names_what_is_tried() -> None:
    assert claimed().keys() == {framework.title for framework in environments.FRAMEWORKS.values()}


@pytest.mark.full
@pytest.mark.parametrize("name", environments.FRAMEWORKS)
def test_a_framework_as_the_table_has_it(name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("ARTTRACE_FRAMEWORKS", tmp_path / "environments"))
    tried = environments.try_out(environments.FRAMEWORKS[name], folder, tmp_path / "data")
    assert tried.row == claimed()[tried.framework.title]
    assert "42" in tried.printed
