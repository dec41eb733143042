"""Spans as Google ADK sends them in both of its telemetry schemas (recorded of 2.13 with a scripted model)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from arttrace.records.message import Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir

SPANS = Path(__file__).with_name("google_adk_spans.json")


def build(directory: Path, schema: str) -> Trajectory:
    recorded: dict[str, list[dict[str, Any]]] = msgspec.json.decode(SPANS.read_bytes())
    spans = [
        SpanRow(
            trace_id="1" * 32, span_id=one["id"], parent_span_id=one["parent"], name=one["name"],
            start_ns=one["start"], end_ns=one["end"], attributes=one["attributes"], scope_name="gcp.vertex.agent",
        )
        for one in recorded[schema]
    ]  # fmt: skip
    return stored(directory, spans)


def stored(directory: Path, spans: list[SpanRow]) -> Trajectory:
    with Store.open(DataDir(directory), create=True) as store:
        store.append(spans)
        [trajectory] = store.trajectories()
        assert store.sql("SELECT count(*) FROM calls")[1] == [(len(trajectory.calls),)]
    return trajectory


SYSTEM = 'You double.\n\nYou are an agent. Your internal name is "helper". The description about you is "Doubles.".'


@pytest.mark.parametrize("schema", ["schema 1", "schema 2, content on spans"])
def test_messages_tools_and_agents_are_read(schema: str, tmp_path: Path) -> None:
    trajectory = build(tmp_path, schema)
    assert trajectory.unread == {}
    assert trajectory.incomplete == ""
    names = {agent.id: agent.name for agent in trajectory.agents}
    assert sorted(names[placed.agent_id] for placed in trajectory.calls) == ["boss", "boss", "helper", "helper"]
    call = next(
        placed.call
        for placed in reversed(trajectory.calls)
        if names[placed.agent_id] == "helper" and len(placed.call.messages) == 4
    )
    system, asked, tool_call, result = call.messages
    assert system == Message("system", (TextPart(SYSTEM),))
    assert asked == Message("user", (TextPart("Double 21"),))
    assert tool_call == Message("assistant", (ToolCallPart("double", '{"number":21}', "fc1"),))
    assert result.parts == (ToolResultPart({"result": "42"}, "fc1"),)
    (choice,) = call.choices
    assert (choice.message, choice.finish_reason) == (Message("assistant", (TextPart("It is 42."),)), "stop")
    assert (call.input_tokens, call.output_tokens) == (10, 3)
    assert [tool["function"]["name"] for tool in call.tools] == ["double"]
    ran = {tool.name: (tool.arguments, tool.result, tool.inferred) for tool in trajectory.tool_calls}
    assert ran["double"] == ('{"number": 21}', '{"result": "42"}', False)


def test_thoughts_pictures_and_a_system_instruction_in_parts_are_read(tmp_path: Path) -> None:
    request = {
        "config": {"system_instruction": [{"parts": [{"text": "You"}, {"text": "double."}]}, "Briefly."]},
        "contents": [{"role": "user", "parts": [{"text": "Double this"}, {"file_data": {"file_uri": "gs://a/b.png"}}]}],
    }
    parts = [{"text": "It shows 21. ", "thought": True}, {"text": "So 42.", "thought": True}, {"text": "It is 42."}]
    response = {"content": {"role": "model", "parts": parts}, "finish_reason": "STOP"}
    said = {
        "gen_ai.request.model": "gemini",
        "gcp.vertex.agent.llm_request": msgspec.json.encode(request).decode(),
        "gcp.vertex.agent.llm_response": msgspec.json.encode(response).decode(),
    }
    span = SpanRow("1" * 32, "2" * 16, "call_llm", 1, 2, scope_name="gcp.vertex.agent", attributes=said)
    [placed] = stored(tmp_path, [span]).calls
    system, asked = placed.call.messages
    assert system == Message("system", (TextPart("You\n\ndouble.\n\nBriefly."),))
    assert asked.parts[0] == TextPart("Double this")
    assert "gs://a/b.png" in str(asked.parts[1])
    (choice,) = placed.call.choices
    assert choice.message.parts == (ReasoningPart("It shows 21. So 42."), TextPart("It is 42."))


@pytest.mark.parametrize("schema", ["schema 1, no content", "schema 2, no content"])
def test_calls_whose_content_was_left_out_are_counted_and_named(schema: str, tmp_path: Path) -> None:
    trajectory = build(tmp_path, schema)
    assert len(trajectory.calls) == 4
    assert sum(trajectory.unread.values()) == 4
    assert all(name.startswith("gcp.vertex.agent, generate_content: ") for name in trajectory.unread)
