"""Spans as Strands Agents 1.62, Vercel's AI SDK 6, google-genai's instrumentation 1.3b0 and exporters that write
`content` in place of `parts` send them give the messages and tools that the model saw."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner
from msgspec import to_builtins

from arttrace.commands import cli
from arttrace.formats.imported_files import read_file
from arttrace.formats.sdks.conventions import normalise
from arttrace.records.message import Message, OtherPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.record import encode_record
from arttrace.records.sequence import NotTrained
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.records.trajectory import Relation, Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.conversations import conversations, unsupported
from arttrace.trajectories.decoding.unreadable_calls import counted
from arttrace.views.costs.prices import Prices
from arttrace.views.costs.usage import cost_of_run

TRACE = "1" * 32
DETAILS = "gen_ai.client.inference.operation.details"


def span(id: str, name: str, attributes: Attributes, *events: tuple[str, Attributes], scope: str = "") -> SpanRow:
    start = int(id, 16) * 10
    return SpanRow(
        TRACE,
        id * 16,
        name,
        start,
        start + 5,
        "a" * 16 if id != "a" else None,
        attributes=attributes,
        events=[SpanEvent(name, start, attributes) for name, attributes in events],
        scope_name=scope,
    )


def build(directory: Path, *spans: SpanRow) -> Trajectory:
    with Store.open(DataDir(directory), create=True) as store:
        store.append(spans)
        [trajectory] = store.trajectories()
        assert store.sql("SELECT count(*) FROM calls")[1] == [(len(trajectory.calls),)]
    return trajectory


WHOLE = (
    Message("system", (TextPart("Be kind."),)),
    Message("user", (TextPart("Weather in Oslo?"),)),
    Message("assistant", (TextPart("Let me look."), ToolCallPart("weather", '{"city":"Oslo"}', "t1"))),
    Message("tool", (ToolResultPart("rain", "t1"),)),
)
ANSWER = Message("assistant", (TextPart("It rains."),))


def check(trajectory: Trajectory, *, tool_role: str = "tool") -> None:
    [placed] = trajectory.calls
    expected = [*WHOLE[:3], Message(tool_role, WHOLE[3].parts)]
    assert list(placed.call.messages) == expected
    assert [choice.message for choice in placed.call.choices] == [ANSWER]
    assert placed.call.choices[0].finish_reason in ("end_turn", "stop")
    assert trajectory.unread == {}


def blocks(*items: dict[str, Any]) -> str:
    return json.dumps(items, ensure_ascii=False)


ASKED: dict[str, Any] = {"toolUse": {"name": "weather", "toolUseId": "t1", "input": {"city": "Oslo"}}}
GIVEN: dict[str, Any] = {"toolResult": {"toolUseId": "t1", "status": "success", "content": [{"text": "rain"}]}}


def test_strands_older_events(tmp_path: Path) -> None:
    common: Attributes = {"gen_ai.system": "strands-agents", "gen_ai.event.start_time": "2026-11-01T00:00:00+00:00"}
    call = span(
        "c",
        "chat",
        {**common, "gen_ai.operation.name": "chat", "gen_ai.request.model": "m"},
        ("gen_ai.system.message", {"content": blocks({"text": "Be kind."})}),
        ("gen_ai.user.message", {"content": blocks({"text": "Weather in Oslo?"})}),
        ("gen_ai.assistant.message", {"content": blocks({"text": "Let me look."}, ASKED)}),
        ("gen_ai.tool.message", {"content": blocks(GIVEN)}),
        ("gen_ai.choice", {"finish_reason": "end_turn", "message": blocks({"text": "It rains."})}),
        scope="strands.telemetry.tracer",
    )
    tool = span(
        "b",
        "execute_tool weather",
        {
            **common,
            "gen_ai.operation.name": "execute_tool",
            "gen_ai.tool.name": "weather",
            "gen_ai.tool.call.id": "t1",
        },
        ("gen_ai.tool.message", {"role": "tool", "content": '{"city": "Oslo"}', "id": "t1"}),
        ("gen_ai.choice", {"message": blocks({"text": "rain"}), "id": "t1"}),
    )
    agent = span("a", "invoke_agent A", {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "A"})
    trajectory = build(tmp_path, agent, tool, call)
    check(trajectory)
    [found] = trajectory.tool_calls
    assert (found.id, found.arguments, found.result, found.inferred) == ("t1", '{"city": "Oslo"}', "rain", False)


def test_strands_newest_events(tmp_path: Path) -> None:
    text = [{"type": "text", "content": "Be kind."}]
    asked = {"type": "tool_call", "name": "weather", "id": "t1", "arguments": {"city": "Oslo"}}
    given = {"type": "tool_call_response", "id": "t1", "response": [{"text": "rain"}]}
    history = [
        {"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]},
        {"role": "assistant", "parts": [{"type": "text", "content": "Let me look."}, asked]},
        {"role": "user", "parts": [given]},
    ]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "end_turn"}]
    call = span(
        "c",
        "chat",
        {"gen_ai.operation.name": "chat", "gen_ai.provider.name": "strands-agents"},
        (DETAILS, {"gen_ai.system_instructions": json.dumps(text)}),
        (DETAILS, {"gen_ai.input.messages": json.dumps(history)}),
        (DETAILS, {"gen_ai.output.messages": json.dumps(answer)}),
    )
    tool = span(
        "b",
        "execute_tool weather",
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "weather", "gen_ai.tool.call.id": "t1"},
        (DETAILS, {"gen_ai.input.messages": json.dumps([{"role": "tool", "parts": [asked]}])}),
        (DETAILS, {"gen_ai.output.messages": json.dumps([{"role": "tool", "parts": [given]}])}),
    )
    agent = span("a", "invoke_agent A", {"gen_ai.operation.name": "invoke_agent"})
    trajectory = build(tmp_path, agent, tool, call)
    [placed] = trajectory.calls
    *_, last = placed.call.messages
    assert (last.role, last.parts) == ("tool", (ToolResultPart([{"text": "rain"}], "t1"),))
    assert list(placed.call.messages[:3]) == list(WHOLE[:3])
    assert [choice.message for choice in placed.call.choices] == [ANSWER]
    [found] = trajectory.tool_calls
    assert (found.arguments, found.result) == ('{"city":"Oslo"}', "rain")


def vercel_call(**changed: Any) -> Attributes:
    prompt = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "Let me look."},
                {"type": "tool-call", "toolCallId": "t1", "toolName": "weather", "input": {"city": "Oslo"}},
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "t1",
                    "toolName": "weather",
                    "output": {"type": "text", "value": "rain"},
                }
            ],
        },
    ]
    tool = {"type": "function", "name": "weather", "description": "d", "inputSchema": {"type": "object"}}
    return {
        "operation.name": "ai.generateText.doGenerate",
        "ai.operationId": "ai.generateText.doGenerate",
        "ai.model.provider": "openai.chat",
        "ai.model.id": "gpt-4o",
        "ai.prompt.messages": json.dumps(prompt),
        "ai.prompt.tools": [json.dumps(tool)],
        "gen_ai.system": "openai.chat",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.request.temperature": 0.5,
        "ai.response.finishReason": "stop",
        "ai.response.text": "It rains.",
        "ai.response.id": "r1",
        "ai.response.model": "gpt-4o-2026",
        "ai.usage.inputTokens": 7,
        "gen_ai.usage.output_tokens": 3,
        **changed,
    }


def test_vercel(tmp_path: Path) -> None:
    agent = span(
        "a",
        "ai.generateText",
        {
            "ai.operationId": "ai.generateText",
            "operation.name": "ai.generateText helper",
            "ai.telemetry.functionId": "helper",
            "ai.telemetry.metadata.user": "u1",
            "ai.prompt": '{"prompt":"Weather in Oslo?"}',
            "ai.response.text": "It rains.",
        },
        scope="ai",
    )
    tool = span(
        "b",
        "ai.toolCall",
        {
            "ai.operationId": "ai.toolCall",
            "ai.toolCall.name": "weather",
            "ai.toolCall.id": "t1",
            "ai.toolCall.args": '{"city":"Oslo"}',
            "ai.toolCall.result": '"rain"',
        },
        scope="ai",
    )
    trajectory = build(tmp_path, agent, tool, span("c", "ai.generateText.doGenerate", vercel_call(), scope="ai"))
    check(trajectory)
    call = trajectory.calls[0].call
    assert (call.request_model, call.response_model, call.temperature) == ("gpt-4o", "gpt-4o-2026", 0.5)
    assert (call.input_tokens, call.output_tokens) == (7, 3)
    assert call.tools[0]["function"] == {"name": "weather", "description": "d", "parameters": {"type": "object"}}
    assert (trajectory.agents[0].name, trajectory.result) == ("helper", "It rains.")
    assert (trajectory.arguments, trajectory.metadata) == ({"prompt": "Weather in Oslo?"}, {"user": "u1"})
    [found] = trajectory.tool_calls
    assert (found.id, found.arguments, found.result, found.inferred) == ("t1", '{"city":"Oslo"}', "rain", False)


def test_vercel_tool_calls_and_reasoning_of_an_answer(tmp_path: Path) -> None:
    asked = [{"toolCallId": "t1", "toolName": "weather", "args": {"city": "Oslo"}}]  # as older versions say it
    attributes = vercel_call(**{"ai.response.toolCalls": json.dumps(asked), "ai.response.reasoning": "hm"})
    del attributes["ai.response.text"]
    [placed] = build(tmp_path, span("c", "ai.streamText.doStream", attributes)).calls
    assert placed.call.choices[0].message == Message(
        "assistant", (ReasoningPart("hm"), ToolCallPart("weather", '{"city":"Oslo"}', "t1"))
    )


def test_vercel_has_pictures_text_in_parts_and_what_providers_ran(tmp_path: Path) -> None:
    searched = {"type": "tool-call", "toolCallId": "s1", "toolName": "web_search", "input": {"q": "x"}}
    page = {"type": "tool-result", "toolCallId": "s1", "toolName": "web_search", "output": {"type": "json", "value": 1}}
    asked = {"type": "tool-call", "toolCallId": "t1", "toolName": "weather", "input": {"city": "Oslo"}}
    parts = {"type": "content", "value": [{"type": "text", "text": "rain"}]}
    given = {"type": "tool-result", "toolCallId": "t1", "toolName": "weather", "output": parts}
    prompt = [
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {"role": "assistant", "content": [searched, page, {"type": "text", "text": "Let me look."}, asked]},
        {"role": "tool", "content": [given]},
    ]
    picture = {"type": "file", "mediaType": "image/png", "data": "AAAA"}
    search = {"type": "provider", "id": "openai.web_search", "name": "web_search", "args": {}}
    attributes = vercel_call(
        **{
            "ai.prompt.messages": json.dumps(prompt),
            "ai.prompt.tools": json.dumps([json.dumps(search)]),
            "ai.response.files": json.dumps([picture]),
            "ai.usage.inputTokenDetails.cacheWriteTokens": 4,
        }
    )
    record = span("c", "ai.generateText.doGenerate", attributes)
    [placed] = build(tmp_path, record).calls
    _, said, result = placed.call.messages
    assert [type(part).__name__ for part in said.parts] == ["OtherPart", "TextPart", "ToolCallPart", "ToolCallPart"]
    assert result.parts == (ToolResultPart("rain", "t1"),)
    assert placed.call.choices[0].message.parts == (TextPart("It rains."), OtherPart(picture))
    assert placed.call.tools == (search,)
    assert normalise(record).attributes["gen_ai.usage.cache_write.input_tokens"] == 4


def test_generate_content_is_a_call(tmp_path: Path) -> None:
    given = [
        {"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "parts": [
                {"type": "text", "content": "Let me look."},
                {"type": "tool_call", "name": "weather", "id": "t1", "arguments": {"city": "Oslo"}},
            ],
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": "rain"}]},
    ]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "It rains."}], "finish_reason": "stop"}]
    attributes: Attributes = {
        "gen_ai.operation.name": "generate_content",
        "gen_ai.provider.name": "gcp.gemini",
        "gen_ai.request.model": "gemini-3",
        "gen_ai.system_instructions": '[{"type":"text","content":"Be kind."}]',
        "gen_ai.input.messages": json.dumps(given),
        "gen_ai.output.messages": json.dumps(answer),
    }
    check(build(tmp_path, span("c", "generate_content gemini-3", attributes)))


@pytest.mark.parametrize("as_text", [True, False])
def test_content_in_place_of_parts(as_text: bool, tmp_path: Path) -> None:
    function = {"name": "weather", "arguments": '{"city":"Oslo"}'}
    given: Any = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "Weather in Oslo?"}]},
        {
            "role": "assistant",
            "content": "Let me look.",
            "tool_calls": [{"id": "t1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "rain"},
    ]
    answer: Any = [{"role": "assistant", "content": "It rains.", "finish_reason": "stop"}]
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps(given) if as_text else given,
        "gen_ai.output.messages": json.dumps(answer) if as_text else answer,
    }
    check(build(tmp_path, span("c", "chat m", attributes)))


def test_calls_without_a_message_are_counted_and_named(tmp_path: Path) -> None:
    """As OpenTelemetry's instrumentation of openai sends them where messages go into logs, and a span that says a model
    and no operation."""
    spans = [
        span("a", "invoke_agent A", {"gen_ai.operation.name": "invoke_agent"}),
        span("b", "chat m", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, scope="otel.openai"),
        span("c", "chat m", {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}, scope="otel.openai"),
        span("d", "call_llm", {"gen_ai.request.model": "m", "llm_request.7.text": "{}"}, scope="gcp.vertex.agent"),
        span("e", "execute_tool t", {"gen_ai.operation.name": "execute_tool", "gen_ai.request.model": "m"}),
    ]
    named = {
        "otel.openai, chat: gen_ai.operation.name, gen_ai.request.model": 2,
        "gcp.vertex.agent, no operation: gen_ai.request.model, llm_request.N.text": 1,
    }
    trajectory = build(tmp_path / "store", *spans)
    assert trajectory.unread == named
    file = tmp_path / "spans.jsonl"
    file.write_bytes(b"\n".join(map(encode_record, spans)))
    data = str(tmp_path / "imported")
    imported = CliRunner().invoke(cli, ["import", str(file), "--dir", data], catch_exceptions=False)
    listed = CliRunner().invoke(cli, ["ls", "--dir", data], catch_exceptions=False)
    shown = CliRunner().invoke(cli, ["show", TRACE, "--dir", data], catch_exceptions=False)
    for output in (imported.output, listed.output, shown.output):
        heard = " ".join(output.split())
        assert "2 calls not read: otel.openai, chat: gen_ai.operation.name, gen_ai.request.model" in heard
        assert "1 call not read: gcp.vertex.agent, no operation" in heard
    assert " unread" in listed.output
    assert "complete" not in listed.output


def test_a_run_whose_calls_are_read_tells_nothing(tmp_path: Path) -> None:
    trajectory = build(tmp_path, span("c", "chat", vercel_call()))
    assert trajectory.unread == {}


def test_kinds_without_a_message_are_bounded() -> None:
    found = counted([f"kind {n}" for n in range(100)])
    assert (len(found), sum(found.values()), found["others"]) == (9, 100, 92)


@pytest.mark.parametrize(
    ("name", "agent", "said"),
    [
        ("strands_older", "Strands Agents", ""),
        ("strands_newest", "Strands Agents", ""),
        ("vercel", "helper", "Let me look."),
    ],
)
def test_spans_as_the_sdks_sent_them(name: str, agent: str, said: str, tmp_path: Path) -> None:
    """One agent with one tool and a stand-in for its model, recorded from the SDKs themselves."""
    trajectory = build(tmp_path, *spans_of(name))
    first, second = trajectory.calls
    assert [message.text for message in first.call.messages] == ["Be kind.", "Weather in Oslo?"]
    asked = first.call.choices[0].message
    assert (asked.text, asked.tool_calls) == (said, (ToolCallPart("weather", '{"city":"Oslo"}', "t1"),))
    assert (second.relation, second.related_to) == (Relation.EXTENDS, first.call.span_id)
    assert second.call.choices[0].message == ANSWER
    assert [(one.name, one.inferred) for one in trajectory.agents] == [(agent, False)]
    [found] = trajectory.tool_calls
    assert (found.id, found.name, json.loads(found.arguments)) == ("t1", "weather", {"city": "Oslo"})
    assert (found.result, found.inferred) == ("rain", False)
    assert (trajectory.unread, trajectory.incomplete) == ({}, "")


def spans_of(name: str) -> list[SpanRow]:
    file = Path(__file__).parent / "data" / f"{name}.jsonl"
    return [record for record in read_file(file.read_bytes(), name).records if isinstance(record, SpanRow)]


def test_messages_of_several_parts_by_openinference_are_whole(tmp_path: Path) -> None:
    picture = {"message_content.type": "image", "message_content.image.image.url": "https://example.org/a.png"}
    asked = {"message_content.type": "text", "message_content.text": "what is this?"}
    parts = "llm.input_messages.0.message.contents"
    attributes: Attributes = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "llm.input_messages.0.message.role": "user",
        **{f"{parts}.0.{name}": value for name, value in asked.items()},
        **{f"{parts}.1.{name}": value for name, value in picture.items()},
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.contents.0.message_content.type": "text",
        "llm.output_messages.0.message.contents.0.message_content.text": "a cat",
    }
    agent = span("a", "agent", {"openinference.span.kind": "AGENT", "agent.name": "researcher"})
    trajectory = build(tmp_path, agent, span("b", "ChatCompletion", attributes))
    [call] = trajectory.calls
    [message] = call.call.messages
    assert message.parts[0] == TextPart("what is this?")
    assert "https://example.org/a.png" in json.dumps(to_builtins(message.parts[1]))
    assert call.call.choices[0].message.text == "a cat"


def test_what_a_providers_own_tool_returned_is_no_text_of_the_answer(tmp_path: Path) -> None:
    """As AI SDK 7 says a search that the provider ran: data sets had the page for the answer's text."""
    searched = {"type": "tool_call", "id": "s1", "name": "web_search", "arguments": {"q": "x"}}
    returned = {"type": "tool_call_response", "id": "s1", "response": "page x"}
    told = {"type": "text", "content": "x is 3."}
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "What is x?"}]}]),
        "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [told, searched, returned]}]),
    }
    trajectory = build(tmp_path, span("c", "chat m", attributes, scope="gen_ai"))
    [whole] = conversations(trajectory)
    assert unsupported(whole) == NotTrained.NOT_TEXT
    assert whole.chat()[-1]["content"] == "x is 3."
    assert to_builtins(whole.messages[-1].parts[-1].value) == returned  # type: ignore[union-attr]


