"""What cannot be read costs itself and nothing else, whatever came before it."""

from __future__ import annotations

import json
import random
from typing import Any

import msgspec
import pytest
from simulated_agent import Run, message

from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.conversations import conversations, unsupported
from arttrace.trajectories.identity.reward_membership import before_colons

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
    "sent", ["Answer briefly.", '"Answer briefly."', '[{"type": "text", "content": "Answer briefly."}]']
)
def test_instructions_as_plain_text_are_read(sent: str) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, SYSTEM_INSTRUCTIONS=sent)
    [trajectory] = build_trajectories(run.end(at=20))
    [placed] = trajectory.calls
    asked = placed.call.messages[0]
    assert (asked.role, asked.text) == ("system", "Answer briefly.")
    assert not trajectory.unread


@pytest.mark.parametrize("name", ["INPUT_MESSAGES", "OUTPUT_MESSAGES", "SYSTEM_INSTRUCTIONS", "TOOL_DEFINITIONS"])
def test_a_list_that_is_empty_is_not_unreadable(name: str) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, **{name: "[]"})
    [trajectory] = build_trajectories(run.end(at=20))
    assert not trajectory.calls[0].call.unreadable
    assert not trajectory.unread


def test_instructions_of_which_only_the_beginning_came_are_unreadable() -> None:
    run = Run("r")
    run.chat(
        "one", [QUESTION], message("assistant", "42"), at=1, SYSTEM_INSTRUCTIONS='[{"type": "text", "content": "Answ'
    )
    [trajectory] = build_trajectories(run.end(at=20))
    assert list(trajectory.unread.values()) == [1]
    assert trajectory.calls[0].call.unreadable == (semconv.SYSTEM_INSTRUCTIONS,)


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


@pytest.mark.parametrize(
    "part",
    [
        '{"type": "tool_call_response", "id": "c1", "response": @}',
        '{"type": "other", "value": {"a": @}}',
        '{"type": "tool_call", "name": "f", "arguments": @}',
        '{"type": "tool_call", "name": "f", "arguments": "@"}',
        '{"type": "image", "value": @}',
    ],
)
def test_what_can_just_be_read_need_not_be_written(part: str) -> None:
    """Between the depth that a parser still reads and the one that is still written lie a few levels."""
    for depth in range(900, 1000):
        run = Run("r")
        parts = part.replace("@", "[" * depth + "]" * depth)
        tools = f'[{{"type": "function", "function": {{"name": {"[" * depth}{"]" * depth}}}}}]'
        deep = f'[{{"role": "user", "parts": [{parts}]}}]'
        run.chat("one", [QUESTION], message("assistant", "42"), at=1, INPUT_MESSAGES=deep)
        run.chat("two", [QUESTION], message("assistant", "43"), at=3, OUTPUT_MESSAGES=deep, TOOL_DEFINITIONS=tools)
        run.chat("three", [QUESTION], message("assistant", "44"), at=5, SYSTEM_INSTRUCTIONS=f"[{parts}]")
        [trajectory] = build_trajectories(run.end(at=20, ENTRY_RESULT=f'"{"[" * depth}"', METADATA=f'{{"a": {deep}}}'))
        one, two, _ = (placed.call for placed in trajectory.calls)
        assert (len(one.messages), len(two.choices)) in ([(1, 1)] if depth < 910 else [(1, 1), (0, 1), (1, 0), (0, 0)])
        assert (len(two.messages), len(one.choices)) == (1, 1)
        assert trajectory.calls[2].call.choices[0].message.text == "44"


def is_writable(value: object) -> bool:
    try:
        msgspec.json.encode(value)
    except RecursionError:
        return False
    return True


def test_values_of_attributes_too_deep_to_be_written_are_left_out() -> None:
    value: list[object] = []
    while is_writable(value):  # how deep that is depends on the interpreter, and some packages raise it
        for _ in range(100):
            value = [value]
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, TOOL_DEFINITIONS=[{"a": value}], RESPONSE_ID=value)
    run.tool("t", "search", at=12, until=13, TOOL_CALL_ARGUMENTS=value, TOOL_CALL_RESULT=value)
    [trajectory] = build_trajectories(run.end(at=20, ENTRY_ARGUMENTS=value))
    assert trajectory.calls[0].call.choices[0].message.text == "42"
    assert trajectory.arguments is None
    assert [tool.name for tool in trajectory.tool_calls] == ["search"]


