"""Tools and their arguments that a form cannot hold as they are."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from simulated_agent import Run, message
from stored_runs import write_dataset

from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir


def store_one(data: DataDir, run: Run) -> None:
    with Store.open(data, create=True) as store:
        store.append([*run.end(), Reward(id="r", trajectory_id=run.id, value=1.0)])


@pytest.mark.parametrize(
    ("sampled", "written"),
    [
        (r'{"text": "\ud83d"}', {"text": "\ufffd"}),
        ("[" * 2000 + "]" * 2000, "[" * 2000 + "]" * 2000),
        ('{"n": 1', '{"n": 1'),
        ("null", "null"),
        ("", {}),
    ],
)
def test_arguments_that_a_model_was_cut_in_are_written_as_far_as_text_can(
    sampled: str, written: object, tmp_path: Path
) -> None:
    data = DataDir(tmp_path / ".arttrace")
    call = {"type": "tool_call", "id": "1", "name": "say", "arguments": sampled}
    run = Run("r", scenario="s")
    run.chat("m", [message("user", "q")], {"role": "assistant", "parts": [call]}, at=10)
    store_one(data, run)
    file = tmp_path / "x.jsonl"
    assert "1 row of 1 run" in write_dataset(data, file, "trl-sft")
    [row] = map(json.loads, file.read_text().splitlines())
    assert row["messages"][-1]["tool_calls"][0]["function"]["arguments"] == written


def test_tools_with_integers_that_no_parquet_column_holds_are_counted(tmp_path: Path) -> None:
    """The largest of 64 bits without a sign stands in the schemas of some languages."""
    data = DataDir(tmp_path / ".arttrace")
    for at, most in enumerate((2**64 - 1, 2**63 - 1)):
        tools = [{"type": "function", "function": {"name": "a", "parameters": {"maximum": most}}}]
        run = Run(f"r{at}", scenario="s")
        run.chat("m", [message("user", "q")], message("assistant", "a"), at=10, TOOL_DEFINITIONS=json.dumps(tools))
        store_one(data, run)
    said = write_dataset(data, tmp_path / "x.parquet", "verl-sft")
    assert "1 conversation left out: tool definitions with integers beyond 64 bits" in said
    assert "1 row of 1 run in" in said
    [row] = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert row["tools"][0]["function"]["parameters"] == {"maximum": 2**63 - 1}
