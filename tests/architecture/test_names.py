"""One name means one thing: a class of both packages has its name alone, but for the few that share one on purpose, and
a variable with the prefix of arttrace's settings is one of them."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

from arttrace.capture.base import variables

ROOT = Path(__file__).parents[2]

SHARED_ON_PURPOSE = {
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


def test_what_only_tests_read_has_not_the_prefix_of_settings() -> None:
    """Set for all tests, it would make each program that they start say that nothing reads it."""
    read = re.compile(rf'environ(?:\.get\(|\[)"{variables.PREFIX}(\w+)"')
    found = {name for file in (ROOT / "tests").rglob("*.py") for name in read.findall(file.read_text(encoding="utf-8"))}
    assert found
    assert found <= variables.NAMES
