"""What cannot be read costs itself and nothing else, whatever came before it."""

from __future__ import annotations

import json
import random

import pytest
from simulated_agent import Run, message

from arttrace import semconv
from arttrace.trajectories import build_trajectories, sequences

DEEP = 100_000
QUESTION = message("user", "How far is it?")


@pytest.mark.parametrize("ending", [",]", ", ]", " , ]\n"])
def test_a_list_that_ends_in_a_comma_is_unreadable_wherever_it_comes(ending: str) -> None:
    """Rule 4: it is not taken for the list that it begins with, were that read before it or after."""
    run = Run("r")
    good = json.dumps([QUESTION])
    run.chat("good", [QUESTION], message("assistant", "42"), at=1)
    run.chat("bad", [QUESTION], message("assistant", "43"), at=10, INPUT_MESSAGES=good[:-1] + ending)
    spans = run.end(at=20)
    expected = build_trajectories(spans)
    assert [len(placed.call.messages) for placed in expected[0].calls] == [1, 0]
    assert build_trajectories(spans[::-1]) == expected


def test_tool_arguments_that_never_end_are_kept_as_they_were_sampled() -> None:
    """A model that falls into a loop asks for a tool with `[[[[[...`: no JSON, and deeper than a parser goes."""
    run = Run("r")
    asked = message("assistant", calls=(("c1", "search", "[" * DEEP),))
    run.chat("one", [QUESTION], asked, at=1)
    run.chat("two", [QUESTION, asked, message("user", "What?")], message("assistant", "Sorry."), at=10)
    [trajectory] = build_trajectories(run.end(at=20))
    [tool] = trajectory.tool_calls
    assert tool.arguments == "[" * DEEP
    assert [placed.relation for placed in trajectory.calls] == ["start", "extends"]
    [sequence], _ = sequences(trajectory)
    assert sequence.call_ids == (run.span_id("one"), run.span_id("two"))


@pytest.mark.parametrize(
    "name", ["INPUT_MESSAGES", "OUTPUT_MESSAGES", "SYSTEM_INSTRUCTIONS", "TOOL_DEFINITIONS", "PROMPT_TOKEN_IDS"]
)
def test_an_attribute_deeper_than_a_parser_goes_costs_itself(name: str) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1)
    deep = "[" * DEEP + "]" * DEEP
    run.chat("two", [QUESTION], message("assistant", "42"), at=10, **{name: deep})
    run.tool("t", "search", at=12, until=13, TOOL_CALL_ARGUMENTS=deep, TOOL_CALL_RESULT=deep)
    [trajectory] = build_trajectories(run.end(at=20, ENTRY_ARGUMENTS=deep, ENTRY_RESULT=deep, METADATA=deep))
    assert [placed.call.span_id for placed in trajectory.calls] == [run.span_id("one"), run.span_id("two")]
    assert trajectory.calls[0].call.messages


@pytest.mark.parametrize("value", ["1e999999", "-1e999999", "1" + "0" * 400])
def test_a_number_out_of_range_leaves_the_other_messages_readable(value: str) -> None:
    run = Run("r")
    odd = f'{{"role": 5, "parts": [{{"type": "tool_call_response", "id": "c", "response": {value}}}]}}'
    whole = f"[{json.dumps(QUESTION)}, {odd}]"
    run.chat("one", [], message("assistant", "42"), at=1, INPUT_MESSAGES=whole, OUTPUT_MESSAGES=f"[{odd}]")
    [trajectory] = build_trajectories(run.end(at=20))
    [placed] = trajectory.calls
    assert len(placed.call.messages) == 2
    assert placed.call.messages[0].text == "How far is it?"


def test_odd_attributes_in_any_order_read_the_same() -> None:
    odd = [
        "",
        "[",
        "[]",
        "[ ]",
        "null",
        "[null]",
        "[1,]",
        "{}",
        '"a"',
        "[[]]",
        "[[]",
        '[{"role":"user"}]',
        7,
        True,
        [],
        [1],
    ]
    run = Run("r")
    for number, value in enumerate(odd):
        run.chat(f"c{number}", [], at=number, INPUT_MESSAGES=value, OUTPUT_MESSAGES=odd[-number])
    spans = run.end(at=99)
    expected = build_trajectories(spans)
    assert len(expected[0].calls) == len(odd)
    assert all(semconv.INPUT_MESSAGES in span.attributes for span in spans[:-1])
    for seed in range(5):
        random.Random(seed).shuffle(spans)
        assert build_trajectories(spans) == expected
