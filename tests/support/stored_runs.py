"""Runs in a store, and `arttrace dataset` over them: groups of four runs with a tool, three of them rewarded."""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from click.testing import CliRunner
from simulated_agent import Run, message, result

from arttrace.commands import cli
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

TOOLS = [{"type": "function", "function": {"name": "find", "description": "d", "parameters": {"type": "object"}}}]
ANSWERS = (("Bern.", 1.0), ("Basel.", 0.0), ("Bern?", 0.5), ("Genf.", None))


def run_with_a_tool(id: str, group: str, answer: str, reward: float | None, *, at: int = 0) -> list[Record]:
    """One run of two calls and a tool."""
    run = Run(id, scenario=group)
    asked = [message("system", "Help."), message("user", f"where in {group}?")]
    call = message("assistant", calls=(("c1", "find", '{"id": 7}'),))
    offered = {"TOOL_DEFINITIONS": json.dumps(TOOLS)}
    run.chat("m1", asked, call, at=at + 10, **offered)
    run.chat("m2", [*asked, call, result("c1", "in Bern")], message("assistant", answer), at=at + 20, **offered)
    records: list[Record] = [*run.end(at=at + 100)]
    if reward is not None:
        records.append(Reward(id=f"r-{id}", trajectory_id=id, value=reward))
    return records


def store_runs(data: DataDir, *, groups: int) -> None:
    """Groups g0, g1, ... of four runs, named g0-0, g0-1, ..."""
    with Store.open(data, create=True) as store:
        for number in range(groups):
            group = f"g{number}"
            for member, (answer, reward) in enumerate(ANSWERS):
                at = 1000 * (len(ANSWERS) * number + member)
                store.append(run_with_a_tool(f"{group}-{member}", group, answer, reward, at=at))


def write_dataset(data: DataDir, path: Path, form: str, *options: str, code: int = 0) -> str:
    """What the command printed."""
    args = ["dataset", "--format", form, "-o", str(path), "--dir", str(data.root), *options]
    done = CliRunner().invoke(cli, args, catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


def no_row(data: DataDir, path: Path, form: str, *options: str) -> str:
    """What the command says where there is no row to write."""
    with pytest.raises(ArttraceError) as shown:
        write_dataset(data, path, form, *options)
    return str(shown.value)


SAYS_LESS = "ALTER TABLE arttrace_schema DROP COLUMN views; ALTER TABLE arttrace_schema DROP COLUMN reading"
"""Makes a store one of those of schema 4 of which comments of tables said what its schema says now."""


def store_by_an_earlier_version(data: DataDir) -> None:
    """Two runs as another version stored them, which understood less of their spans: they are read again."""
    said = {
        "openinference.span.kind": "LLM",
        "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "hi",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "ho",
    }
    with Store.open(data, create=True) as store:
        store.append([SpanRow(letter * 32, "1" * 16, "llm", 1, 2, attributes=said) for letter in "ab"])
    with duckdb.connect(str(data.store)) as connection:
        connection.execute("UPDATE arttrace_schema SET reading = NULL")
