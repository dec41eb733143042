"""Rows of training data come back as the conversations, answers, pairs and labels that they hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from simulated_agent import Run, message, result
from system_files import lines, read

from arttrace.commands import cli
from arttrace.formats.imported_files import Unreadable, read_file
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir

TOOLS = json.dumps([{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}])
YES, NO = [{"role": "assistant", "content": "Yes."}], [{"role": "assistant", "content": "No."}]
ASKED = [{"role": "user", "content": "Is it?"}]


def arttrace(data: Path, *arguments: str) -> Result:
    done = CliRunner().invoke(cli, [*arguments, "--dir", str(data)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done


def stored(data: DataDir) -> None:
    with Store.open(data, create=True) as store:
        for number, word in enumerate(("warm", "cold")):
            run = Run(f"r{number}", scenario="oslo")
            asked = [message("system", "Help."), message("user", "Oslo?")]
            look = message("assistant", calls=(("call_1", "look", '{"q":"oslo"}'),))
            shown = [*asked, look, result("call_1", "4 degrees")]
            run.chat("m1", asked, look, at=10, TOOL_DEFINITIONS=TOOLS)
            run.chat("m2", shown, message("assistant", word), at=20, TOOL_DEFINITIONS=TOOLS)
            store.append([*run.end(), Reward(id=f"w{number}", trajectory_id=f"r{number}", value=1.0 - number)])


@pytest.mark.parametrize(
    "form",
    ["trl-sft", "trl-prompt-completion", "trl-unpaired", "trl-preference", "openai-sft", "openai-dpo", "sharegpt"],
)
def test_what_dataset_wrote_comes_back_and_goes_out_again_the_same(form: str, tmp_path: Path) -> None:
    stored(DataDir(tmp_path / "one"))
    chosen = ["--min-reward", "0.5"] if form == "trl-unpaired" else []
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    arttrace(tmp_path / "one", "dataset", "--format", form, *chosen, "-o", str(first))
    arttrace(tmp_path / "two", "import", str(first))
    arttrace(tmp_path / "two", "dataset", "--format", form, *chosen, "-o", str(second))
    rows, again = ([json.loads(line) for line in file.read_text().splitlines()] for file in (first, second))
    assert rows
    assert sorted(map(json.dumps, again)) == sorted(map(json.dumps, rows))


def test_tools_as_json_text_are_read_beside_messages_too() -> None:
    """As TRL's rows have them, and tables."""
    _, [run] = read(lines({"messages": [*ASKED, *YES], "tools": TOOLS}))
    assert [placed.call.tools for placed in run.calls] == [tuple(json.loads(TOOLS))]
    _, [run] = read(lines({"messages": [*ASKED, *YES], "tools": "hammer"}))
    assert run.metadata == {"tools": "hammer"}


def test_what_stands_behind_the_last_answer_is_counted() -> None:
    calls = {"role": "assistant", "content": "", "tool_calls": [{"id": "c", "function": {"name": "look"}}]}
    shown = {"role": "tool", "tool_call_id": "c", "content": "4 degrees"}
    found, [run] = read(lines({"prompt": ASKED, "completion": [calls, shown]}))
    assert found.left_out == {"messages behind the last answer": 1}
    assert run.result == "4 degrees"


def test_a_table_of_verl_comes_back(tmp_path: Path) -> None:
    stored(DataDir(tmp_path / "one"))
    file = tmp_path / "rows.parquet"
    arttrace(tmp_path / "one", "dataset", "--format", "verl-sft", "-o", str(file))
    arttrace(tmp_path / "two", "import", str(file))
    for name in ("one", "two"):
        arttrace(tmp_path / name, "dataset", "--format", "trl-sft", "-o", str(tmp_path / f"{name}.jsonl"))
    one, two = (sorted((tmp_path / f"{name}.jsonl").read_text().splitlines()) for name in ("one", "two"))
    assert one == two