@pytest.mark.parametrize(("name", "value"), [("TOKEN_IDS", [1, 2**40]), ("LOGPROBS", [-1, 10**400])])
def test_token_data_out_of_range_is_no_token_data(name: str, value: list[int]) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, **{name: value})
    [trajectory] = build_trajectories(run.end(at=20))
    [choice] = trajectory.calls[0].call.choices
    assert getattr(choice, name.lower()) is None
    assert not sequences(trajectory)[0]


def test_a_reward_for_a_trajectory_named_by_colons_costs_nothing() -> None:
    """Each of them might end a trace's id; the beginnings together would be half a terabyte."""
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1)
    nobodys = Reward(id="w", trajectory_id=":" * 1_000_000, value=1)
    [trajectory] = build_trajectories(run.end(at=20), [nobodys])
    assert trajectory.rewards == ()
    assert len(before_colons("a:" * 1000)) < 100
    assert before_colons("ab:cd:ef") == ["ab", "ab:cd"]


CONTENT = ("INPUT_MESSAGES", "OUTPUT_MESSAGES", "SYSTEM_INSTRUCTIONS", "TOOL_DEFINITIONS")
INSTRUCTIONS = json.dumps([{"type": "text", "content": "Be kind."}])
TOOLS = json.dumps([{"type": "function", "function": {"name": "search"}}])


@pytest.mark.parametrize("cut", CONTENT)
def test_a_call_that_an_exporter_cut_to_a_length_is_named_and_not_imitated(cut: str) -> None:
    """Its other attributes are read, so that it has messages: but not all of them."""
    run = Run("r")
    run.chat(
        "one", [QUESTION], message("assistant", "42"), at=1, SYSTEM_INSTRUCTIONS=INSTRUCTIONS, TOOL_DEFINITIONS=TOOLS
    )
    [whole] = build_trajectories(run.end(at=20))
    assert whole.unread == {}
    assert [unsupported(one) for one in conversations(whole)] == [None]
    name = getattr(semconv, cut)
    call = run.spans[0]
    limited = {**call.attributes, name: call.attributes[name][:30]}
    [trajectory] = build_trajectories([msgspec.structs.replace(call, attributes=limited), run.spans[1]])
    assert trajectory.unread == {f"no scope, chat: unreadable {name}": 1}
    assert {unsupported(one) for one in conversations(trajectory)} <= {NotTrained.UNREADABLE}
    assert sequences(trajectory)[1].trained_tokens, "token ids say what they say"


@pytest.mark.parametrize("empty", ["", "[]", "null", None, []])
def test_what_says_nothing_is_not_unreadable(empty: object) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, **dict.fromkeys(CONTENT[1:], empty))
    [trajectory] = build_trajectories(run.end(at=20))
    assert trajectory.unread == {}


@pytest.mark.parametrize(("marked", "why"), [("TRUNCATED", NotTrained.TRUNCATED), ("MASKED", None)])
def test_a_call_that_was_cut_to_a_bound_is_not_imitated_and_a_masked_one_is(
    marked: str, why: NotTrained | None
) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, **{marked: [semconv.INPUT_MESSAGES]})
    [trajectory] = build_trajectories(run.end(at=20))
    [conversation] = conversations(trajectory)
    assert unsupported(conversation) == why
    assert sequences(trajectory)[1].trained_tokens == 0


@pytest.mark.parametrize("cut", CONTENT)
def test_a_call_that_was_cut_where_it_was_recorded_is_named_too(cut: str) -> None:
    """What is left of it is readable, down to an empty list of a history of too many messages."""
    run = Run("r")
    name = getattr(semconv, cut)
    left = {} if cut == "OUTPUT_MESSAGES" else {cut: "[]"}
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, **left, TRUNCATED=[name])
    [trajectory] = build_trajectories(run.end(at=20))
    assert trajectory.unread == {f"no scope, chat: unreadable {name}": 1}


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"PROMPT_FORM": "begun"}, NotTrained.BEGUN_ANSWER),
        ({"PROMPT_FORM": "several"}, NotTrained.SEVERAL_PROMPTS),
        ({"error": "invalid_response: 1 chunks of the stream are no JSON objects"}, NotTrained.ERROR),
    ],
)
def test_an_answer_that_is_none_to_the_messages_before_it_is_not_imitated(
    asked: dict[str, str], why: NotTrained
) -> None:
    run = Run("r")
    failure = asked.pop("error", "")
    begun = [QUESTION, message("assistant", "It is")]
    run.chat("one", begun, message("assistant", " 42 km."), at=1, **asked)
    if failure:
        run.spans[-1] = msgspec.structs.replace(run.spans[-1], status_code=2, status_message=failure)
    [trajectory] = build_trajectories(run.end(at=20))
    assert [unsupported(one) for one in conversations(trajectory)] == [why]
    assert bool(sequences(trajectory)[1].trained_tokens) == (not failure), "token ids say what they say"


