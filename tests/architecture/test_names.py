"""One name means one thing: a class of both packages has its name alone, but for the few that share one on purpose, and
a variable with the prefix of arttrace's settings is one of them. What programs beside the packages import is there."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from arttrace.capture.base import variables

ROOT = Path(__file__).parents[2]
BESIDE_THE_PACKAGES = ("benchmarks", "examples", "tests", "docs")
"""Folders of programs of which no type checker reads what they import, in a function say, or when a GPU is there."""
OF_OLDER_VERSIONS = {"tests/store/data/make_version_2.py"}
"""Programs that ran with an earlier version of both packages."""

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


@cache
def bound(module: Path) -> frozenset[str]:
    """The names that a module's own statements bind."""
    found: set[str] = set()
    waiting: list[ast.AST] = list(ast.parse(module.read_text(encoding="utf-8")).body)
    while waiting:
        match waiting.pop():
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=names) | ast.ImportFrom(names=names):
                found |= {(one.asname or one.name).partition(".")[0] for one in names}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
            case other:
                waiting += ast.iter_child_nodes(other)
    return frozenset(found)


def imports(file: Path) -> Iterator[tuple[str, str]]:
    """Module and name of each import of a name of the packages."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in ("arttrace", "trainer"):
            yield from ((node.module, one.name) for one in node.names)


def is_there(module: str, name: str) -> bool:
    path = ROOT.joinpath(*module.split("."))
    if (path / name).is_dir() or (path / f"{name}.py").is_file():
        return True
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return file.is_file() and bool(bound(file) & {name, "__getattr__"})


def test_names_that_programs_beside_the_packages_import_are_there() -> None:
    files = [file for folder in BESIDE_THE_PACKAGES for file in sorted((ROOT / folder).rglob("*.py"))]
    files = [one for one in files if "node_modules" not in one.parts]
    names = {file.relative_to(ROOT).as_posix(): set(imports(file)) for file in files}
    assert sum(map(len, names.values())) > 1000
    missing = {file: found for file, used in names.items() if (found := {one for one in used if not is_there(*one)})}
    assert missing.keys() == OF_OLDER_VERSIONS, missing