def test_a_preference_is_a_group_of_two() -> None:
    for row in (
        {"prompt": ASKED, "chosen": YES, "rejected": NO, "margin": 2},
        {"prompt": "Is it?", "chosen": [*ASKED, *YES], "rejected": [*ASKED, *NO], "margin": 2},
        {"input": {"messages": ASKED}, "preferred_output": YES, "non_preferred_output": NO, "margin": 2},
    ):
        found, runs = read(lines(row, row))
        assert found.kinds == {"training rows": 2}
        assert len({run.group for run in runs}) == 2, "each row is a pair of its own"
        first = [run for run in runs if run.group == "file line 1"]
        assert sorted(run.calls[0].call.choices[0].message.text for run in first) == ["No.", "Yes."]
        assert all([one.role for one in run.calls[0].call.messages] == ["user"] for run in runs)
        assert [run.metadata for run in runs] == [{"margin": 2}] * 4
        values = {one.trajectory_id: one.value for one in found.records if isinstance(one, Reward)}
        assert {run.result: values[run.id] for run in first} == {"Yes.": 1.0, "No.": 0.0}


def test_of_a_prompt_the_answers_are_context() -> None:
    prompt = [*ASKED, *NO, {"role": "user", "content": "Sure?"}]
    _, [run] = read(lines({"prompt": prompt, "completion": YES}))
    [placed] = run.calls
    assert [one.role for one in placed.call.messages] == ["user", "assistant", "user"]
    found, _ = read(lines({"prompt": prompt, "completion": YES, "label": False}))
    assert [(one.name, one.value) for one in found.records if isinstance(one, Reward)] == [("label", 0.0)]


@pytest.mark.parametrize(
    "beside",
    [
        {"prompt": "hi", "completion": "hello"},
        {"prompt": "hi", "chosen": "hello", "rejected": "no"},
        {"conversations": [{"from": "human", "value": "hi"}]},
    ],
)
def test_a_conversation_with_texts_of_training_beside_is_one(beside: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    found = read_file(json.dumps({"messages": messages, **beside}).encode(), "rows")
    assert (found.kinds, found.traces, found.refused) == ({"conversations": 1}, 1, 0)


def test_sharegpt_as_others_write_it() -> None:
    turns = [
        {"from": "system", "value": "Help."},
        {"from": "human", "value": "Oslo?"},
        {"from": "function_call", "value": '{"name": "look", "arguments": {"q": "oslo"}}'},
        {"from": "observation", "value": "4 degrees"},
        {"from": "gpt", "value": "Cold."},
    ]
    _, [run] = read(lines({"conversations": turns, "tools": TOOLS, "id": "identity_0"}))
    assert [len(placed.call.messages) for placed in run.calls] == [2, 4]
    assert [(tool.name, tool.arguments, tool.result) for tool in run.tool_calls] == [
        ("look", '{"q":"oslo"}', "4 degrees")
    ]
    assert run.metadata == {"id": "identity_0"}
    assert run.calls[0].call.tools


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "The sky is", "completion": " blue."}, "`completion` is no list of messages with roles"),
        ({"prompt": ASKED, "completion": ASKED}, "a row without an answer"),
        ({"conversations": [{"from": "narrator", "value": "x"}]}, "turn 1 is from 'narrator'"),
        ({"conversations": [{"from": "human"}]}, "turn 1 has no text"),
        ({"conversations": [{"from": "function_call", "value": "{}"}]}, "a tool call has no name"),
    ],
)
def test_what_is_no_conversation_is_refused_with_the_reason(row: dict[str, Any], said: str) -> None:
    with pytest.raises(Unreadable, match="item 1: "):
        read_file(json.dumps(row).encode(), "file")
    good = {"prompt": ASKED, "completion": YES}
    found, _ = read(lines(good, row), refused=1)
    assert found.reasons[0].startswith(f"line 2: {said}")
