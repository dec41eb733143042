"""Calls of chat completions as OpenInference's instrumentation of openai 0.1.66 records them: its attributes have no
place for all of a message, the request and the answer beside them have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arttrace.records.call import Call
from arttrace.records.message import Message, OtherPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.span import Attributes, SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

QUESTION = {"role": "user", "content": "what is x?"}
ASKED = "llm.input_messages.0.message"
SAID = "llm.output_messages.0.message"


def read(directory: Path, request: Any, response: Any, **said: Any) -> Call:
    attributes: Attributes = {
        "openinference.span.kind": "LLM",
        "llm.model_name": "m",
        "input.value": json.dumps(request),
        "output.value": json.dumps(response),
        **said,
    }
    span = SpanRow("1" * 32, "2" * 16, "ChatCompletion", 1, 9, attributes=attributes)
    with Store.open(DataDir(directory), create=True) as store:
        store.append([span])
        [run] = store.trajectories()
    [placed] = run.calls
    assert run.unread == {}
    return placed.call


def chat(*choices: dict[str, Any]) -> dict[str, Any]:
    return {"id": "c1", "object": "chat.completion", "model": "m", "choices": choices}


def one(reason: str, **message: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": reason, "message": {"role": "assistant", "content": None, **message}}


def test_each_of_several_answers_has_its_own_reason_to_end(tmp_path: Path) -> None:
    response = chat(one("length", content="cut"), {**one("stop", content="whole"), "index": 1})
    said = {
        f"{ASKED}.role": "user",
        f"{ASKED}.content": "what is x?",
        "llm.finish_reason": "length",
        f"{SAID}.role": "assistant",
        f"{SAID}.content": "cut",
        "llm.output_messages.1.message.role": "assistant",
        "llm.output_messages.1.message.content": "whole",
    }
    call = read(tmp_path, {"messages": [QUESTION], "n": 2}, response, **said)
    assert [(choice.message.text, choice.finish_reason) for choice in call.choices] == [
        ("cut", "length"),
        ("whole", "stop"),
    ]
    assert call.response_id == "c1"


CUSTOM = {"id": "c2", "type": "custom", "custom": {"name": "run", "input": "ls -l"}}
FUNCTION = {"name": "look", "arguments": '{"q": "x"}'}
ANSWERS: dict[str, tuple[dict[str, Any], Attributes, tuple[Any, ...]]] = {
    "a refusal": (one("stop", refusal="I cannot."), {}, (OtherPart({"type": "refusal", "refusal": "I cannot."}),)),
    "a custom tool": (
        one("tool_calls", tool_calls=[CUSTOM]),
        {f"{SAID}.tool_calls.0.tool_call.id": "c2"},
        (ToolCallPart("run", "ls -l", "c2"),),
    ),
    "a function": (
        one("function_call", function_call=FUNCTION),
        {f"{SAID}.function_call_name": "look", f"{SAID}.function_call_arguments_json": FUNCTION["arguments"]},
        (ToolCallPart("look", FUNCTION["arguments"]),),
    ),
    "thoughts": (
        one("stop", content="3", reasoning_content="Hm."),
        {f"{SAID}.content": "3"},
        (ReasoningPart("Hm."), TextPart("3")),
    ),
}


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("kind", ANSWERS)
def test_an_answer_is_all_that_the_model_said(kind: str, streamed: bool, tmp_path: Path) -> None:
    choice, said, parts = ANSWERS[kind]
    response = chat(choice) | ({"object": "chat.completion.chunk"} if streamed else {})
    attributes = {f"{ASKED}.role": "user", f"{ASKED}.content": "what is x?", f"{SAID}.role": "assistant", **said}
    call = read(tmp_path, {"messages": [QUESTION], "functions": [{"name": "look"}]}, response, **attributes)
    assert [answer.message for answer in call.choices] == [Message("assistant", parts)]
    assert call.tools == ({"type": "function", "function": {"name": "look"}},)


def test_a_function_s_call_is_read_without_the_answer_beside_it(tmp_path: Path) -> None:
    _, said, parts = ANSWERS["a function"]
    [answer] = read(tmp_path, None, None, **{f"{SAID}.role": "assistant", **said, f"{ASKED}.role": "user"}).choices
    assert answer.message.parts == parts


def test_a_prompt_has_the_sound_and_the_thoughts_that_were_sent(tmp_path: Path) -> None:
    sound = {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}
    request = [
        {"role": "user", "content": [{"type": "text", "text": "what?"}, sound]},
        {"role": "assistant", "content": None, "reasoning_content": "Hm.", "tool_calls": [CUSTOM]},
        {"role": "tool", "tool_call_id": "c2", "content": "files"},
    ]
    said = {
        f"{ASKED}.role": "user",
        f"{ASKED}.contents.0.message_content.type": "text",
        f"{ASKED}.contents.0.message_content.text": "what?",
        "llm.input_messages.1.message.role": "assistant",
        "llm.input_messages.1.message.tool_calls.0.tool_call.id": "c2",
        "llm.input_messages.2.message.role": "tool",
        "llm.input_messages.2.message.tool_call_id": "c2",
        "llm.input_messages.2.message.content": "files",
        f"{SAID}.role": "assistant",
        f"{SAID}.content": "done",
    }
    call = read(tmp_path / "whole", {"messages": request}, chat(one("stop", content="done")), **said)
    assert [message.parts for message in call.messages] == [
        (TextPart("what?"), OtherPart(sound)),
        (ReasoningPart("Hm."), ToolCallPart("run", "ls -l", "c2")),
        (ToolResultPart("files", "c2"),),
    ]
    hidden = {**said, f"{ASKED}.contents.0.message_content.text": "__REDACTED__"}
    call = read(tmp_path / "hidden", {"messages": request}, chat(one("stop", content="done")), **hidden)
    assert call.messages[0].parts == (TextPart("__REDACTED__"),)


def test_legacy_completions_are_prompts_and_texts(tmp_path: Path) -> None:
    texts = [{"index": 0, "text": " a", "finish_reason": "length"}, {"index": 1, "text": " b", "finish_reason": "stop"}]
    said = {
        "llm.prompts.0.prompt.text": "Once",
        "llm.choices.0.completion.text": " a",
        "llm.choices.1.completion.text": " b",
        "llm.finish_reason": "length",
    }
    call = read(tmp_path, {"prompt": "Once", "n": 2}, {"object": "text_completion", "choices": texts}, **said)
    assert list(call.messages) == [Message("user", (TextPart("Once"),))]
    assert [(choice.message.text, choice.finish_reason) for choice in call.choices] == [
        (" a", "length"),
        (" b", "stop"),
    ]
