"""Streams of chat completions as servers write them that keep to OpenAI's form only in part."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories
from arttrace.trajectories.decoding.call import decode_call
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.wire import Decoded, Exchange
from arttrace.wire.apis.anthropic.messages import decode_messages
from arttrace.wire.apis.openai.chat import decode_chat


def streamed(*chunks: dict[str, Any], done: bool = True) -> Decoded:
    body = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    body += b"data: [DONE]\n\n" if done else b""
    return decode_chat(Exchange(b"{}", 200, {"content-type": "text/event-stream"}, body))


def chunk(reason: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


@pytest.mark.parametrize("none", [None, "", "null"])
def test_a_reason_to_finish_that_says_nothing_is_none(none: str | None) -> None:
    cut = streamed(chunk(none, content="a"), chunk(none, content="b"), done=False)
    assert cut.attributes[semconv.INTERRUPTED] == "error"
    assert semconv.RESPONSE_FINISH_REASONS not in cut.attributes
    whole = streamed(chunk(none, content="a"), chunk("stop", content="b"), chunk(none), done=False)
    assert semconv.INTERRUPTED not in whole.attributes
    assert whole.attributes[semconv.RESPONSE_FINISH_REASONS] == ["stop"]


def calls(*deltas: dict[str, Any]) -> list[tuple[str, str, str]]:
    found = streamed(*(chunk(tool_calls=[delta]) for delta in deltas), chunk("tool_calls"))
    [message] = json.loads(found.attributes[semconv.OUTPUT_MESSAGES])
    return [(part["id"], part["name"], part["arguments"]) for part in message["parts"]]


def call(id: str | None, name: str | None, arguments: str, **index: int) -> dict[str, Any]:
    return {**index, "id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


@pytest.mark.parametrize("index", [{}, {"index": 0}])
def test_tool_calls_are_distinguished_where_their_index_does_not_do_it(index: dict[str, int]) -> None:
    """As of Gemini's OpenAI-compatible endpoint, which sends each whole."""
    found = calls(call("a", "find", '{"x":1}', **index), call("b", "find", '{"x":2}', **index))
    assert found == [("a", "find", '{"x":1}'), ("b", "find", '{"x":2}')]


@pytest.mark.parametrize("further", [None, "", "a", "another for each piece"])
def test_pieces_of_one_tool_call_are_one(further: str | None) -> None:
    """Whether or not a server repeats the id, or makes up another for each piece, which then has no name."""
    [found] = calls(
        call("a", "find", '{"x"', index=0), call(further, None, ":1", index=0), call(None, "", "}", index=0)
    )
    assert found[1:] == ("find", '{"x":1}')


@pytest.mark.parametrize("index", [{}, {"index": 0}])
@pytest.mark.parametrize("id", [None, "", "same"])
def test_calls_that_come_whole_are_distinguished_without_ids(index: dict[str, int], id: str | None) -> None:
    sent = [("find", '{"x":1}'), ("find", '{"x":1}'), ("look", "{}"), ("look", '{"y"'), (None, ":2}"), ("go", "")]
    found = calls(*(call(id, name, arguments, **index) for name, arguments in sent))
    expected = [("find", '{"x":1}'), ("find", '{"x":1}'), ("look", "{}"), ("look", '{"y":2}'), ("go", "")]
    assert [(name, arguments) for _, name, arguments in found] == expected


def test_a_name_that_comes_again_with_nothing_is_that_of_the_same_call() -> None:
    begun = call("a", "find", '{"x"', index=0)
    for further in (call(None, None, ":1}", index=0), call(None, "", ":1}", index=0)):
        [found] = calls(begun, further, call(None, "find", "", index=0))
        assert found[2] == '{"x":1}'


def test_arguments_that_are_streamed_as_an_object_are_kept() -> None:
    sent = {"index": 0, "id": "a", "function": {"name": "find", "arguments": {"x": 1}}}
    assert calls(sent) == [("a", "find", '{"x":1}')]


def test_tool_calls_come_in_the_order_of_their_index() -> None:
    found = calls(call("b", "g", "{}", index=1), call("a", "f", "{}", index=0), call("c", "h", "{}", index=1))
    assert [id for id, *_ in found] == ["a", "b", "c"]


def test_content_that_comes_in_parts_is_put_together() -> None:
    """As of Mistral's models that reason: what they think are parts, the answer is text or a part."""
    thought = [{"type": "thinking", "thinking": [{"type": "text", "text": text}]} for text in ("Let me", " see")]
    found = streamed(
        *(chunk(content=[part]) for part in thought),
        chunk(content=[{"type": "text", "text": "It"}]),
        chunk(content=" is"),
        chunk("stop", content=[{"type": "reference", "reference_ids": [1]}, 7]),
    )
    whole = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "Let me see"}]},
        {"type": "text", "text": "It is"},
        {"type": "reference", "reference_ids": [1]},
        7,
    ]
    message = {"index": 0, "message": {"role": "assistant", "content": whole}, "finish_reason": "stop"}
    at_once = decode_chat(Exchange(b"{}", 200, {}, json.dumps({"choices": [message]}).encode()))
    assert found.attributes[semconv.OUTPUT_MESSAGES] == at_once.attributes[semconv.OUTPUT_MESSAGES]
    assert "Let me see" in found.attributes[semconv.OUTPUT_MESSAGES]


