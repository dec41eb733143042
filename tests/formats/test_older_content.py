"""Content as the conventions had it before version 1.28 (`gen_ai.prompt` and `gen_ai.completion`, on a span or on its
events), and as Semantic Kernel for .NET (August 2026) puts it into events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pytest

from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.store.rows import encode
from arttrace.system.paths import DataDir

CALL = {"id": "t1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Oslo"}'}}
HISTORY: list[dict[str, Any]] = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Weather in Oslo?"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "rain", "tool_call_id": "t1"},
]
READ = (
    Message("system", (TextPart("Be kind."),)),
    Message("user", (TextPart("Weather in Oslo?"),)),
    Message("assistant", (ToolCallPart("weather", '{"city":"Oslo"}', "t1"),)),
    Message("tool", (ToolResultPart("rain", "t1"),)),
)
SAYS = {"role": "assistant", "content": "It rains."}
ANSWER = Message("assistant", (TextPart("It rains."),))
USER = (Message("user", (TextPart("Weather?"),)),)


def call(attributes: Attributes, *events: tuple[str, Attributes], operation: str = "chat", scope: str = "") -> SpanRow:
    said: Attributes = {"gen_ai.operation.name": operation, "gen_ai.system": "openai", "gen_ai.request.model": "m"}
    return SpanRow(
        "1" * 32,
        "2" * 16,
        f"{operation} m",
        1,
        2,
        attributes={**said, "gen_ai.usage.completion_tokens": 3, **attributes},
        events=[SpanEvent(name, 1, told) for name, told in events],
        scope_name=scope,
    )


def read(directory: Path, span: SpanRow) -> Trajectory:
    with Store.open(DataDir(directory), create=True) as store:
        store.append([span])
        [run] = store.trajectories()
        [(output, tokens)] = store.sql("SELECT output_messages, output_tokens FROM calls")[1]
        roles = store.sql("SELECT role FROM messages ORDER BY position")[1]
    [one] = run.calls
    assert [role for (role,) in roles] == [message.role for message in one.call.messages]
    assert (output is None) == (not one.call.choices)
    assert tokens == 3
    return run


def in_events(prompt: Any, completion: Any) -> SpanRow:
    return call(
        {},
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(prompt)}),
        ("gen_ai.content.completion", {"gen_ai.completion": json.dumps(completion)}),
    )


@pytest.mark.parametrize(
    ("span", "asked"),
    [
        (in_events(HISTORY, [SAYS]), READ),
        (call({"gen_ai.prompt": json.dumps(HISTORY), "gen_ai.completion": json.dumps([SAYS])}), READ),
        (in_events({"messages": HISTORY}, {"choices": [{"message": SAYS, "finish_reason": "stop"}]}), READ),
        (in_events([{"role": "user", "content": "Weather?"}], SAYS), USER),
        (call({"gen_ai.prompt": "Weather?", "gen_ai.completion": "It rains."}), USER),
    ],
    ids=["events", "attributes", "choices", "one", "texts"],
)
def test_a_prompt_in_one_attribute_is_its_messages(span: SpanRow, asked: tuple[Message, ...], tmp_path: Path) -> None:
    run = read(tmp_path, span)
    [one] = run.calls
    assert one.call.messages == asked
    assert [choice.message for choice in one.call.choices] == [ANSWER]
    assert run.unread == {}


@pytest.mark.parametrize("content", [{"inputs": {"question": "Weather?"}}, ["Weather?"], [], {}, 7])
def test_what_is_neither_messages_nor_a_text_is_not_taken_for_them(content: Any, tmp_path: Path) -> None:
    run = read(tmp_path, in_events(content, content) if content != 7 else call({"gen_ai.prompt": 7}))
    assert run.calls[0].call.messages == ()
    assert len(run.unread) == 1


def test_a_store_that_was_written_before_this_was_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    span = call({"gen_ai.prompt": json.dumps(HISTORY), "gen_ai.completion": json.dumps([SAYS])})
    with monkeypatch.context() as older:
        older.setattr(encode, "added_by_conventions", lambda _span: {})
        with Store.open(DataDir(tmp_path), create=True) as store:
            store.append([span])
            assert store.sql("SELECT output_tokens FROM calls")[1] == [(None,)]
    with duckdb.connect(str(DataDir(tmp_path).store)) as connection:
        connection.execute("UPDATE arttrace_schema SET reading = 6")
    with Store.open(DataDir(tmp_path)) as store:
        assert store.sql("SELECT output_tokens FROM calls")[1] == [(3,)]


KERNEL = "Microsoft.SemanticKernel.Diagnostics"


def kernels(role: str, content: str | None, *calls: dict[str, Any]) -> dict[str, Any]:
    """A message as Semantic Kernel writes one: what a tool returned has no id."""
    return {"role": role, "name": None, "content": content, "tool_calls": list(calls)}


def test_the_messages_of_semantic_kernel_are_whole(tmp_path: Path) -> None:
    asks = {**CALL, "function": {"name": "weather", "arguments": {"city": "Oslo"}}}
    history = [
        ("gen_ai.tool.developer", kernels("developer", "Be kind.")),
        ("gen_ai.user.message", kernels("user", "Weather in Oslo?")),
        ("gen_ai.assistant.message", kernels("assistant", None, asks)),
        ("gen_ai.tool.message", kernels("tool", "rain")),
        ("gen_ai.choice", {"index": 0, "message": kernels("assistant", "It rains."), "finish_reason": "Stop"}),
    ]
    events: list[tuple[str, Attributes]] = [
        (name, {"gen_ai.event.content": json.dumps(said)}) for name, said in history
    ]
    run = read(tmp_path, call({}, *events, scope=KERNEL))
    [one] = run.calls
    assert one.call.messages[:3] == (Message("developer", READ[0].parts), *READ[1:3])
    assert [message.role for message in one.call.messages] == ["developer", "user", "assistant", "tool"]
    assert [choice.message for choice in one.call.choices] == [ANSWER]
    [result] = one.call.messages[3].parts
    assert isinstance(result, ToolResultPart)
    assert result.response == "rain"


@pytest.mark.parametrize("prompt", ["Once upon", "7", '{"a": 1}', "null"])
def test_the_prompt_of_a_completion_by_semantic_kernel_is_its_text(prompt: str, tmp_path: Path) -> None:
    choice = {"index": 0, "message": " a time", "finish_reason": "Stop"}
    events: list[tuple[str, Attributes]] = [
        ("gen_ai.user.message", {"gen_ai.event.content": prompt, "gen_ai.system": "openai"}),
        ("gen_ai.choice", {"gen_ai.event.content": json.dumps(choice)}),
    ]
    run = read(tmp_path, call({}, *events, operation="text_completion", scope=KERNEL))
    [one] = run.calls
    assert one.call.messages == (Message("user", (TextPart(prompt),)),)
    assert [choice.message.text for choice in one.call.choices] == [" a time"]
