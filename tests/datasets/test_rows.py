"""verl, ATIF, ART and `arttrace.dataset`: what is written, and what is counted where a form cannot hold it."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import Dataset, IterableDataset, load_dataset
from openai.types.chat.chat_completion import Choice
from simulated_agent import Run, message, research_run, result
from stored_runs import TOOLS, no_row, store_runs, write_dataset

import arttrace
from arttrace.formats.datasets import atif
from arttrace.formats.datasets.forms import Form
from arttrace.formats.imported_files import read_file
from arttrace.records.group import new_key
from arttrace.records.reward import JUDGE, Reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.datasets import selection


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataDir:
    data = DataDir(tmp_path_factory.mktemp("rows") / ".arttrace")
    store_runs(data, groups=3)
    return data


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_verl_reads_parquet_of_one_type(data: DataDir, tmp_path: Path) -> None:
    file = tmp_path / "sft.parquet"
    assert "6 rows of 6 runs" in write_dataset(data, file, "verl-sft", "--min-reward", "0.5")
    loaded = load_dataset("parquet", data_files=str(file), cache_dir=str(tmp_path / "cache"))["train"]
    assert set(loaded.column_names) == {"messages", "tools", "extra_info"}
    row = loaded[0]
    assert row["tools"] == TOOLS
    assert [one["role"] for one in row["messages"]] == ["system", "user", "assistant", "tool", "assistant"]
    assert row["messages"][2]["tool_calls"][0]["function"] == {"name": "find", "arguments": '{"id": 7}'}
    assert row["extra_info"]["reward"] == 1.0
    assert "3 rows of 12 runs" in write_dataset(data, file, "verl-rl")
    row = pq.read_table(file).to_pylist()[2]
    assert [(one["role"], one["content"]) for one in row["prompt"]] == [
        ("system", "Help."),
        ("user", "where in g2?"),
    ]
    assert row["extra_info"] | {"arguments": None} == {
        "index": "g2",
        "scenario": "g2",
        "arguments": None,
        "runs": 4,
        "mean_reward": 0.5,
    }


def test_held_out_runs_become_no_rows(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    with Store.open(data, create=True) as store:
        for at, tags in enumerate((["held-out"], ["exam"], [])):
            run = Run(f"r{at}", scenario="s")
            run.chat("m", [message("user", "q")], message("assistant", f"a{at}"), at=10)
            store.append([*run.end(TAGS=tags), Reward(id=f"r{at}", trajectory_id=run.id, value=1.0 - at / 2)])
    for form, given, rows in (
        ("trl-sft", (), 2),
        ("trl-sft", ("--best",), 1),
        ("trl-unpaired", ("--min-reward", "0.5"), 2),
        ("trl-preference", (), 1),
        ("art", (), 1),
    ):
        file = tmp_path / "rows.jsonl"
        said = write_dataset(data, file, form, *given)
        assert "1 run left out: held out from training" in said, said
        assert len(lines(file)) == rows
        assert "a0" not in file.read_text()
    with pytest.raises(ArttraceError, match="1 run left out: held out from training"):
        write_dataset(data, file, "trl-sft", "--tag", "held-out")


def store_one(data: DataDir, run: Run) -> None:
    with Store.open(data, create=True) as store:
        store.append([*run.end(), Reward(id="r", trajectory_id=run.id, value=1.0)])


def tool(name: str, **properties: str) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


def test_tools_that_parquet_would_fill_with_nulls_are_counted(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    for at, tools in enumerate(([tool("a", x="string")], [tool("a", x="string"), tool("b", y="string")], [])):
        run = Run(f"r{at}", scenario="s")
        run.chat("m", [message("user", "q")], message("assistant", "a"), at=10, TOOL_DEFINITIONS=json.dumps(tools))
        store_one(data, run)
    said = write_dataset(data, tmp_path / "x.parquet", "verl-sft")
    assert "1 conversation left out: tool definitions that differ in shape" in said
    assert "2 rows of 2 runs in" in said
    assert [row["tools"] for row in pq.read_table(tmp_path / "x.parquet").to_pylist()] == [
        [tool("a", x="string")],
        None,
    ]


def test_runs_that_begin_differently_are_no_task_of_verl(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    for at in range(2):
        run = Run(f"r{at}", scenario="s")
        run.chat("m", [message("user", f"q{at}")], message("assistant", "a"), at=10)
        store_one(data, run)
    assert "1 group left out: the two runs begin differently" in no_row(data, tmp_path / "x.parquet", "verl-rl")


def test_what_trl_learns_of_a_pair_beside_the_models_answers_is_counted(tmp_path: Path) -> None:
    """Its DPO takes all of a completion for the model's words: TRL 1.15 masks the prompt alone."""
    data = DataDir(tmp_path / ".arttrace")
    question, call = message("user", "q"), message("assistant", calls=(("c1", "find", "{}"),))
    for at, value in enumerate((3.0, 0.0)):
        run = Run(f"r{at}", scenario="s")
        if value:
            run.chat("m1", [question], call, at=10)
            run.chat("m2", [question, call, result("c1", "7")], message("assistant", "seven"), at=20)
        else:
            run.chat("m1", [question], message("assistant", "no"), at=10)
        store_one(data, run)
        with Store.open(data) as store:
            store.append([Reward(f"w{at}", f"r{at}", value)])
    said = write_dataset(data, tmp_path / "x.jsonl", "trl-preference")
    assert "1 other: messages behind the prompt of a pair that are no answer of its model" in said
    [row] = lines(tmp_path / "x.jsonl")
    assert [one["role"] for one in row["chosen"]] == ["assistant", "tool", "assistant"]


