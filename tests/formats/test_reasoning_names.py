"""The reasoning of an answer, by the names and in the forms that other systems have for it: read once, from files, from
spans whose messages are in OpenAI's form, and from captured calls; what hides it is no text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from simulated_agent import JsonMessage
from system_files import lines, read

from arttrace.records import semconv
from arttrace.records.message import Message, OtherPart, ReasoningPart, TextPart
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories
from arttrace.wire import Exchange
from arttrace.wire.apis.openai.chat import decode_chat

HM = "Hm."
TEXT = {"type": "text", "text": "So."}
WAYS: list[JsonMessage] = [
    {"content": "So.", "reasoning_details": [{"type": "reasoning.text", "text": "H"}, {"summary": "m."}]},
    {"content": "So.", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}], "reasoning": HM},
    {"content": "So.", "reasoning_content": HM, "thinking_blocks": [{"type": "thinking", "thinking": HM}]},
    {"content": "So.", "reasoning_content": None, "thinking_blocks": [{"type": "thinking", "thinking": HM}]},
    {"content": "So.", "thinking": HM},
    {"content": "So.", "reasoning": {"content": HM}},
    {"content": [{"type": "thinking", "thinking": [{"type": "text", "text": HM}]}, TEXT]},
    {"content": [{"type": "reasoning", "text": HM}, TEXT], "reasoning_content": HM},
    {"content": [{"type": "reasoning", "summary": [{"type": "summary_text", "text": HM}]}, TEXT]},
]


def of_file(said: JsonMessage) -> Message:
    messages = [{"role": "user", "content": "Q"}, {"role": "assistant", **said}]
    found, [run] = read(lines({"messages": messages}))
    assert found.left_out == {}
    return run.calls[-1].call.choices[0].message


def of_span(said: JsonMessage) -> Message:
    answer = json.dumps([{"role": "assistant", **said}])
    span = SpanRow(
        "1" * 32, "2" * 16, "chat", 1, 9,
        attributes={semconv.OPERATION_NAME: "chat", semconv.OUTPUT_MESSAGES: answer},
    )  # fmt: skip
    [run] = build_trajectories([span])
    return run.calls[-1].call.choices[0].message


def of_exchange(said: JsonMessage) -> Message:
    choice = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": "stop"}
    decoded = decode_chat(Exchange(b"{}", 200, {}, json.dumps({"choices": [choice]}).encode()))
    span = SpanRow("1" * 32, "2" * 16, "chat", 1, 9, attributes={**decoded.attributes, semconv.OPERATION_NAME: "chat"})
    [run] = build_trajectories([span])
    return run.calls[-1].call.choices[0].message


@pytest.mark.parametrize("door", [of_file, of_span, of_exchange])
@pytest.mark.parametrize("said", WAYS, ids=lambda said: "-".join(said))
def test_it_is_read_once(door: Any, said: JsonMessage) -> None:
    assert door(said).parts == (ReasoningPart(HM), TextPart("So."))


@pytest.mark.parametrize(
    ("deltas", "thought"),
    [
        ([{"reasoning_details": [{"type": "reasoning.text", "text": piece, "index": 0}]} for piece in ("H", "m.")], HM),
        ([{"reasoning_details": [{"type": "reasoning.summary", "summary": HM}]}], HM),
        ([{"reasoning_details": [{"text": piece}]} for piece in ("H", "Hm", "Hm.")], HM),  # each with all before it
        ([{"reasoning_details": [{"text": piece}]} for piece in ("ha", "ha", " ha")], "haha ha"),
        ([{"reasoning": piece, "reasoning_details": [{"text": piece}]} for piece in ("H", "m.")], HM),
        ([{"reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}]}, {"reasoning_details": "x"}], ""),
    ],
)
def test_of_a_stream_its_pieces_are_put_together(deltas: list[JsonMessage], thought: str) -> None:
    said = [*deltas, {"content": "So."}]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in said]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    answer = Exchange(b'{"stream": true}', 200, {"content-type": "text/event-stream"}, body.encode())
    [found] = json.loads(decode_chat(answer).attributes[semconv.OUTPUT_MESSAGES])
    texts = [(part["type"], part["content"]) for part in found["parts"]]
    assert texts == [*([("reasoning", thought)] if thought else []), ("text", "So.")]


@pytest.mark.parametrize("door", [of_file, of_exchange])
def test_what_hides_it_is_no_text(door: Any) -> None:
    hidden = {"content": "So.", "reasoning_details": [{"type": "reasoning.encrypted", "data": "x"}], "thinking": True}
    assert door(hidden).parts == (TextPart("So."),)
    redacted = {"type": "redacted_thinking", "data": "x"}
    assert door({"content": [redacted, TEXT]}).parts == (OtherPart(redacted), TextPart("So."))
