"""The table of commands in docs/get-started.md has every command, and says of each whether it prints JSON."""

from __future__ import annotations

import re

import click
from doc_blocks import ROOT

from arttrace.commands import cli

_row = re.compile(r"^\| (`arttrace .*?) \| .* \| (yes)? ?\|$", re.MULTILINE)


def prints_json(command: click.Command) -> bool:
    return any("--json" in one.opts for one in command.params)


def test_every_command_is_in_the_table() -> None:
    page = (ROOT / "docs" / "get-started.md").read_text(encoding="utf-8")
    listed: dict[str, bool] = {}
    for names, says_yes in _row.findall(page):
        for name in re.findall(r"`(?:arttrace )?([a-z-]+)", names.replace("langfuse push`, `pull", "langfuse")):
            listed[name] = listed.get(name, False) or bool(says_yes)
    context = click.Context(cli)
    made = {name: cli.get_command(context, name) for name in cli.list_commands(context)}
    known = {
        name: prints_json(one) or any(map(prints_json, getattr(one, "commands", {}).values()))
        for name, one in made.items()
        if one is not None
    }
    assert listed == known
