"""`arttrace dataset`: what is written is what the libraries that read it take, and what is left out is counted."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from datasets import load_dataset
from simulated_agent import Run, message, result
from stored_runs import TOOLS, no_row, store_runs, write_dataset

from arttrace.commands import cli
from arttrace.formats.imported_files import read_file
from arttrace.store import Store
from arttrace.system.paths import DataDir
from trainer.output.quiet import import_trl


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    data = DataDir(tmp_path_factory.mktemp("dataset") / ".arttrace")
    store_runs(data, groups=6)
    return data


def write(data: DataDir, path: Path, form: str, *options: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    said = write_dataset(data, path, form, *options, code=code)
    return [json.loads(line) for line in path.read_text().splitlines()] if code == 0 else [], said


@pytest.mark.parametrize(
    ("form", "options", "columns", "count"),
    [
        ("trl-sft", (), {"messages", "tools"}, 24),
        ("trl-sft", ("--best",), {"messages", "tools"}, 6),
        ("trl-sft", ("--min-reward", "0.5"), {"messages", "tools"}, 12),
        ("trl-prompt-completion", ("--best",), {"prompt", "completion", "tools"}, 12),
        ("trl-preference", (), {"prompt", "chosen", "rejected", "tools"}, 6),
        ("trl-unpaired", ("--min-reward", "0.5"), {"prompt", "completion", "label", "tools"}, 36),
    ],
)
def test_trl_takes_what_is_written_for_it(
    data: DataDir, tmp_path: Path, form: str, options: tuple[str, ...], columns: set[str], count: int
) -> None:
    import_trl()
    from trl.data_utils import is_conversational

    found, _ = write(data, tmp_path / "rows.jsonl", form, *options)
    assert len(found) == count
    loaded = load_dataset("json", data_files=str(tmp_path / "rows.jsonl"), cache_dir=str(tmp_path / "cache"))["train"]
    assert (len(loaded), set(loaded.column_names)) == (count, columns)
    assert all(is_conversational(row) for row in found)
    assert all(row["tools"] == TOOLS for row in found)


def test_a_chat_template_renders_every_row(data: DataDir, tmp_path: Path) -> None:
    from jinja2 import Template

    found, _ = write(data, tmp_path / "rows.jsonl", "trl-sft", "--best")
    template = Template(
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
        "{{ c.function.name }}({{ c.function.arguments.id }}){% endfor %}{% endfor %}"
    )
    assert template.render(**found[0]) == (
        "<system>Help.<user>where in g0?<assistant>find(7)<tool>in Bern<assistant>Bern."
    )


def test_openais_rules_hold(data: DataDir, tmp_path: Path) -> None:
    found, _ = write(data, tmp_path / "rows.jsonl", "openai-sft", "--min-reward", "1")
    assert len(found) == 6
    for row in found:
        roles = [one["role"] for one in row["messages"]]
        assert roles == ["system", "user", "assistant", "tool", "assistant"]
        [call] = row["messages"][2]["tool_calls"]
        assert (call["type"], call["function"]["arguments"]) == ("function", '{"id": 7}')
        assert row["messages"][3]["tool_call_id"] == call["id"]
        assert all("weight" not in one for one in row["messages"])
    pairs, _ = write(data, tmp_path / "pairs.jsonl", "openai-dpo")
    assert len(pairs) == 6
    assert {tuple(one) for one in pairs} == {("input", "preferred_output", "non_preferred_output")}
    assert pairs[0]["preferred_output"] == [{"role": "assistant", "content": "Bern."}]
    assert pairs[0]["non_preferred_output"] == [{"role": "assistant", "content": "Basel."}]
    assert pairs[0]["input"]["tools"] == TOOLS


def test_sharegpt(data: DataDir, tmp_path: Path) -> None:
    found, _ = write(data, tmp_path / "rows.jsonl", "sharegpt", "--best")
    assert found[0]["system"] == "Help."
    assert [one["from"] for one in found[0]["conversations"]] == ["human", "function_call", "observation", "gpt"]
    assert json.loads(found[0]["conversations"][1]["value"]) == {"name": "find", "arguments": {"id": 7}}
    assert json.loads(found[0]["tools"]) == TOOLS


USER, ANSWER = message("user", "q"), message("assistant", "a")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ([USER, USER], "turns that do not alternate"),
        ([message("system", "s"), ANSWER, USER], "answers that are context"),
        ([USER, message("system", "later")], "system messages after the first"),
        ([USER, message("function", "f")], "messages of the role 'function'"),
        ([], "turns that do not alternate"),
    ],
)
def test_what_readers_of_sharegpt_would_skip_is_counted(asked: list[Any], reason: str, tmp_path: Path) -> None:
    """LLaMA-Factory logs a warning, and trains on nothing in the place of such a row."""
    data = DataDir(tmp_path / ".arttrace")
    run = Run("r")
    run.chat("m", asked, ANSWER, at=10)
    with Store.open(data, create=True) as store:
        store.append(list(run.end()))
    assert f"1 conversation left out: {reason}" in no_row(data, tmp_path / "rows.jsonl", "sharegpt")


def test_reasoning_is_not_left_out_of_a_row_of_sharegpt_in_silence(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    run = Run("r")
    thought = {"role": "assistant", "parts": [{"type": "reasoning", "content": "hm"}, *ANSWER["parts"]]}
    run.chat("m", [USER], thought, at=10)
    with Store.open(data, create=True) as store:
        store.append(list(run.end()))
    assert "1 conversation left out: reasoning" in no_row(data, tmp_path / "rows.jsonl", "sharegpt")


def test_a_call_that_openai_would_miss_the_result_of(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    call = message("assistant", calls=(("c1", "f", "{}"), ("c2", "f", "{}")))
    run = Run("r")
    asked = run.chat("m1", [USER], call, at=10)
    run.chat("m2", [USER, asked, result("c1", "1"), message("user", "well?")], ANSWER, at=20)
    with Store.open(data, create=True) as store:
        store.append(list(run.end()))
    said = no_row(data, tmp_path / "rows.jsonl", "openai-sft")
    assert "1 conversation left out: tool calls without a result before the next message" in said


def test_an_answer_that_is_context_is_not_trained_on(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    run = Run("r")
    shots = [message("user", "1+1"), message("assistant", "2"), message("user", "2+2")]
    run.chat("m", shots, message("assistant", "4"), at=10)
    with Store.open(data, create=True) as store:
        store.append(list(run.end()))
    said = no_row(data, tmp_path / "a.jsonl", "trl-sft")
    assert "1 conversation left out: answers that are context" in said
    [row], _ = write(data, tmp_path / "b.jsonl", "openai-sft")
    assert [one.get("weight") for one in row["messages"]] == [None, 0, None, None]
    [row], _ = write(data, tmp_path / "c.jsonl", "trl-prompt-completion")
    assert row["completion"] == [{"role": "assistant", "content": "4"}]


def test_held_out_groups_are_whole_and_the_same_for_a_larger_share(data: DataDir, tmp_path: Path) -> None:
    sides = []
    for share in ("0.3", "0.6"):
        path = tmp_path / f"{share}.jsonl"
        kept, _ = write(data, path, "trl-sft", "--held-out", share)
        held = [json.loads(line) for line in (tmp_path / f"{share}.held-out.jsonl").read_text().splitlines()]
        assert len(kept) + len(held) == 24
        of = [{one["messages"][1]["content"] for one in rows} for rows in (kept, held)]
        assert not of[0] & of[1]
        sides.append(of[1])
    assert sides[0] < sides[1]


def test_filters_and_what_is_left_out(data: DataDir, tmp_path: Path) -> None:
    found, said = write(data, tmp_path / "a.jsonl", "trl-sft", "--group", "g1", "--best")
    assert [one["messages"][1]["content"] for one in found] == ["where in g1?"]
    assert "1 row of 1 run in" in said
    assert "2 runs left out: not the best of its group" in said
    assert "1 run left out: no reward" in said
    _, said = write(data, tmp_path / "b.jsonl", "trl-sft", "--reward", ">0.7", "--json")
    assert json.loads(said)["rows"] == 6
    found, _ = write(data, tmp_path / "c.jsonl", "trl-sft", "--search", "WHERE IN G1")
    assert {one["messages"][1]["content"] for one in found} == {"where in g1?"}


@pytest.mark.parametrize(
    ("form", "options", "said"),
    [
        ("trl-unpaired", (), "needs --min-reward"),
        ("trl-preference", ("--best",), "leave --best and --min-reward out"),
        ("trl-sft", ("--best", "--min-reward", "1"), "give one of them"),
        ("trl-sft", ("--reward", "much"), "not a comparison"),
    ],
)
def test_options_that_contradict(data: DataDir, tmp_path: Path, form: str, options: tuple[str, ...], said: str) -> None:
    assert said in write(data, tmp_path / "x.jsonl", form, *options, code=2)[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--entry", "nobody"), "no run matches"),
        (("--min-reward", "7"), "18 runs left out: a reward below the bound; 6 runs left out: no reward"),
    ],
)
def test_no_row_is_an_error_and_leaves_the_file_as_it_was(
    data: DataDir, tmp_path: Path, options: tuple[str, ...], said: str
) -> None:
    """An empty file would train on nothing, far from where that can be seen."""
    (tmp_path / "rows.jsonl").write_text("before")
    assert said in no_row(data, tmp_path / "rows.jsonl", "trl-sft", *options)
    assert (tmp_path / "rows.jsonl").read_text() == "before"


def test_a_file_that_cannot_be_written_names_itself_and_an_old_one_stays(
    data: DataDir, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = ["dataset", "--format", "trl-sft", "-o", str(tmp_path / "none" / "x.jsonl"), "--dir", str(data.root)]
    done = CliRunner().invoke(cli, args)
    assert "none/x.jsonl cannot be written: No such file or directory" in str(done.exception)
    assert f"mkdir -p {tmp_path / 'none'}" in str(done.exception)
    (tmp_path / "old.jsonl").write_text("old")
    monkeypatch.setattr("arttrace.system.files.secrets.token_hex", lambda _: "0")
    (tmp_path / ".old.jsonl-0.part").mkdir()
    args[4] = str(tmp_path / "old.jsonl")
    assert CliRunner().invoke(cli, args).exit_code == 1
    assert (tmp_path / "old.jsonl").read_text() == "old"


@pytest.mark.parametrize("form", ["trl-sft", "art", "verl-sft"])
def test_a_file_for_which_there_is_no_room_names_itself(data: DataDir, form: str) -> None:
    written = CliRunner().invoke(cli, ["dataset", "--dir", str(data.root), "--format", form, "-o", "/dev/full"])
    assert str(written.exception).startswith("/dev/full cannot be written: No space left on device")


def test_a_pipe_stays_one_and_a_link_leads_where_it_led(data: DataDir, tmp_path: Path) -> None:
    """By root `--output /dev/null` once put a file in the place of the device."""
    written, _ = write(data, tmp_path / "file.jsonl", "trl-sft")
    pipe, link = tmp_path / "pipe", tmp_path / "link.jsonl"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(reader, "rb") as read:
        write_dataset(data, pipe, "trl-sft", code=0)
        assert [json.loads(line) for line in read.read().splitlines()] == written
    assert pipe.is_fifo()
    link.symlink_to(tmp_path / "file.jsonl")
    (tmp_path / "file.jsonl").write_text("old")
    assert write(data, link, "trl-sft")[0] == written
    assert link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.jsonl", "link.jsonl", "pipe"]


def test_a_run_of_which_there_is_no_row_is_not_written(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    asked = [{"role": "user", "content": "q"}]
    lost = {"role": "tool", "tool_call_id": "c", "content": "an answer to nothing"}
    said = [{"messages": [*asked, *between, {"role": "assistant", "content": "a"}]} for between in ([], [lost])]
    with Store.open(data, create=True) as store:
        store.append(read_file("\n".join(map(json.dumps, said)).encode(), "log").records)
    _, printed = write(data, tmp_path / "a.jsonl", "openai-sft", "--json")
    counted = json.loads(printed)
    assert (counted["rows"], counted["runs"]) == (1, 1)
    assert counted["conversations_left_out"] == {"tool results that answer no call": 1}
