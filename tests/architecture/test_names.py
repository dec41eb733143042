"""One name means one thing in both packages: a class has its name alone, but for the few that share one on purpose."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHARED_ON_PURPOSE = {
    "OrderedGroup": "the runs to compare in one step, as an order's sender writes them and as the trainer reads them",
    "Trajectory": "the record of a run, and the same run as whoever writes a training loop returns it",
}
"""Names of several classes, each with the one idea that they share."""


def classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for package in ("arttrace", "trainer"):
        for file in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    return found


def test_a_name_is_that_of_one_class() -> None:
    several = {name: places for name, places in classes().items() if len(places) > 1}
    assert not {name: places for name, places in several.items() if name not in SHARED_ON_PURPOSE}
    assert not SHARED_ON_PURPOSE.keys() - several.keys(), "listed, but no longer shared"
