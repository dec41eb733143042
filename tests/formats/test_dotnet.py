"""Spans as Microsoft.Extensions.AI of .NET makes them of a loop of tool calls (its `OpenTelemetryChatClient` inside its
`FunctionInvokingChatClient`, around it, or both) are the calls of the loop, once, with their messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir

SCOPE = "Experimental.Microsoft.Extensions.AI"
USER: dict[str, Any] = {"role": "user", "parts": [{"type": "text", "content": "Weather in Oslo?"}]}
ASKS: dict[str, Any] = {
    "role": "assistant",
    "parts": [{"type": "tool_call", "id": "t1", "name": "weather", "arguments": {"city": "Oslo"}}],
}
GIVEN: dict[str, Any] = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "t1", "response": "rain"}]}
SAYS: dict[str, Any] = {"role": "assistant", "parts": [{"type": "text", "content": "It rains."}]}
READ = [
    Message("user", (TextPart("Weather in Oslo?"),)),
    Message("assistant", (ToolCallPart("weather", '{"city":"Oslo"}', "t1"),)),
    Message("tool", (ToolResultPart("rain", "t1"),)),
    Message("assistant", (TextPart("It rains."),)),
]


def span(id: str, above: str | None, name: str, at: int, until: int, attributes: Attributes) -> SpanRow:
    return SpanRow(
        "1" * 32, id * 16, name, at, until, above and above * 16, attributes=attributes, scope_name=SCOPE, kind=3
    )


def chat(
    id: str, above: str | None, at: int, until: int, asked: list[Any], *said: Any, tokens: tuple[int, int] = (7, 3)
) -> SpanRow:
    """A call, whose reasons to end are written as text, and repeated in each message."""
    reason = "tool_call" if said == (ASKS,) else "stop"
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-4o",
        "gen_ai.response.id": f"chatcmpl-{id}",
        "gen_ai.response.model": "gpt-4o",
        "gen_ai.response.finish_reasons": f'["{reason}"]',
        "gen_ai.usage.input_tokens": tokens[0],
        "gen_ai.usage.output_tokens": tokens[1],
        "gen_ai.input.messages": json.dumps(asked),
        "gen_ai.output.messages": json.dumps([{**one, "finish_reason": reason} for one in said]),
    }
    return span(id, above, "chat gpt-4o", at, until, attributes)


def loop(id: str, above: str | None) -> SpanRow:
    """The span of the loop itself, with the sum of its tokens and no operation."""
    sums: Attributes = {"gen_ai.usage.input_tokens": 14, "gen_ai.usage.output_tokens": 6}
    return span(id, above, "orchestrate_tools", 1, 9, sums)


def tool(above: str) -> SpanRow:
    attributes: Attributes = {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.name": "weather",
        "gen_ai.tool.call.id": "t1",
        "gen_ai.tool.call.arguments": '{"city":"Oslo"}',
        "gen_ai.tool.call.result": '"rain"',
    }
    return span("5", above, "execute_tool weather", 4, 5, attributes)


def inside(above: str) -> list[SpanRow]:
    return [chat("3", above, 2, 3, [USER], ASKS), tool(above), chat("4", above, 6, 7, [USER, ASKS, GIVEN], SAYS)]


def read(directory: Path, *spans: SpanRow) -> tuple[Trajectory, list[tuple[Any, ...]]]:
    with Store.open(DataDir(directory), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
        _, rows = store.sql("SELECT input_tokens, finish_reasons::VARCHAR FROM calls ORDER BY span_id")
    return run, rows


def check_two_calls(run: Trajectory, rows: list[tuple[Any, ...]]) -> None:
    assert run.unread == {}
    assert [list(one.call.messages) for one in run.calls] == [READ[:1], READ[:3]]
    assert [choice.message for one in run.calls for choice in one.call.choices] == [READ[1], READ[3]]
    assert rows == [(7, '["tool_call"]'), (7, '["stop"]')]


def test_the_span_of_a_loop_is_no_call_that_could_not_be_read(tmp_path: Path) -> None:
    check_two_calls(*read(tmp_path, loop("2", None), *inside("2")))


def test_a_call_around_the_calls_of_a_loop_is_none(tmp_path: Path) -> None:
    around = chat("1", None, 0, 10, [USER], ASKS, GIVEN, SAYS, tokens=(14, 6))
    check_two_calls(*read(tmp_path, around, loop("2", "1"), *inside("2")))


def test_a_call_that_is_a_whole_loop_answers_once_with_the_turns_before_as_its_prompt(tmp_path: Path) -> None:
    around = chat("1", None, 0, 10, [USER], ASKS, GIVEN, SAYS, tokens=(14, 6))
    run, rows = read(tmp_path, around, loop("2", "1"), tool("2"))
    [one] = run.calls
    assert run.unread == {}
    assert list(one.call.messages) == READ[:3]
    assert [(choice.message, choice.finish_reason) for choice in one.call.choices] == [(READ[3], "stop")]
    assert rows == [(14, '["stop"]')]
    assert [(each.id, each.result, each.inferred) for each in run.tool_calls] == [("t1", "rain", False)]


def test_a_loop_that_ends_by_a_tool_answers_with_what_asked_for_it(tmp_path: Path) -> None:
    run, _ = read(tmp_path, chat("1", None, 0, 10, [USER], ASKS, GIVEN), loop("2", "1"), tool("2"))
    [one] = run.calls
    assert list(one.call.messages) == READ[:1]
    assert [choice.message for choice in one.call.choices] == [READ[1]]


def test_a_loop_without_its_prompt_says_so(tmp_path: Path) -> None:
    around = chat("1", None, 0, 10, [USER], ASKS, GIVEN, SAYS)
    del around.attributes["gen_ai.input.messages"]
    run, _ = read(tmp_path, around, loop("2", "1"))
    assert run.unread == {f"{SCOPE}, chat: unreadable gen_ai.input.messages": 1}
