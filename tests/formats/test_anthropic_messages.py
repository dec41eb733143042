"""Logs of Anthropic's Messages API are read as what they say: conversations, training rows, requests with answers."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import MessageParam, TextBlockParam, ToolUnionParam
from anthropic_files import (
    ANSWER,
    ASKED,
    CALLS,
    FUNCTION,
    PAIRS,
    REPLY,
    REQUEST,
    RESULTS,
    SEARCH,
    SEARCHED,
    SYSTEM,
    TALK,
    TEXTS,
    WEATHER,
)
from click.testing import CliRunner
from pydantic import TypeAdapter
from system_files import ROOT, SESSION, TIME, lines, read

from arttrace.commands import cli
from arttrace.records.message import Message, OtherPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory


def test_the_examples_are_what_anthropics_client_takes() -> None:
    TypeAdapter(list[MessageParam]).validate_python([ASKED, CALLS, RESULTS, ANSWER, SEARCHED])
    TypeAdapter(list[MessageParam]).validate_python(TEXTS)
    TypeAdapter(list[TextBlockParam]).validate_python(SYSTEM)
    TypeAdapter(list[ToolUnionParam]).validate_python([WEATHER, SEARCH])


def path_of(run: Trajectory) -> list[Message]:
    """All that the last call was given, and what it answered."""
    last = run.calls[-1].call
    return [*last.messages, last.choices[0].message]


def test_every_block_of_a_conversation_is_read() -> None:
    found, [run] = read(lines(TALK))
    assert (found.kinds, found.left_out, found.unread) == ({"conversations": 1}, {}, {})
    assert run.incomplete == ""
    system, user, calls, *results, more, answer = path_of(run)
    assert (system.role, system.text) == ("system", "Be brief.")
    assert (user.role, user.text) == ("user", "Where is this, and is it warm?Guide\n\nRome.")
    assert [part.value for part in user.parts if isinstance(part, OtherPart)] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "image_url", "image_url": {"url": "https://x.test/b.png"}},
    ]
    assert calls.parts == (
        ReasoningPart("Rome or Oslo."),
        TextPart("Let me look."),
        ToolCallPart("weather", '{"town":"Rome"}', "toolu_1"),
        ToolCallPart("weather", '{"town":"Oslø"}', "toolu_2"),
    )
    assert [one.role for one in results] == ["tool", "tool"]
    assert [one.parts for one in results] == [
        (ToolResultPart("sun", "toolu_1"),),
        (ToolResultPart("no such town", "toolu_2"),),
    ]
    assert more.role == "user"
    assert more.parts == (
        OtherPart({"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}),
        TextPart("And?"),
    )
    assert (answer.role, answer.text) == ("assistant", "Rome, and it is.")
    assert [placed.call.tools for placed in run.calls] == [(FUNCTION, SEARCH)] * 2
    assert "system" not in run.metadata


def test_a_result_that_is_an_error_is_that_of_a_tool_that_failed() -> None:
    _, [run] = read(lines(TALK))
    assert [(tool.id, tool.result, tool.error) for tool in run.tool_calls] == [
        ("toolu_1", "sun", None),
        ("toolu_2", "no such town", "no such town"),
    ]
    _, [run] = read(lines({"messages": [ASKED, CALLS, RESULTS]}))
    assert {tool.id: tool.error for tool in run.tool_calls} == {"toolu_1": None, "toolu_2": "no such town"}


def test_what_the_server_did_and_thought_in_secret_is_kept_in_its_place() -> None:
    found, [run] = read(lines({"messages": [TEXTS[0], SEARCHED]}))
    assert found.left_out == {}
    thought, before, use, result, after = run.calls[0].call.choices[0].message.parts
    assert (before, after) == (TextPart("I search."), TextPart("It is cold."))
    assert [part.value for part in (thought, use, result) if isinstance(part, OtherPart)] == [
        SEARCHED["content"][0], *SEARCHED["content"][2:4]
    ]  # fmt: skip


@pytest.mark.parametrize("system", ["Be brief.", SYSTEM])
def test_the_system_text_stands_before_messages_of_texts_too(system: Any) -> None:
    talk = {"system": system, "messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]}
    _, [run] = read(lines(talk))
    assert [(one.role, one.text) for one in path_of(run)] == [
        ("system", "Be brief."), ("user", "hi"), ("assistant", "yo")
    ]  # fmt: skip
    own = [{"role": "system", "content": "I am first."}, *talk["messages"]]
    _, [run] = read(lines({"system": "other", "messages": own}))
    assert path_of(run)[0].text == "I am first."
    assert run.metadata == {"system": "other"}


@pytest.mark.parametrize(
    ("block", "role", "named"),
    [
        ({"type": "hologram", "data": 1}, "user", "hologram"),
        ({"type": "hologram", "data": 1}, "assistant", "hologram"),
        ({"type": "tool_use", "id": "t"}, "assistant", "tool_use"),
        ({"type": "thinking", "signature": "x"}, "assistant", "thinking"),
        ({"data": 1}, "user", "none"),
        (7, "user", "none"),
        ({"type": "tool_result", "tool_use_id": "toolu_1", "content": {"degrees": 4}}, "user", "none"),
        ({"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "smell"}]}, "user", "smell"),
    ],
)
def test_an_unknown_part_is_kept_as_it_came_counted_and_named(block: Any, role: str, named: str) -> None:
    talk = [*copy.deepcopy(TEXTS), *copy.deepcopy(TEXTS[2:])]
    at = 1 if role == "assistant" else 2
    talk[at]["content"].append(block)
    found, [run] = read(lines({"messages": talk}))
    assert found.left_out == {f"unknown parts of type {named}, kept as they came": 1}
    kept = [part.value for one in path_of(run) for part in one.parts if isinstance(part, OtherPart)]
    inside = block["content"] if isinstance(block, dict) and block.get("type") == "tool_result" else block
    inside = inside[0] if isinstance(inside, list) else inside
    assert kept in ([inside], [{"type": "content", "content": inside}])


def test_citations_are_counted() -> None:
    cited = {"type": "text", "text": "Sun.", "citations": [{"type": "char_location", "cited_text": "sun"}]}
    found, _ = read(lines({"messages": [TEXTS[0], {"role": "assistant", "content": [cited, cited]}]}))
    assert found.left_out == {"citations": 2}


# --- requests with answers ------------------------------------------------------------------------------------


def test_requests_with_answers_are_calls_of_one_run() -> None:
    AnthropicMessage.model_validate(REPLY)
    found, [run] = read(lines(*PAIRS))
    assert (found.kinds, found.left_out, found.rewards) == ({"exchanges": 2}, {}, 1)
    first, second = (placed.call for placed in run.calls)
    assert (first.request_model, first.response_model, first.response_id) == ("claude-x", "claude-x-20260101", "msg_1")
    assert (first.input_tokens, first.output_tokens) == (17, 4)
    assert (first.choices[0].finish_reason, second.choices[0].finish_reason) == ("tool_calls", "length")
    assert first.tools == (FUNCTION,)
    assert [one.role for one in second.messages] == ["system", "user", "assistant", "tool", "tool", "user"]
    assert first.choices[0].message == second.messages[2]
    assert second.choices[0].message.text == "Rome, and it is."
    assert {tool.id: (tool.result, tool.error) for tool in run.tool_calls} == {
        "toolu_1": ("sun", None), "toolu_2": ("no such town", "no such town")
    }  # fmt: skip
    assert (run.scenario, run.incomplete) == ("file/t1", "")
    attributes = next(record.attributes for record in found.records if isinstance(record, SpanRow))
    assert attributes["gen_ai.request.max_tokens"] == 64
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 6
    assert attributes["gen_ai.request.temperature"] == 0.5
    assert list(attributes["gen_ai.request.stop_sequences"]) == ["END"]


def test_a_request_that_failed_is_a_call_that_failed() -> None:
    error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
    _, [run] = read(lines({"request": REQUEST, "response": error}))
    [placed] = run.calls
    assert placed.call.error == "overloaded_error: Overloaded"
    assert [one.role for one in placed.call.messages] == ["system", "user"]


def test_a_pair_of_neither_api_is_refused() -> None:
    found, _ = read(lines(PAIRS[0], {"request": REQUEST, "response": {"answer": "yo"}}), refused=1)
    assert "line 2" in found.reasons[0]


# --- sessions and traces of other systems -----------------------------------------------------------------------


def test_a_session_of_claude_code_has_its_failed_tools_and_what_they_showed() -> None:
    failed = {**RESULTS["content"][1], "tool_use_id": "t2"}
    seen = {"type": "tool_result", "tool_use_id": "t1", "content": RESULTS["content"][0]["content"]}
    strange = {"type": "hologram"}
    changed = {
        "u5": [seen], "u6": [failed], "u9": [*ANSWER["content"], {"type": "redacted_thinking", "data": "EmwK"}, strange]
    }  # fmt: skip
    session = copy.deepcopy(SESSION)
    for one in session:
        if one.get("uuid") in changed:
            one["message"]["content"] = changed[one["uuid"]]
            one["message"]["stop_reason"] = "max_tokens"
    found, [run] = read(lines(*session))
    assert found.left_out == {"unknown parts of type hologram, kept as they came": 1}
    assert [(tool.id, tool.result, tool.error) for tool in run.tool_calls] == [
        ("t1", "sun", None), ("t2", "no such town", "no such town")
    ]  # fmt: skip
    assert [one.role for one in run.calls[1].call.messages] == ["user", "assistant", "tool", "tool", "user"]
    last = run.calls[-1].call.choices[0]
    assert last.finish_reason == "length"
    assert last.message.parts == (
        TextPart("Rome, and it is."), OtherPart({"type": "redacted_thinking", "data": "EmwK"}), OtherPart(strange)
    )  # fmt: skip
    assert run.incomplete == ""


def test_what_anthropics_client_said_in_langsmith() -> None:
    run_ = {
        "id": ROOT, "trace_id": ROOT, "run_type": "llm", "name": "ChatAnthropic", "start_time": TIME.format(0),
        "end_time": TIME.format(1), "inputs": REQUEST, "outputs": REPLY,
    }  # fmt: skip
    found, [run] = read(lines(run_))
    assert found.unread == {}
    call = run.calls[0].call
    assert [one.role for one in call.messages] == ["system", "user"]
    assert (call.input_tokens, call.output_tokens, call.tools) == (17, 4, (FUNCTION,))
    assert call.choices[0].finish_reason == "tool_calls"
    assert [type(part) for part in call.choices[0].message.parts] == [
        ReasoningPart, TextPart, ToolCallPart, ToolCallPart
    ]  # fmt: skip


# --- training rows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {"messages": TEXTS, "tools": [WEATHER]},
        {"prompt": TEXTS[:1], "completion": TEXTS[1:], "tools": [WEATHER]},
        {
            "prompt": TEXTS[:1],
            "chosen": TEXTS[1:],
            "rejected": [{"role": "assistant", "content": "no"}],
            "tools": [WEATHER],
        },
        {
            "input": {"messages": TEXTS[:1], "tools": [WEATHER]},
            "preferred_output": TEXTS[1:],
            "non_preferred_output": [{"role": "assistant", "content": "no"}],
        },
    ],
    ids=["conversation", "completion", "preference", "openai-preference"],
)
def test_rows_of_training_files_go_in_and_out(row: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(lines(row))
    out = tmp_path / "out.jsonl"

    def arttrace(*arguments: str) -> str:
        done = CliRunner().invoke(cli, [*arguments, "--dir", str(tmp_path / "d")], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    arttrace("import", str(tmp_path / "rows.jsonl"))
    runs = json.loads(arttrace("ls", "--json"))
    id = next(one["id"] for one in runs if one["calls"] == 2)
    shown = arttrace("show", id)
    for word in ("Let me look.", 'weather({"town":"Rome"})', "Sun."):
        assert word in shown
    arttrace("dataset", "--format", "trl-sft", "-o", str(out))
    [given] = [one for one in map(json.loads, out.read_text().splitlines()) if len(one["messages"]) == 4]
    assert given["tools"] == [FUNCTION]
    user, calls, result, answer = given["messages"]
    assert user == {"role": "user", "content": "Rome?"}
    assert (calls["content"], calls["reasoning_content"]) == ("Let me look.", "Rome or Oslo.")
    assert [call["function"] for call in calls["tool_calls"]] == [{"name": "weather", "arguments": {"town": "Rome"}}]
    assert (result["role"], result["content"], result["tool_call_id"]) == ("tool", "And?", "toolu_1")
    assert answer == {"role": "assistant", "content": "Sun."}
