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


def ended(run: Run, name: str, asked: list[JsonMessage], said: JsonMessage, at: int, reason: str | None) -> JsonMessage:
    """A call whose answer ended for that reason."""
    return run.chat(name, asked, said, at=at, OUTPUT_MESSAGES=json.dumps([{**said, "finish_reason": reason}]))


def shown(trajectory: Trajectory) -> list[tuple[list[str], list[str], str | None]]:
    """Of every conversation what is learned, which of it without an end, and why it is left out."""
    return [
        (
            [one.messages[at].text for at in one.targets],
            [one.messages[at].text for at in one.unended],
            unsupported(one),
        )
        for one in conversations(trajectory)
    ]


@pytest.mark.parametrize(
    "reason", ["length", "max_tokens", "MAX_TOKENS", "max_output_tokens", "content-filter", "FinishReason.SAFETY"]
)
def test_an_answer_that_was_cut_short_is_learned_without_its_end(reason: str) -> None:
    run = Run()
    first = ended(run, "a", START, message("assistant", "Lisbon, which"), 1, reason)
    ended(run, "b", [*START, first, message("user", "Go on.")], message("assistant", "is"), 10, reason)
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [(["Lisbon, which", "is"], ["Lisbon, which", "is"], None)]


@pytest.mark.parametrize("reason", ["stop", "STOP", "end_turn", "tool_calls", "tool-calls", None, "of its own"])
def test_what_the_model_ended_is_learned_with_its_end(reason: str | None) -> None:
    run = Run()
    ended(run, "a", START, message("assistant", "Lisbon."), 1, reason)
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [(["Lisbon."], [], None)]


def test_an_answer_that_also_came_whole_has_an_end() -> None:
    run = Run()
    for name, at, reason in (("a", 1, "length"), ("b", 10, "stop")):
        ended(run, name, START, message("assistant", "Lisbon."), at, reason)
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [(["Lisbon."], [], None)]


@pytest.mark.parametrize("cut", ["error", "cancelled"])
def test_what_broke_and_was_gone_on_from_has_no_end(cut: str) -> None:
    run = Run()
    first = answer(run, "a", START, "Lisbon, wh", 1, cut)
    answer(run, "b", [*START, first, message("user", "Go on.")], "Where the", 10)
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [(["Lisbon, wh", "Where the"], ["Lisbon, wh"], None)]


@pytest.mark.parametrize("reason", ["error", "cancelled", "abort"])
def test_an_answer_that_the_server_gave_up_was_cut_off(reason: str) -> None:
    run = Run()
    ended(run, "a", START, message("assistant", "Lis"), 1, reason)
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [(["Lis"], [], NotTrained.CUT_OFF)]


def test_nobody_can_tell_where_a_tool_call_was_cut() -> None:
    run = Run()
    first = ended(run, "a", START, message("assistant", "Lisbon."), 1, "stop")
    asked = [*START, first, message("user", "Book it.")]
    call = ended(run, "b", asked, message("assistant", calls=(("c1", "book", '{"city": "Lis'),)), 10, "length")
    ended(run, "c", [*asked, call, message("user", "Shorter.")], message("assistant", "No."), 20, "stop")
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [
        ([""], [""], NotTrained.CUT_CALL),
        (["Lisbon.", "No."], [], None),
    ]
    assert main_conversation(trajectory) == conversations(trajectory)[1], "the run came to a whole answer"


def test_the_reason_may_stand_beside_the_answers() -> None:
    run = Run()
    said = message("assistant", "Lisbon, which")
    run.chat("a", START, said, at=1, OUTPUT_MESSAGES=json.dumps([said]), RESPONSE_FINISH_REASONS=["MAX_TOKENS"])
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [(["Lisbon, which"], ["Lisbon, which"], None)]


def test_the_tokens_of_an_answer_that_the_limit_cut_are_the_engines() -> None:
    """Nothing that a template would add behind them is a target: the next prompt has it as context."""
    run = Run()
    first = ended(run, "a", START, message("assistant", "Lisbon, which"), 1, "length")
    ended(run, "b", [*START, first, message("user", "Go on.")], message("assistant", "is"), 10, "length")
    [trajectory] = build_trajectories(run.end())
    [sequence], report = sequences(trajectory)
    sampled = [id for placed in trajectory.calls for choice in placed.call.choices for id in choice.token_ids or ()]
    learned = [id for id, is_target in zip(sequence.token_ids, sequence.trained, strict=True) if is_target]
    assert learned == sampled
    assert report.trained_tokens == report.captured_tokens == len(sampled)


def test_a_refusal_that_the_model_wrote_is_no_text() -> None:
    run = Run()
    refusal = {"role": "assistant", "parts": [{"type": "other", "value": {"type": "refusal", "refusal": "No."}}]}
    ended(run, "a", START, refusal, 1, "stop")
    [trajectory] = build_trajectories(run.end())
    assert shown(trajectory) == [([""], [], NotTrained.NOT_TEXT)]
