"""An answer that was broken off is not imitated, unless the program went on from it; GRPO trains on its tokens."""

from __future__ import annotations

import json

import pytest
from simulated_agent import JsonMessage, Run, message

from arttrace.records.message import Message
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.conversations import conversations, main_conversation, opening, unsupported

START = [message("user", "Where to?")]


def answer(run: Run, name: str, asked: list[JsonMessage], text: str, at: int, cut: str | None = None) -> JsonMessage:
    """A call; of one that was cut no reason of its end came."""
    said = message("assistant", text)
    output = json.dumps([said if cut else {**said, "finish_reason": "stop"}])
    return run.chat(name, asked, said, at=at, OUTPUT_MESSAGES=output, INTERRUPTED=cut)


def imitated(trajectory: Trajectory) -> list[tuple[list[str], list[str], str | None]]:
    """Of every conversation its messages, what of them is learned, and why it is left out."""

    def texts(messages: tuple[Message, ...]) -> list[str]:
        return [one.text for one in messages]

    return [
        (texts(one.messages), texts(tuple(one.messages[at] for at in one.targets)), unsupported(one))
        for one in conversations(trajectory)
    ]


@pytest.mark.parametrize("cut", ["error", "closed", "cancelled"])
def test_a_stream_that_broke_is_asked_again_and_the_whole_answer_is_imitated(cut: str) -> None:
    run = Run()
    first = answer(run, "a", START, "Lisbon.", 1)
    asked = [*START, first, message("user", "And where do I stay?")]
    answer(run, "b", asked, "At the Hotel", 10, cut)
    answer(run, "c", asked, "At the Hotel Tejo.", 20)
    [trajectory] = build_trajectories(run.end())
    before = ["Where to?", "Lisbon.", "And where do I stay?"]
    assert imitated(trajectory) == [
        ([*before, "At the Hotel"], ["At the Hotel"], NotTrained.CUT_OFF),
        ([*before, "At the Hotel Tejo."], ["Lisbon.", "At the Hotel Tejo."], None),
    ]
    report = sequences(trajectory)[1]
    assert report.trained_tokens == report.captured_tokens > 0


def test_the_answers_before_one_that_was_cut_off_are_imitated() -> None:
    run = Run()
    first = answer(run, "a", START, "Lisbon.", 1)
    answer(run, "b", [*START, first, message("user", "Why?")], "Because it", 10, "error")
    [trajectory] = build_trajectories(run.end())
    assert imitated(trajectory) == [
        (["Where to?", "Lisbon."], ["Lisbon."], None),
        (["Where to?", "Lisbon.", "Why?", "Because it"], ["Because it"], NotTrained.CUT_OFF),
    ]
    main = main_conversation(trajectory)
    assert main is not None
    assert unsupported(main) is NotTrained.CUT_OFF, "what the run came to is not whole"


def test_what_the_program_went_on_from_it_took_for_an_answer() -> None:
    run = Run()
    first = answer(run, "a", START, "Thought: look. Action: search", 1, "closed")
    answer(run, "b", [*START, first, message("user", "Observation: Lisbon")], "Lisbon.", 10)
    [trajectory] = build_trajectories(run.end())
    [(_, learned, left_out)] = imitated(trajectory)
    assert (learned, left_out) == (["Thought: look. Action: search", "Lisbon."], None)


def test_a_stream_that_was_closed_behind_its_last_word_is_whole() -> None:
    run = Run()
    run.chat("a", START, message("assistant", "Lisbon."), at=1, INTERRUPTED="closed")
    [trajectory] = build_trajectories(run.end())
    assert imitated(trajectory) == [(["Where to?", "Lisbon."], ["Lisbon."], None)]


def test_a_task_begins_before_the_first_answer_though_that_one_was_cut_off() -> None:
    run = Run()
    answer(run, "a", START, "Lis", 1, "error")
    answer(run, "b", [*START, answer(run, "c", START, "Lisbon.", 10), message("user", "Why?")], "Tiles.", 20)
    [trajectory] = build_trajectories(run.end())
    first = opening(trajectory)
    assert first is not None
    assert ([one.text for one in first.messages], first.targets) == (["Where to?", "Lis"], (1,))
