"""benchmarks/RESULTS.md has every program of its folder under a heading, and its contents lead to them."""

from __future__ import annotations

import re
from pathlib import Path

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RESULTS = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.+)$", RESULTS, re.MULTILINE)


def test_each_heading_names_a_program_and_each_file_is_named() -> None:
    headed = [heading.partition(":")[0] for heading in HEADINGS]
    assert [name for name in headed if not (BENCHMARKS / name).is_file()] == []
    said_to_measure_nothing = re.findall(r"^`[\w.]+\.py`.*?\n\n", RESULTS, re.MULTILINE | re.DOTALL)[0]
    named = {*headed, *re.findall(r"`(\w+\.py)`", said_to_measure_nothing)}
    assert {path.name for path in BENCHMARKS.glob("*.py")} - named == set()


def test_the_contents_lead_to_every_heading() -> None:
    links = re.findall(r"^\| \[([\w./]+)\]\(#([^)]+)\) \|", RESULTS, re.MULTILINE)
    assert links == [(heading.partition(":")[0], _anchor(heading)) for heading in HEADINGS]


def _anchor(heading: str) -> str:
    """As GitHub makes it."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
