"""A tool loop with a client of each API gives one and the same conversation, whichever SDK recorded it
(data/make_loops.py): what a model wrote in one go is one message, each result of a tool is one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arttrace.formats.imported_files import read_file
from arttrace.formats.sdks import langsmith
from arttrace.formats.sdks.openai_messages import answers, inputs
from arttrace.records.message import ReasoningPart
from arttrace.records.trajectory import Relation, Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.conversations import chat_message, conversations, unsupported

DATA = Path(__file__).parent / "data"
NAMES = ["anthropic_openllmetry", "anthropic_openllmetry_old", "anthropic_openinference", "anthropic_openinference_old"]
NAMES += [
    "responses_openllmetry",
    "responses_openinference",
    "responses_genai",
    "gemini_openllmetry",
    "gemini_openinference",
]
NAMES += ["bedrock_openllmetry", "bedrock_openinference"]
WITHOUT_THOUGHTS = ("anthropic_openinference_old", "responses_openllmetry")
"""They leave thoughts out of what a program sends back."""
WITHOUT_THOUGHTS_OF_ANSWERS = ("responses_genai",)
"""They have them there, and not in the answer."""
CALLS: dict[str, dict[str, Any]] = {"look": {"q": "x"}, "add": {"a": 1, "b": 2}}


def stored(name: str, tmp_path: Path) -> Trajectory:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file((DATA / f"{name}.json").read_bytes(), name).records)
        [run] = store.trajectories()
    return run


def outline(chat: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Roles, texts, thoughts and tool calls, without ids; Gemini's results are objects."""
    return [
        (
            message["role"],
            message["content"].removeprefix('{"result": "').removesuffix('"}'),
            message.get("reasoning_content"),
            [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())],
        )
        for message in chat
    ]


