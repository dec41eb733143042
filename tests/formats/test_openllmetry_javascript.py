"""Calls of the Responses API and of LangChain as OpenLLMetry's JavaScript edition (June 2026) records them: an
input, or parts of it, as text, and of an answer the text alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir

SCOPE = "@traceloop/instrumentation-openai"
ITEMS: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": [{"type": "input_text", "text": "Weather in Oslo?"}]},
    {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "weather", "arguments": '{"city":"Oslo"}'},
    {"type": "function_call_output", "call_id": "t1", "output": "rain"},
]
READ = (
    Message("system", (TextPart("Be kind."),)),
    Message("user", (TextPart("Weather in Oslo?"),)),
    Message("assistant", (ToolCallPart("weather", '{"city":"Oslo"}', "t1"),)),
    Message("tool", (ToolResultPart("rain", "t1"),)),
)


def call(number: int, asked: str, said: str, *, id: str = "resp_") -> SpanRow:
    def one(role: str, content: str) -> str:
        return json.dumps([{"role": role, "parts": [{"type": "text", "content": content}]}])

    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.id": f"{id}{number}",
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.input.messages": one("user", asked),
        "gen_ai.output.messages": one("assistant", said),
    }
    return SpanRow(
        "1" * 32, f"{number:016x}", "chat gpt-4o", number, number + 1, attributes=attributes, scope_name=SCOPE
    )


def read(directory: Path, *spans: SpanRow) -> Trajectory:
    with Store.open(DataDir(directory), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
    return run


def test_the_items_of_an_input_are_its_messages(tmp_path: Path) -> None:
    run = read(tmp_path, call(1, json.dumps(ITEMS), "It rains."))
    [one] = run.calls
    assert one.call.messages == READ
    assert run.unread == {}


def test_an_answer_of_tool_calls_which_is_recorded_as_empty_is_told(tmp_path: Path) -> None:
    run = read(tmp_path, call(1, json.dumps(ITEMS[:2]), ""), call(2, json.dumps(ITEMS), "It rains."))
    assert [one.call.messages for one in run.calls] == [READ[:2], READ]
    assert run.unread == {f"{SCOPE}, chat: no answer": 1}


def test_an_input_of_text_and_a_chat_stay_as_they_are(tmp_path: Path) -> None:
    plain, other = json.dumps({"role": "user"}), json.dumps(ITEMS)
    run = read(tmp_path, call(1, plain, "Yes."), call(2, other, "Yes.", id="chatcmpl-"))
    assert [one.call.messages for one in run.calls] == [
        (Message("user", (TextPart(plain),)),),
        (Message("user", (TextPart(other),)),),
    ]
    assert run.unread == {}


def of_langchain(messages: list[tuple[str, str]], *answers: str) -> SpanRow:
    def told(role: str, content: str) -> dict[str, Any]:
        return {"role": role, "parts": [{"type": "text", "content": content}]}

    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "claude",
        "gen_ai.input.messages": json.dumps([told(role, content) for role, content in messages]),
        "gen_ai.output.messages": json.dumps([{**told("assistant", one), "finish_reason": ""} for one in answers]),
    }
    scope = "@traceloop/instrumentation-langchain"
    return SpanRow("1" * 32, "2" * 16, "chat claude", 1, 2, attributes=attributes, scope_name=scope)


def test_the_parts_of_a_message_of_langchain_are_its_parts(tmp_path: Path) -> None:
    parts = json.dumps([{"type": "text", "text": "Weather in "}, {"type": "text", "text": "Oslo?"}])
    run = read(tmp_path, of_langchain([("system", "Be kind."), ("user", parts), ("user", "[1, 2]")], "It rains."))
    [one] = run.calls
    assert one.call.messages == (
        READ[0],
        Message("user", (TextPart("Weather in "), TextPart("Oslo?"))),
        Message("user", (TextPart("[1, 2]"),)),
    )
    assert run.unread == {}


@pytest.mark.parametrize(
    ("messages", "answer", "lacks"),
    [
        ([("user", "Weather?")], "", "no answer"),
        ([("user", "Weather?"), ("assistant", ""), ("tool", "rain")], "It rains.", "unreadable gen_ai.input.messages"),
    ],
    ids=["of an answer", "of a prompt"],
)
def test_tool_calls_of_langchain_that_are_not_recorded_are_told(
    messages: list[tuple[str, str]], answer: str, lacks: str, tmp_path: Path
) -> None:
    run = read(tmp_path, of_langchain(messages, answer))
    assert run.unread == {f"@traceloop/instrumentation-langchain, chat: {lacks}": 1}
