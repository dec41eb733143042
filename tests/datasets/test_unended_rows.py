"""Forms of text cannot say that an answer has no end: one that was cut short is left out of them and counted, and stays
where it is context. Forms that hold a finish reason keep both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from simulated_agent import Run, message
from stored_runs import no_row, write_dataset

from arttrace.formats.datasets.forms import Form
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir

OF_ANSWERS = [Form.TRL_PROMPT_COMPLETION, Form.TRL_UNPAIRED, Form.OPENAI_SFT]
OF_WHOLE_CONVERSATIONS = [Form.TRL_SFT, Form.SHAREGPT, Form.VERL_SFT]
WHY = "left out: answers cut short, which the format would give an end"
CUT = f"1 conversation {WHY}"


def store(data: DataDir, id: str, *said: tuple[str, str], reward: float = 1.0) -> None:
    """A run of answers, each with the reason of its end."""
    run = Run(id, scenario="s")
    history = [message("user", "Where to?")]
    for number, (text, reason) in enumerate(said):
        answer = message("assistant", text)
        output = json.dumps([{**answer, "finish_reason": reason}])
        run.chat(str(number), list(history), answer, at=10 * number, OUTPUT_MESSAGES=output)
        history += [answer, message("user", "Go on.")]
    with Store.open(data, create=True) as opened:
        opened.append([*run.end(), Reward(id=f"w-{id}", trajectory_id=id, value=reward)])


def options(form: Form) -> tuple[str, ...]:
    return ("--min-reward", "0.5") if form is Form.TRL_UNPAIRED else ()


def rows(path: Path, form: Form) -> list[dict[str, Any]]:
    return (
        pq.read_table(path).to_pylist()
        if form.is_parquet
        else [json.loads(one) for one in path.read_text().splitlines()]
    )


def answers(row: dict[str, Any], form: Form) -> list[str]:
    """What a reader of the form would train on."""
    if form is Form.SHAREGPT:
        return [one["value"] for one in row["conversations"] if one["from"] == "gpt"]
    return [
        one["content"]
        for one in row.get("completion") or row["messages"]
        if one["role"] == "assistant" and one.get("weight") != 0
    ]


def test_an_answer_that_was_cut_short_is_in_no_row(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    for reason in ("length", "content_filter", "MAX_TOKENS"):
        store(data, reason, ("Lisbon, which", reason))
    for form in OF_ANSWERS + OF_WHOLE_CONVERSATIONS:
        assert f"3 conversations {WHY}" in no_row(data, tmp_path / "x", form.value, *options(form))


@pytest.mark.parametrize("form", OF_ANSWERS + OF_WHOLE_CONVERSATIONS)
def test_the_answers_before_it_are_written(form: Form, tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store(data, "r", ("Lisbon.", "stop"), ("Lisbon, which", "length"))
    assert CUT in write_dataset(data, tmp_path / "x", form.value, *options(form))
    [row] = rows(tmp_path / "x", form)
    assert answers(row, form) == ["Lisbon."]
    assert "which" not in json.dumps(row)


@pytest.mark.parametrize("form", OF_ANSWERS)
def test_a_past_turn_that_was_cut_short_is_context_of_the_next_answer(form: Form, tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store(data, "r", ("Lisbon, which", "length"), ("is in Portugal.", "stop"))
    assert CUT in write_dataset(data, tmp_path / "x", form.value, *options(form))
    [row] = rows(tmp_path / "x", form)
    assert answers(row, form) == ["is in Portugal."]
    assert "Lisbon, which" in json.dumps(row)


@pytest.mark.parametrize("form", OF_WHOLE_CONVERSATIONS)
def test_a_form_that_trains_on_every_answer_holds_none_behind_one_that_was_cut_short(
    form: Form, tmp_path: Path
) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store(data, "r", ("Lisbon, which", "length"), ("is in Portugal.", "stop"))
    said = no_row(data, tmp_path / "x", form.value)
    assert CUT in said
    assert "1 conversation left out: answers that are context" in said


@pytest.mark.parametrize("form", [Form.TRL_PREFERENCE, Form.OPENAI_DPO])
@pytest.mark.parametrize("cut", ["better", "worse"])
def test_a_pair_of_which_one_was_cut_short_is_left_out(form: Form, cut: str, tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store(data, "a", ("Lisbon.", "length" if cut == "better" else "stop"), reward=1.0)
    store(data, "b", ("Paris.", "length" if cut == "worse" else "stop"), reward=0.0)
    assert CUT in no_row(data, tmp_path / "x", form.value)


@pytest.mark.parametrize("form", [Form.TRL_PREFERENCE, Form.OPENAI_DPO])
def test_what_a_pair_begins_with_may_have_been_cut_short(form: Form, tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    for id, text, reward in (("a", "Lisbon.", 1.0), ("b", "Paris.", 0.0)):
        store(data, id, ("To", "length"), (text, "stop"), reward=reward)
    assert "left out" not in write_dataset(data, tmp_path / "x", form.value)
    assert len(rows(tmp_path / "x", form)) == 1


def test_a_form_that_holds_a_finish_reason_keeps_the_answer(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store(data, "r", ("Lisbon, which", "length"))
    write_dataset(data, tmp_path / "x", Form.ATIF.value)
    [row] = rows(tmp_path / "x", Form.ATIF)
    assert row["steps"][-1]["message"] == "Lisbon, which"
    assert row["steps"][-1]["extra"]["arttrace"]["finish_reason"] == "length"
    write_dataset(data, tmp_path / "x", Form.ART.value)
    [row] = rows(tmp_path / "x", Form.ART)
    assert row["trajectories"][0]["messages_and_choices"][-1]["finish_reason"] == "length"


def test_a_task_of_verl_is_what_its_runs_begin_with(tmp_path: Path) -> None:
    data = DataDir(tmp_path / ".arttrace")
    store(data, "r", ("Lisbon, which", "length"))
    assert "left out" not in write_dataset(data, tmp_path / "x", Form.VERL_RL.value)
