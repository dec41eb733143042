"""A program written for 0.1: each name that it may import is still there, or docs/reference/names-of-0.1.md has it."""

from __future__ import annotations

import json
import re
from pathlib import Path

from importable import exists

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "names-of-0.1.md"
NAMES: dict[str, str] = json.loads(Path(__file__).with_name("names_of_0_1.json").read_text(encoding="utf-8"))
ROW = re.compile(r"^\| `([a-z_0-9.]+)`(?:: ([^|]+))? \| (?:`([\w.]+)`|(gone: [^|]+)) \|$", re.MULTILINE)


def moved() -> tuple[dict[str, str], dict[str, str]]:
    """Where modules are now, and where single names are, or that they are gone."""
    modules, names = {}, {}
    for module, listed, now, gone in ROW.findall(PAGE.read_text(encoding="utf-8")):
        given = re.findall(r"`(\w+)`", listed)
        if not listed:
            modules[module] = now
        for name in given:
            inside = f"{now}.{name}"
            names[f"{module}.{name}"] = gone or (inside if len(given) > 1 or exists(inside) else now)
    return modules, names


def test_every_row_of_the_page_is_read() -> None:
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    assert [row for row in rows if not ROW.match(row)] == []
    assert len(rows) > 250


def test_every_name_of_0_1_is_there_or_on_the_page() -> None:
    modules, renamed = moved()
    lost = []
    for module, names in NAMES.items():
        lost += [module] if not exists(module) and module not in modules else []
        for name in names.split():
            old = f"{module}.{name}"
            now = renamed.get(old) or (old if exists(old) else f"{modules.get(module)}.{name}")
            lost += [old] if not now.startswith("gone: ") and not exists(now) else []
    assert lost == []


def test_what_replaces_a_name_that_is_gone_exists() -> None:
    _, names = moved()
    lost = []
    for gone in {now for now in names.values() if now.startswith("gone: ")}:
        for said, module in re.findall(r"((?:`\w+`(?:, | and )?)+) of `([\w.]+)`", gone):
            lost += [
                f"{module}.{name}"
                for name in re.findall(r"\w+", said.replace(" and ", " "))
                if not exists(f"{module}.{name}")
            ]
        lost += [path for path in re.findall(r"`((?:arttrace|trainer)\.[\w.]+)`", gone) if not exists(path)]
    assert lost == []


def test_where_modules_are_said_to_be_they_are() -> None:
    modules, _ = moved()
    assert {old: new for old, new in modules.items() if not exists(new)} == {}


def test_what_is_on_the_page_is_not_where_it_was() -> None:
    modules, names = moved()
    assert [old for old in (*modules, *names) if exists(old)] == []
