"""docs/reference/json.md has every field that the commands print with --json, and no other."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from doc_blocks import ROOT
from msgspec.structs import replace
from simulated_agent import T0, research_run

from arttrace.commands import cli
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.console.events import Events

PAGE = (ROOT / "docs" / "reference" / "json.md").read_text(encoding="utf-8")
COMMANDS = {
    "ls": "ls",
    "show": "show one",
    "diff": "diff one two",
    "stats": "stats",
    "tail": "",
    "top": "top",
    "group": "group --by input --dry-run",
    "doctor": "doctor",
}


def documented(command: str) -> set[str]:
    """The fields in the first column of a command's table, `a.b` for those of objects in a field."""
    [section] = re.findall(rf"^## `arttrace {command}`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w.]+)`", row)}


def fields(value: Any, levels: set[str], prefix: str = "") -> set[str]:
    """Every field of an object, or of each in a list; below a field where the page goes below it."""
    found: set[str] = set()
    for one in value if isinstance(value, list) else [value]:
        for name, inner in one.items() if isinstance(one, dict) else ():
            path = f"{prefix}{name}"
            found.add(path)
            if any(level.startswith(f"{path}.") for level in levels):
                found |= fields(inner, levels, f"{path}.")
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("json")
    now = time.time_ns() - T0
    running = [replace(span, start_ns=span.start_ns + now) for span in research_run("three", "s")[:-1]]
    with Store.open(DataDir(root), create=True) as store:
        store.append([*research_run("one", "s"), *research_run("two", "t"), *running])
        store.append([Reward(id="r", trajectory_id="two", value=0.5)])
    return root


@pytest.mark.parametrize("command", COMMANDS)
def test_the_page_has_every_field(root: Path, command: str) -> None:
    if command == "tail":
        with Store.open(DataDir(root)) as store:
            printed = msgspec.to_builtins(Events(store, 0).new())
    else:
        arguments = [*COMMANDS[command].split(), "--json", "--dir", str(root)]
        printed = json.loads(CliRunner().invoke(cli, arguments).stdout)
    assert printed
    told = documented(command)
    assert fields(printed, told) == told


def test_every_command_of_the_page_is_one(root: Path) -> None:
    assert set(re.findall(r"^## `arttrace (\w+)`", PAGE, re.MULTILINE)) == {*COMMANDS, "sql"}