def test_an_atif_document_holds_sub_agents_tokens_and_rewards(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    with Store.open(data, create=True) as store:
        store.append(research_run("r"))
        [run] = store.trajectories()
    [made] = [step for step in atif.document(run)["steps"] if step.get("metrics")][:1]
    assert made["metrics"]["prompt_token_ids"] is run.calls[0].call.prompt_token_ids  # not a list of each call's own
    write_dataset(data, tmp_path / "x.jsonl", "atif")
    [shown] = lines(tmp_path / "x.jsonl")
    assert (shown["schema_version"], shown["trajectory_id"]) == ("ATIF-v1.7", "r")
    documents = [shown, *shown["subagent_trajectories"]]
    assert len({one["trajectory_id"] for one in documents}) == len(documents) > 1
    sampled = []
    for one in documents:
        assert [step["step_id"] for step in one["steps"]] == list(range(1, len(one["steps"]) + 1))
        for step in one["steps"]:
            asked = {call["tool_call_id"] for call in step.get("tool_calls", ())}
            results = step.get("observation", {"results": []})["results"]
            assert {result["source_call_id"] for result in results if "source_call_id" in result} <= asked
            if step["source"] == "agent" and not step.get("is_copied_context"):
                sampled.append(step["metrics"]["completion_token_ids"])
    assert sorted(sampled) == sorted(
        list(choice.token_ids or ()) for placed in run.calls for choice in placed.call.choices
    )


def test_a_choice_of_art_is_one_of_openais(data: DataDir, tmp_path: Path) -> None:
    said = write_dataset(data, tmp_path / "x.jsonl", "art")
    assert "3 rows of 9 runs" in said
    assert "3 runs left out: no reward" in said
    [first, *_] = lines(tmp_path / "x.jsonl")
    assert [one["reward"] for one in first["trajectories"]] == [1.0, 0.0, 0.5]
    shown = first["trajectories"][0]
    assert shown["tools"] == TOOLS
    choices = [Choice.model_validate(one) for one in shown["messages_and_choices"] if "finish_reason" in one]
    assert [one.message.content for one in choices] == [None, "Bern."]
    assert all(one.logprobs is not None and one.logprobs.content for one in choices)
    assert [one["role"] for one in shown["messages_and_choices"] if "role" in one] == ["system", "user", "tool"]


def test_what_a_form_has_no_place_for_is_named(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    image = {"role": "user", "parts": [{"type": "other", "value": {"type": "image_url", "image_url": {"url": "x"}}}]}
    run = Run("r")
    run.chat("m", [image], message("assistant", "a"), at=10)
    store_one(data, run)
    for form, what in (("atif", "run"), ("verl-sft", "conversation"), ("verl-rl", "group")):
        assert f"1 {what} left out: parts that are no text" in no_row(data, tmp_path / "x", form)


@pytest.mark.parametrize("form", [form.value for form in Form if not form.is_of_pairs])
def test_what_an_exporter_cut_is_in_no_file(tmp_path: Path, form: str) -> None:
    data = DataDir(tmp_path / ".arttrace")
    run = Run("r")
    asked = [message("user", "where?")]
    run.chat("m", asked, message("assistant", "a"), at=10, SYSTEM_INSTRUCTIONS='[{"type": "text", "content": "Be ki')
    store_one(data, run)
    assert " left out: messages that cannot be read" in no_row(data, tmp_path / "x", form, "--min-reward", "1")


@pytest.mark.parametrize("form", ["verl-sft", "verl-rl", "atif", "art"])
def test_held_out_groups_are_whole(data: DataDir, tmp_path: Path, form: str) -> None:
    file = tmp_path / ("x.parquet" if form.startswith("verl") else "x.jsonl")
    write_dataset(data, file, form, "--held-out", "0.25", "--min-reward", "0")
    sides = []
    for path in (file, file.with_suffix(f".held-out{file.suffix}")):
        rows = pq.read_table(path).to_pylist() if path.suffix == ".parquet" else lines(path)
        text = json.dumps(rows)
        sides.append({f"g{n}" for n in range(3) if f"where in g{n}?" in text})
    assert sides[0] | sides[1] == {"g0", "g1", "g2"}
    assert not sides[0] & sides[1]
    assert sides[0]
    assert sides[1]


@pytest.mark.parametrize("says", ["a scenario", "arguments"])
def test_what_several_groups_attempted_is_on_one_side(says: str, tmp_path: Path) -> None:
    """A loop gathers a group of its own for each attempt at a task."""
    data = DataDir(tmp_path / ".arttrace")
    tasks, rounds = 8, 4
    with Store.open(data, create=True) as store:
        for number in range(tasks * rounds):
            task = f"task {number % tasks}"
            run = Run(f"r{number}", scenario=task if says == "a scenario" else None)
            run.chat("m", [message("user", f"{task}?")], message("assistant", "a"), at=10)
            store.append(run.end(GROUP=new_key(), ENTRY_ARGUMENTS=json.dumps({"task": task})))
    file = tmp_path / "x.jsonl"
    write_dataset(data, file, "trl-sft", "--held-out", "0.5")
    asked = [
        [row["messages"][0]["content"] for row in lines(path)] for path in (file, file.with_suffix(".held-out.jsonl"))
    ]
    assert all(len(rows) == rounds * len({*rows}) > 0 for rows in asked)
    assert {*asked[0]} | {*asked[1]} == {f"task {number}?" for number in range(tasks)}


def test_a_group_that_is_read_in_parts_is_on_one_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where its runs say that they attempted different things."""
    monkeypatch.setattr(selection, "spans_at_once", lambda stored: 2)
    data = DataDir(tmp_path / ".arttrace")
    with Store.open(data, create=True) as store:
        for number in range(32):
            run = Run(f"r{number}", scenario=f"s{number}")
            run.chat("m", [message("user", f"g{number % 8}")], message("assistant", "a"), at=10)
            store.append(run.end(GROUP=f"g{number % 8}"))
    file = tmp_path / "x.jsonl"
    write_dataset(data, file, "trl-sft", "--held-out", "0.5")
    kept, held = (
        {row["messages"][0]["content"] for row in lines(path)} for path in (file, file.with_suffix(".held-out.jsonl"))
    )
    assert kept
    assert held
    assert not kept & held


def test_a_dataset_in_memory_is_what_the_command_writes(data: DataDir, tmp_path: Path) -> None:
    write_dataset(data, tmp_path / "x.jsonl", "trl-sft", "--best")
    with pytest.warns(UserWarning, match="runs left out") as warned:
        found = arttrace.dataset("trl-sft", best=True, dir=data.root)
    assert [str(one.message) for one in warned] == [
        "6 runs left out: not the best of its group",
        "3 runs left out: no reward",
    ]
    assert isinstance(found, Dataset)
    assert list(found) == lines(tmp_path / "x.jsonl")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        streamed = arttrace.dataset("trl-sft", best=True, dir=data.root, streaming=True)
        assert isinstance(streamed, IterableDataset)
        assert list(streamed) == list(streamed) == lines(tmp_path / "x.jsonl")
        split = arttrace.dataset("trl-unpaired", min_reward=0.7, held_out=0.25, dir=data.root)
    assert {name: len(part) for name, part in split.items()} == {"train": 12, "test": 6}


def test_arguments_of_different_tools_keep_their_own_names(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    run = Run("r")
    asked: list[Any] = [message("user", "q")]
    for at, arguments in enumerate(('{"x": 1}', '{"y": "z"}')):
        call = message("assistant", calls=((f"c{at}", "f", arguments),))
        run.chat(f"m{at}", asked, call, at=10 * (at + 1))
        asked = [*asked, call, result(f"c{at}", "ok")]
    run.chat("last", asked, message("assistant", "done"), at=50)
    store_one(data, run)
    found = arttrace.dataset(dir=data.root)
    said = [one["tool_calls"][0]["function"]["arguments"] for one in found[0]["messages"] if one.get("tool_calls")]
    assert said == [{"x": 1}, {"y": "z"}]


def test_a_form_that_is_none_is_named(data: DataDir) -> None:
    with pytest.raises(ValueError, match="'trl' is not a valid Form"):
        arttrace.dataset("trl", dir=data.root)


def mixed(data: DataDir) -> None:
    """A group of two runs rewarded by code, and one that a judge has scored beside it."""
    for at, value in enumerate((1.0, 0.0, 1.0)):
        run = Run(f"r{at}", scenario="s")
        run.chat("m", [message("user", "q")], message("assistant", "a"), at=10)
        store_one(data, run)
        with Store.open(data) as store:
            store.append([Reward(f"code-{at}", f"r{at}", value)])
    with Store.open(data) as store:
        store.append([Reward("ruler", "r2", 0.1, source=JUDGE)])


def test_a_group_of_art_holds_rewards_on_one_scale(tmp_path: Path) -> None:
    """ART compares the runs of a group: 0.55 for code's 1.0 and a score of 0.1 is not worse than 1.0."""
    mixed(data := DataDir(tmp_path / ".arttrace"))
    said = write_dataset(data, tmp_path / "x.jsonl", "art")
    assert "1 run left out: rewarded otherwise than its group" in said
    [group] = lines(tmp_path / "x.jsonl")
    assert [one["reward"] for one in group["trajectories"]] == [1.0, 0.0]


def test_a_mean_for_verl_is_of_rewards_on_one_scale(tmp_path: Path) -> None:
    mixed(data := DataDir(tmp_path / ".arttrace"))
    said = write_dataset(data, tmp_path / "x.parquet", "verl-rl")
    assert "1 other: rewards that are in no mean_reward: the run is rewarded otherwise than its group" in said
    [row] = pq.read_table(tmp_path / "x.parquet").to_pylist()
    assert (row["extra_info"]["runs"], row["extra_info"]["mean_reward"]) == (3, 0.5)


def test_a_run_without_times_has_none_in_atif(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "undated")
    said = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]
    with Store.open(data, create=True) as store:
        store.append(read_file(json.dumps({"messages": said}).encode(), "log").records)
        [before] = store.summaries()
    write_dataset(data, tmp_path / "x.jsonl", "atif")
    [shown] = lines(tmp_path / "x.jsonl")
    assert len(shown["steps"]) == 2
    assert [step for step in shown["steps"] if "timestamp" in step] == []
    with Store.open(DataDir(tmp_path / "again"), create=True) as store:
        store.append(read_file((tmp_path / "x.jsonl").read_bytes(), "x").records)
        [after] = store.summaries()
    assert after.start_ns == before.start_ns