def test_tools_with_an_input_schema_are_functions_with_parameters(tmp_path: Path) -> None:
    """As AI SDK 7 has them, and MCP."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "name": "weather", "description": "d", "inputSchema": schema}
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.tool.definitions": json.dumps([tool]),
        "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": "Oslo?"}]}]),
    }
    [placed] = build(tmp_path, span("c", "chat m", attributes, scope="gen_ai")).calls
    function = {"name": "weather", "description": "d", "parameters": schema}
    assert placed.call.tools == ({"type": "function", "function": function},)


def test_a_previous_response_of_the_conventions_is_the_history(tmp_path: Path) -> None:
    """By the name that OpenTelemetry's utilities write, as for Gemini's interactions; one that was not captured is
    told."""

    def call(id: str, before: str | None, asked: str, said: str) -> SpanRow:
        attributes: Attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "gcp.gemini",
            "gen_ai.response.id": f"i{id}",
            "gen_ai.system_instructions": json.dumps([{"type": "text", "content": f"Be kind, {id}."}]),
            "gen_ai.input.messages": json.dumps([{"role": "user", "parts": [{"type": "text", "content": asked}]}]),
            "gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": said}]}]),
            **({"gen_ai.request.previous_response.id": before} if before else {}),
        }
        return span(id, "chat gemini-3", attributes)

    agent = span("a", "invoke_agent A", {"gen_ai.operation.name": "invoke_agent"})
    first, second = call("b", None, "What is x?", "3."), call("c", "ib", "And y?", "4.")
    whole = build(tmp_path / "whole", agent, first, second)
    texts = [message.text for message in whole.calls[1].call.messages]
    assert (whole.unread, texts) == ({}, ["Be kind, c.", "What is x?", "3.", "And y?"])
    lacking = build(tmp_path / "lacking", agent, second)
    assert [*lacking.unread] == ["no scope, chat: unreadable messages that the server keeps under previous_response_id"]


AGENTS = "opentelemetry.instrumentation.openai_agents"


def agents_call(*answer: dict[str, Any], **further: Any) -> SpanRow:
    asked = [{"role": "user", "parts": [{"type": "text", "content": "What is x?"}]}]
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": json.dumps(asked),
        **({"gen_ai.output.messages": json.dumps(answer)} if answer else {}),
        **further,
    }
    return span("c", "openai.response", attributes, scope=AGENTS)


def test_a_call_whose_answer_was_not_recorded_is_told(tmp_path: Path) -> None:
    """OpenLLMetry has no answers of the OpenAI Agents SDK's calls of chat completions: the run was complete."""
    trajectory = build(tmp_path / "ended", agents_call())
    assert trajectory.unread == {f"{AGENTS}, chat: no answer": 1}
    failed = msgspec.structs.replace(agents_call(), status_code=2)
    assert build(tmp_path / "failed", failed).unread == {}
    nothing = agents_call({"role": "assistant", "parts": [], "finish_reason": "stop"})
    assert build(tmp_path / "nothing", nothing).unread == {}


