"""Why an answer ended, in the words of ART's choices; what was broken off is no choice, which ART would train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from openai.types.chat.chat_completion import Choice
from simulated_agent import JsonMessage, Run, message
from stored_runs import no_row, write_dataset

from arttrace.commands import cli
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir

BROKEN_OFF = "others: answers that failed or were broken off, written as messages that ART does not train on"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path / ".arttrace")


Said = tuple[JsonMessage, str | None, str | None]
"""An answer, the reason of its end, and what interrupted its call."""


def store(data: DataDir, *runs: list[Said]) -> None:
    """Runs of answers, each alone in its group."""
    with Store.open(data, create=True) as opened:
        for place, answers in enumerate(runs):
            run = Run(f"run-{place}", scenario=f"{place:02}")
            history = [message("user", "Where to?")]
            for number, (answer, reason, interrupted) in enumerate(answers):
                output = json.dumps([{**answer, **({"finish_reason": reason} if reason else {})}])
                ended = {"OUTPUT_MESSAGES": output, "INTERRUPTED": interrupted}
                run.chat(str(number), list(history), answer, at=10 * number, **ended)
                history += [answer, message("user", "Go on.")]
            opened.append([*run.end(), Reward(id=f"w-{place}", trajectory_id=f"run-{place}", value=1.0)])


def words(data: DataDir, path: Path) -> tuple[list[list[dict[str, Any]]], str]:
    """The messages and choices of each run, and what the command said."""
    shown = write_dataset(data, path, "art")
    found = []
    for row in sorted(map(json.loads, path.read_text().splitlines()), key=lambda row: row["metadata"]["group"]):
        [one] = row["trajectories"]
        assert one["additional_histories"] == []
        for said in one["messages_and_choices"]:
            if "finish_reason" in said:
                Choice.model_validate(said)
        found.append(one["messages_and_choices"])
    return found, shown


def reasons(said: list[dict[str, Any]]) -> list[str]:
    return [one["finish_reason"] for one in said if "finish_reason" in one]


TEXT, CALL = message("assistant", "Lisbon"), message("assistant", calls=(("c1", "find", "{}"),))


WRITTEN = [
    (TEXT, "stop", "stop"),
    (TEXT, "end_turn", "stop"),
    (TEXT, "STOP", "stop"),
    (TEXT, "stop_sequence", "stop"),
    (TEXT, None, "stop"),
    (TEXT, "a word of tomorrow", "stop"),
    (TEXT, "length", "length"),
    (TEXT, "max_tokens", "length"),
    (TEXT, "MAX_TOKENS", "length"),
    (TEXT, "FinishReason.MAX_TOKENS", "length"),
    (TEXT, "max_output_tokens", "length"),
    (TEXT, "incomplete", "length"),
    (TEXT, "pause_turn", "length"),
    (CALL, "max_tokens", "length"),
    (TEXT, "content_filter", "content_filter"),
    (TEXT, "content-filter", "content_filter"),
    (TEXT, "SAFETY", "content_filter"),
    (TEXT, "refusal", "content_filter"),
    (CALL, "tool_use", "tool_calls"),
    (CALL, "tool-calls", "tool_calls"),
    (CALL, "TOOL_CALL", "tool_calls"),
    (CALL, "a word of tomorrow", "tool_calls"),
    (CALL, None, "tool_calls"),
    (CALL, "function_call", "function_call"),
]


def test_a_choice_says_in_openais_words_why_it_ended(data: DataDir, tmp_path: Path) -> None:
    store(data, *([(answer, shown, None), (TEXT, "stop", None)] for answer, shown, _ in WRITTEN))
    said, printed = words(data, tmp_path / "x.jsonl")
    assert [reasons(one) for one in said] == [[written, "stop"] for *_, written in WRITTEN]
    assert "broken off" not in printed


BROKEN = [
    ("error", None),
    ("cancelled", None),
    ("CANCELED", None),
    ("abort", None),
    ("FinishReason.ERROR", None),
    ("error", "error"),
    (None, "error"),
    (None, "cancelled"),
]


def test_what_failed_or_was_cancelled_is_no_choice(data: DataDir, tmp_path: Path) -> None:
    ends = [*BROKEN, (None, "closed")]
    store(data, *([(TEXT, "stop", None), (message("assistant", "Becau"), *end)] for end in ends))
    said, printed = words(data, tmp_path / "x.jsonl")
    assert [reasons(one) for one in said] == [["stop"]] * len(ends)
    assert [one[-1] for one in said] == [{"role": "assistant", "content": "Becau"}] * len(ends)
    assert f"{len(ends)} {BROKEN_OFF}" in printed
    again = DataDir(tmp_path / "again")
    CliRunner().invoke(cli, ["import", str(tmp_path / "x.jsonl"), "--dir", str(again.root)])
    with Store.open(again) as opened:
        runs = opened.trajectories()
    found = [[choice.finish_reason for placed in run.calls for choice in placed.call.choices] for run in runs]
    assert found == [["stop"]] * len(ends)


def test_nor_is_it_where_the_program_went_on_from_it(data: DataDir, tmp_path: Path) -> None:
    store(data, *([(TEXT, *end), (message("assistant", "Porto."), "stop", None)] for end in BROKEN))
    said, printed = words(data, tmp_path / "x.jsonl")
    for one in said:
        assert [each["message"]["content"] for each in one if "finish_reason" in each] == ["Porto."]
        assert one[1] == {"role": "assistant", "content": "Lisbon"}
    assert len(said) == len(BROKEN)
    assert f"{len(BROKEN)} {BROKEN_OFF}" in printed


def test_a_stream_that_the_program_closed_and_went_on_from_ends_there(data: DataDir, tmp_path: Path) -> None:
    store(data, [(TEXT, None, "closed"), (message("assistant", "Porto."), "stop", None)])
    [said], printed = words(data, tmp_path / "x.jsonl")
    assert reasons(said) == ["stop", "stop"]
    assert "broken off" not in printed


def test_a_run_of_which_nothing_is_a_choice_is_left_out(data: DataDir, tmp_path: Path) -> None:
    store(data, [(TEXT, "error", None)])
    assert "1 run left out: answers that were cut off" in no_row(data, tmp_path / "x.jsonl", "art")