def test_many_pieces_of_a_part_are_put_together_in_one_go() -> None:
    deep: Any = [{"type": "thinking", "thinking": "x"}]
    for _ in range(300):
        deep = [{"type": "thinking", "thinking": deep}]
    piece = [{"type": "text", "text": "a" * 100}]
    [message] = json.loads(
        streamed(*(chunk(content=piece) for _ in range(5000)), chunk("stop", content=deep)).attributes[
            semconv.OUTPUT_MESSAGES
        ]
    )
    assert message["parts"][0] == {"type": "text", "content": "a" * 500_000}
    assert message["parts"][1]["value"]["type"] == "thinking"


def test_the_input_of_a_custom_tool_is_put_together() -> None:
    deltas = [{"index": 0, "id": "a", "type": "custom", "custom": {"name": "run", "input": "print("}}]
    deltas += [{"index": 0, "custom": {"input": text}} for text in ("1", ")")]
    deltas += [{"index": 1, "id": "b", "type": "custom", "custom": {"name": "run", "input": ""}}]
    found = streamed(*(chunk(tool_calls=[delta]) for delta in deltas), chunk("tool_calls"))
    [message] = json.loads(found.attributes[semconv.OUTPUT_MESSAGES])
    assert message["parts"] == [
        {"type": "tool_call", "id": "a", "name": "run", "arguments": "print(1)"},
        {"type": "tool_call", "id": "b", "name": "run", "arguments": ""},
    ]


def test_a_custom_tool_of_chat_completions_has_its_own_result() -> None:
    """It took the place of a function's, and was in no tool call of the run."""
    calls = [
        {"id": "1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}},
        {"id": "2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    asked = [{"role": "user", "content": "go"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": f"result {call['id']}"} for call in calls]
    spans = []
    for number, (messages, answer) in enumerate(((asked[:1], asked[1]), ([*asked, *results], {"content": "Done."}))):
        body = json.dumps({"choices": [{"index": 0, "message": answer, "finish_reason": "stop"}]}).encode()
        attributes = decode_chat(Exchange(json.dumps({"messages": messages}).encode(), 200, {}, body)).attributes
        attributes |= {semconv.TRAJECTORY_ID: "r"}
        spans.append(SpanRow("1" * 32, f"{number:016}", "chat", 2 * number + 1, 2 * number + 2, attributes=attributes))
    [run] = build_trajectories(spans)
    assert [(tool.name, tool.arguments, tool.result) for tool in run.tool_calls] == [
        ("sql", "select 1", "result 1"),
        ("look", "{}", "result 2"),
    ]


def test_where_the_cache_ends_makes_no_other_message() -> None:
    """Anthropic's clients move it with every turn."""
    said = [
        {"role": "user", "content": [{"type": "document", "source": {"type": "base64", "data": "A"}}]},
        {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "search", "input": {}}]},
        {"role": "user", "content": [{"type": "text", "text": "more"}]},
    ]

    def asked() -> Any:
        request = json.dumps({"messages": said}).encode()
        return decode_messages(Exchange(request, path="/v1/messages")).attributes[semconv.INPUT_MESSAGES]

    plain = asked()
    for turn in said:
        block: dict[str, Any] = turn["content"][0]  # type: ignore[assignment]
        block["cache_control"] = {"type": "ephemeral"}
    assert asked() == plain


def choices_read(found: Decoded) -> list[tuple[str, tuple[int, ...] | None]]:
    """The text and the token ids of each choice of a call, as a trajectory has them."""
    call = decode_call(SpanRow("1" * 32, "2" * 16, "chat", 1, 2, attributes=found.attributes), MessageReader())
    return [(choice.message.text, choice.token_ids) for choice in call.choices]


def test_an_answer_has_its_own_tokens_where_the_one_before_it_did_not_come() -> None:
    cut = {"choices": [{"index": 1, "delta": {"content": "b"}, "token_ids": [7]}]}
    assert choices_read(streamed(cut, done=False)) == [("b", (7,))]


def test_answers_of_one_number_have_their_own_tokens() -> None:
    """As of servers that give each the number 0."""
    answers = [{"index": 0, "message": {"content": text}, "token_ids": [id]} for text, id in (("a", 6), ("b", 7))]
    body = json.dumps({"choices": answers}).encode()
    assert choices_read(decode_chat(Exchange(b"{}", 200, {}, body))) == [("a", (6,)), ("b", (7,))]