LACKS = "no scope, chat: unreadable messages that the server keeps under "


@pytest.mark.parametrize("kept", ["conversation", "prompt"])
def test_a_prompt_of_which_the_server_keeps_a_part_is_named_and_not_imitated(kept: str) -> None:
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, MESSAGES_KEPT=[kept])
    [trajectory] = build_trajectories(run.end(at=20))
    assert trajectory.unread == {LACKS + kept: 1}
    assert [unsupported(one) for one in conversations(trajectory)] == [NotTrained.UNREADABLE]
    assert sequences(trajectory)[1].trained_tokens, "token ids say what they say"


@pytest.mark.parametrize("lost", ["the first call", "its beginning", "nothing"])
def test_what_goes_on_from_a_response_that_is_not_in_the_run_is_not_imitated(lost: str) -> None:
    """As where each question of a user's is a run: the answers before it are in other runs."""
    run = Run("r")
    cut = {"TRUNCATED": [semconv.INPUT_MESSAGES]} if lost == "its beginning" else {}
    run.chat("one", [QUESTION], message("assistant", "42"), at=1, RESPONSE_ID="r1", **cut)
    more = message("user", "In miles?")
    again = message("user", "And in feet?")
    of_openai = {"OPENAI_API_TYPE": "responses"}
    run.chat("two", [more], message("assistant", "26"), at=5, RESPONSE_ID="r2", PREVIOUS_RESPONSE_ID="r1", **of_openai)
    run.chat("three", [again], message("assistant", "137 thousand"), at=9, PREVIOUS_RESPONSE_ID="r2", **of_openai)
    spans = [span for span in run.end(at=20) if lost != "the first call" or span.span_id != run.span_id("one")]
    [trajectory] = build_trajectories(spans)
    *_, two, three = trajectory.calls
    found = [bool(placed.call.unreadable) for placed in (two, three)]
    assert found == [lost != "nothing"] * 2
    assert trajectory.unread.get(LACKS + "previous_response_id", 0) == (0 if lost == "nothing" else 2)
    assert {unsupported(one) for one in conversations(trajectory)} == (
        {None} if lost == "nothing" else {NotTrained.TRUNCATED} if lost == "its beginning" else {NotTrained.UNREADABLE}
    )


@pytest.mark.parametrize(
    ("operation", "said", "is_read"),
    [
        ("predict", {semconv.RESPONSE_ID: "r1"}, False),
        ("predict", {semconv.RESPONSE_FINISH_REASONS: ["stop"]}, False),
        ("predict", {semconv.REQUEST_MODEL: "m"}, True),
        ("embeddings", {semconv.RESPONSE_ID: "r1"}, True),
        ("invoke_agent", {semconv.RESPONSE_ID: "r1", semconv.RESPONSE_FINISH_REASONS: ["stop"]}, True),
    ],
)
def test_an_answer_under_an_operation_that_nobody_knows_is_not_passed_over(
    operation: str, said: dict[str, Any], is_read: bool
) -> None:
    """A call by a name of its SDK's is none here; the run says that there was one."""
    run = Run("r")
    run.chat("one", [QUESTION], message("assistant", "42"), at=1)
    attributes = {semconv.OPERATION_NAME: operation, semconv.TRAJECTORY_ID: "r", **said}
    odd = msgspec.structs.replace(run.spans[0], span_id="f" * 16, attributes=attributes)
    [trajectory] = build_trajectories([*run.end(at=20), odd])
    assert [(count, operation in name) for name, count in trajectory.unread.items()] == ([] if is_read else [(1, True)])