def asked_again(thoughts: str | None) -> list[tuple[Any, ...]]:
    """The outline of what the model was asked after its tools had answered."""
    return [
        ("system", "You look things up.", None, []),
        ("user", "what is x?", None, []),
        ("assistant", "I look.", thoughts, [*CALLS.items()]),
        ("tool", "page x", None, []),
        ("tool", "3", None, []),
        ("user", "Go on.", None, []),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_a_tool_loop_is_one_conversation(name: str, tmp_path: Path) -> None:
    run = stored(name, tmp_path)
    assert (run.incomplete, run.unread, [placed.call.error for placed in run.calls]) == ("", {}, [None, None])
    first, second = run.calls
    assert second.related_to == first.call.span_id
    thoughts = None if name in WITHOUT_THOUGHTS else "Both at once."
    alike = thoughts and name not in WITHOUT_THOUGHTS_OF_ANSWERS
    assert second.relation == (Relation.EXTENDS if alike else Relation.TEMPLATE_DROPPED_REASONING)
    whole = conversations(run)[-1]
    assert outline(whole.chat()) == [*asked_again(thoughts), ("assistant", "x is 3.", None, [])]
    assert unsupported(whole) is None
    results = [message for message in whole.messages if message.role == "tool"]
    asked = whole.messages[2].tool_calls
    if all(call.id for call in asked):  # Gemini's calls have none
        assert [message.parts[0].id for message in results] == [call.id for call in asked]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", NAMES)
def test_an_answer_is_one_with_its_thoughts_and_its_tools(name: str, tmp_path: Path) -> None:
    run = stored(name, tmp_path)
    for placed in run.calls:
        assert len(placed.call.choices) == 1
        assert (placed.call.request_model, placed.call.input_tokens, placed.call.output_tokens) == ("m", 7, 5)
        assert [tool["function"]["name"] for tool in placed.call.tools] == [*CALLS]
    [answer] = run.calls[0].call.choices
    assert (ReasoningPart("Both at once.") in answer.message.parts) is (name not in WITHOUT_THOUGHTS_OF_ANSWERS)
    assert name != "responses_genai" or answer.end == "tool_calls"
    assert (answer.message.role, answer.message.text) == ("assistant", "I look.")
    assert [call.name for call in answer.message.tool_calls] == [*CALLS]
    results = [(call.result or "").removeprefix('{"result": "').removesuffix('"}') for call in run.tool_calls]
    assert [call.name for call in run.tool_calls] == [*CALLS]
    assert results == ["page x", "3"]


@pytest.mark.parametrize("sdk", ["openinference", "openllmetry", "langfuse", "langsmith"])
def test_a_tool_loop_of_langchain_has_each_tool_once(sdk: str, tmp_path: Path) -> None:
    """Its spans of tools hold the message that LangChain made of a result, by whose id the call that asked is known."""
    run = stored(f"langchain_{sdk}", tmp_path)
    assert (run.incomplete, run.unread) == ("", {})
    assert [(call.id, call.name, call.result, call.inferred) for call in run.tool_calls] == [
        ("call_look", "look", "page x", False),
        ("call_add", "add", "3", False),
    ]
    [*_, asked, _, _] = run.calls[1].call.messages
    [*_, answered] = conversations(run)
    assert (asked.role, asked.text, [call.name for call in asked.tool_calls]) == ("assistant", "I look.", [*CALLS])
    assert [message["role"] for message in answered.chat()] == [
        "system",
        "user",
        "assistant",
        "tool",
        "tool",
        "assistant",
    ]
    assert unsupported(answered) is None


def test_what_litellm_writes_of_its_calls_is_read(tmp_path: Path) -> None:
    """By names of its own for asynchronous calls, with the tool calls beside the parts; each call is a trace."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file((DATA / "litellm.json").read_bytes(), "litellm").records)
        runs = store.trajectories()
    assert [(run.incomplete, run.unread, len(run.calls)) for run in runs] == [("", {}, 1)] * 2
    [first], [second] = (run.calls for run in runs)
    [answer] = first.call.choices
    assert (answer.message.text, [call.name for call in answer.message.tool_calls]) == ("I look.", [*CALLS])
    assert [json.loads(call.arguments) for call in answer.message.tool_calls] == [*CALLS.values()]
    assert outline([chat_message(message) for message in second.call.messages]) == asked_again(None)
    assert (first.call.request_model, first.call.input_tokens, len(first.call.tools)) == ("m", 7, 2)


def test_the_arguments_of_langchains_tool_calls_are_read() -> None:
    asked = {"role": "assistant", "content": "", "tool_calls": [{"name": "look", "args": {"q": "x"}, "id": "c1"}]}
    [message] = json.loads(inputs([asked]))
    assert message["parts"] == [{"type": "tool_call", "name": "look", "arguments": '{"q":"x"}', "id": "c1"}]


def test_a_tool_call_of_langchains_whose_arguments_are_no_json_is_one() -> None:
    """It puts those apart from the others, where the answer was read without, in Langfuse too."""
    message = {"type": "ai", "content": "", "tool_calls": [], "response_metadata": {"finish_reason": "tool_calls"}}
    invalid = {"type": "invalid_tool_call", "id": "c1", "name": "look", "args": '{"q": ', "error": "no JSON"}
    output = {"generations": [[{"text": "", "message": {**message, "invalid_tool_calls": [invalid]}}]]}
    read = langsmith.call({"messages": [[{"type": "human", "content": "what is x?"}]]}, output, {}, {})
    [answer] = json.loads(read["gen_ai.output.messages"])
    asked = {"type": "tool_call", "name": "look", "arguments": '{"q": ', "id": "c1"}
    assert answer["parts"] == [asked]
    [said] = json.loads(answers([{"role": "assistant", "content": "Hm.", "invalid_tool_calls": [invalid]}]))
    assert said["parts"] == [{"type": "text", "content": "Hm."}, asked]


def test_what_langchain_keeps_of_the_responses_api_among_an_answers_parts_is_read() -> None:
    content = [
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "Both at once."}]},
        {"type": "text", "text": "I look.", "annotations": [], "id": "m1"},
        {"type": "function_call", "call_id": "c1", "id": "fc_1", "name": "look", "arguments": '{"q": "x"}'},
    ]
    calls = [{"type": "tool_call", "id": "c1", "name": "look", "args": {"q": "x"}}]
    asked = {"type": "ai", "content": content, "tool_calls": calls}
    given = {"messages": [[{"type": "human", "content": "what is x?"}, asked]]}
    for read in (
        json.loads(langsmith.call(given, {}, {}, {})["gen_ai.input.messages"])[1],
        json.loads(inputs([{**asked, "role": "assistant"}]))[0],
    ):
        assert read["parts"] == [
            {"type": "reasoning", "content": "Both at once."},
            {"type": "text", "content": "I look."},
            {"type": "tool_call", "name": "look", "arguments": '{"q":"x"}', "id": "c1"},
        ]