def test_what_the_agents_sdk_answers_in_several_items_is_one_answer(tmp_path: Path) -> None:
    """Whatever the ids of its provider's responses look like; arguments that are no object are as they were sampled."""
    calls = [
        {"role": "assistant", "parts": [{"type": "tool_call", "name": "look", "id": id, "arguments": arguments}]}
        for id, arguments in (("c1", {"q": "x"}), ("c2", {"_raw": '{"q": '}))
    ]
    said = {"role": "assistant", "parts": [{"type": "text", "content": "I look."}], "finish_reason": "stop"}
    ends = [{**call, "finish_reason": "tool_call"} for call in calls]
    response = {"gen_ai.response.id": "ad5663da-63e6-86c6-e0be-ff15effa8357"}
    [placed] = build(tmp_path, agents_call(said, *ends, **response)).calls
    [choice] = placed.call.choices
    assert (choice.end, choice.message.text) == ("tool_calls", "I look.")
    assert choice.message.tool_calls == (
        ToolCallPart("look", '{"q":"x"}', "c1"),
        ToolCallPart("look", '{"q": ', "c2"),
    )


def test_what_a_sender_left_out_of_a_call_is_told(tmp_path: Path) -> None:
    """As where an instrumentation fails on a custom tool, or on a picture, and drops the whole list: data sets had the
    answer without its prompt."""
    said = {"role": "assistant", "parts": [{"type": "text", "content": "x is 3."}], "finish_reason": "stop"}
    without = agents_call(said)
    del without.attributes["gen_ai.input.messages"]
    cases = {
        "prompt": (without, "gen_ai.input.messages"),
        "calls": (agents_call({**said, "finish_reason": "tool_call"}), "gen_ai.output.messages"),
        "name": (
            agents_call({**said, "parts": [{"type": "tool_call", "id": "c", "name": "", "arguments": None}]}),
            "gen_ai.output.messages",
        ),
    }
    for name, (call, attribute) in cases.items():
        trajectory = build(tmp_path / name, call)
        assert trajectory.unread == {f"{AGENTS}, chat: unreadable {attribute}": 1}
        assert [unsupported(one) for one in conversations(trajectory)] == [NotTrained.UNREADABLE]


def test_a_tool_call_without_a_name_is_not_imitated_where_it_stands_in_a_prompt(tmp_path: Path) -> None:
    asked = [
        {"role": "user", "parts": [{"type": "text", "content": "What is x?"}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": None, "arguments": None}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "files"}]},
    ]
    said = {"role": "assistant", "parts": [{"type": "text", "content": "x is 3."}], "finish_reason": "stop"}
    trajectory = build(tmp_path, agents_call(said, **{"gen_ai.input.messages": json.dumps(asked)}))
    assert [unsupported(one) for one in conversations(trajectory)] == [NotTrained.UNREADABLE]


@pytest.mark.parametrize("begins", [True, False])
def test_what_goes_on_from_a_response_that_is_not_named_is_told(begins: bool, tmp_path: Path) -> None:
    """OpenLLMetry does not record `previous_response_id`; that a prompt begins with what a tool returned shows it."""
    calls = [
        {"role": "system", "parts": [{"type": "text", "content": "Be kind."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c", "name": "look", "arguments": {"q": "x"}}]},
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c", "response": "page x"}]},
    ]
    asked = [calls[0], calls[2]] if begins else calls
    said = {"role": "assistant", "parts": [{"type": "text", "content": "x is 3."}], "finish_reason": "stop"}
    prompt = {"gen_ai.input.messages": json.dumps(asked), "gen_ai.response.id": "resp_2"}
    record = msgspec.structs.replace(agents_call(said, **prompt), scope_name="opentelemetry.instrumentation.openai.v1")
    trajectory = build(tmp_path, record)
    kept = "messages that the server keeps under previous_response_id"
    assert trajectory.unread == ({f"{record.scope_name}, chat: unreadable {kept}": 1} if begins else {})
    assert [unsupported(one) for one in conversations(trajectory)] == [NotTrained.UNREADABLE if begins else None]


@pytest.mark.parametrize("known_by", ["the span above", "the answer's id", "nothing"])
def test_a_call_that_anthropics_client_recorded_too_is_one(known_by: str, tmp_path: Path) -> None:
    """Its version 2 makes spans without content wherever the program has a tracer provider: each call was there twice,
    and the run unread."""
    agent = span("a", "invoke_agent A", {"gen_ai.operation.name": "invoke_agent"})
    said = {"role": "assistant", "parts": [{"type": "text", "content": "x is 3."}], "finish_reason": "stop"}
    known = {"gen_ai.response.id": "msg_1", "gen_ai.usage.output_tokens": 5}
    call = msgspec.structs.replace(agents_call(said, **known), span_id="b" * 16)
    own: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "m",
        "gen_ai.response.id": "msg_1" if known_by == "the answer's id" else "msg_2",
        "http.route": "/v1/messages",
        "gen_ai.usage.output_tokens": 5,
    }
    if known_by == "nothing":
        own["gen_ai.response.id"] = ["msg_1"]
    client = span("d", "anthropic.messages.create", own, scope="com.anthropic.sdk.python")
    if known_by == "the span above":
        client = msgspec.structs.replace(client, parent_span_id=call.span_id)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([agent, call, client])
        [trajectory] = store.trajectories()
        in_sql = store.sql("SELECT calls, (SELECT count(*) FROM calls), output_tokens FROM trajectories")[1]
        cost = cost_of_run(store, trajectory.id, Prices({}, {}))
    calls = 2 if known_by == "nothing" else 1
    assert len(trajectory.calls) == calls
    assert bool(trajectory.unread) == (known_by == "nothing")
    assert in_sql == [(calls, calls, 5 * calls)]
    assert cost.unpriced_calls == calls


def test_the_parts_of_an_answer_that_are_written_as_json_are_its_text(tmp_path: Path) -> None:
    """As OpenLLMetry has Cohere's: SFT imitated the JSON."""
    parts = [{"type": "thinking", "thinking": "Hm."}, {"type": "text", "text": "I look."}]
    call: Attributes = {
        "llm.request.type": "chat",
        "gen_ai.system": "Cohere",
        "gen_ai.prompt.0.role": "user",
        "gen_ai.prompt.0.content": "What is x?",
        "gen_ai.completion.0.role": "assistant",
        "gen_ai.completion.0.content": json.dumps(parts),
        "gen_ai.completion.0.tool_calls.0.id": "c1",
        "gen_ai.completion.0.tool_calls.0.name": "look",
        "gen_ai.completion.0.tool_calls.0.arguments": '{"q": "x"}',
        "gen_ai.response.finish_reasons": ["TOOL_CALL"],
    }
    trajectory = build(tmp_path, span("c", "cohere.chat", call, scope="opentelemetry.instrumentation.cohere"))
    [choice] = trajectory.calls[0].call.choices
    assert choice.message.parts == (
        ReasoningPart("Hm."),
        TextPart("I look."),
        ToolCallPart("look", '{"q": "x"}', "c1"),
    )
    assert (choice.end, trajectory.unread) == ("tool_calls", {})


def test_an_agent_that_is_made_is_no_run(tmp_path: Path) -> None:
    """As OpenLLMetry says of LangChain's `create_agent`, in a trace of its own: an empty run stood beside each run."""
    made = msgspec.structs.replace(
        span("a", "create_agent A", {"gen_ai.operation.name": "create_agent"}), trace_id="2" * 32
    )
    said = {"role": "assistant", "parts": [{"type": "text", "content": "x is 3."}], "finish_reason": "stop"}
    within = span("d", "create_agent B", {"gen_ai.operation.name": "create_agent"})
    agent = span("a", "invoke_agent A", {"gen_ai.operation.name": "invoke_agent"})
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([made, agent, agents_call(said), within])
        [run] = store.trajectories()
        assert [one.id for one in store.summaries()] == [run.id]
    assert (len(run.calls), run.incomplete, run.unread) == (1, "", {})
