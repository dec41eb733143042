"""Calls of the Responses API in the traces of other systems, as the wrappers of OpenAI's client of Langfuse (5.0.4,
openai.py), LangSmith (wrappers/_openai.py) and Braintrust (0.48.1, integrations/openai) write them: items in the place
of messages, and the items of the answer in the place of a choice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from system_files import lines, read

from arttrace.records.message import OtherPart, ReasoningPart, TextPart, ToolCallPart, ToolResultPart

TIME = "2026-11-22T22:01:0{}.000000+00:00"
TRACE = "aaaaaaaa-0000-0000-0000-000000000001"
HIDDEN = {"type": "reasoning", "id": "rs", "summary": []}
THOUGHT = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "I look."}]}
ASKS = {"type": "function_call", "id": "fc", "call_id": "c1", "name": "find", "arguments": '{"q":"x"}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "there"}
SAYS = {
    "type": "message", "id": "m", "status": "completed", "role": "assistant",
    "content": [{"type": "output_text", "text": "There.", "annotations": []}],
}  # fmt: skip
TOOL = {"type": "function", "name": "find", "parameters": {"type": "object", "properties": {}}}
ASKED = [{"role": "user", "content": [{"type": "input_text", "text": "Where?"}]}, HIDDEN, ASKS, RESULT]
CALL, RESULT_PART = ToolCallPart("find", '{"q":"x"}', "c1"), ToolResultPart("there", "c1")


def langfuse(first: list[Any], second: list[Any]) -> list[Any]:
    def generation(at: int, given: Any, output: Any) -> dict[str, Any]:
        return {
            "id": f"{at}" * 16, "type": "GENERATION", "name": "OpenAI-generation", "model": "gpt-5", "input": given,
            "startTime": TIME.format(at), "endTime": TIME.format(at + 1), "output": output,
        }  # fmt: skip

    given = [{"role": "system", "content": "Be brief."}, *ASKED]
    return [
        {
            "id": "1" * 32,
            "observations": [
                generation(1, {"input": "Where?", "instructions": "Be brief.", "tools": [TOOL]}, first),
                generation(2, {"input": given, "tools": [TOOL]}, second[0] if len(second) == 1 else second),
            ],
        }
    ]


def langsmith(first: list[Any], second: list[Any]) -> list[Any]:
    def run(at: int, given: Any, output: list[Any]) -> dict[str, Any]:
        return {
            "id": f"{TRACE[:-1]}{at}", "trace_id": TRACE, "run_type": "llm", "name": "ChatOpenAI",
            "parent_run_id": None, "start_time": TIME.format(at), "end_time": TIME.format(at + 1),
            "inputs": {"input": given, "instructions": "Be brief.", "model": "gpt-5", "tools": [TOOL]},
            "outputs": {"id": f"resp_{at}", "object": "response", "status": "completed", "output": output},
        }  # fmt: skip

    return [run(1, "Where?", first), {**run(2, ASKED, second), "parent_run_id": f"{TRACE[:-1]}1"}]


def braintrust(first: list[Any], second: list[Any]) -> list[Any]:
    def row(at: int, given: Any, output: list[Any]) -> dict[str, Any]:
        return {
            "root_span_id": "r", "span_id": f"s{at}", "id": f"s{at}", "span_parents": None if at == 1 else ["s1"],
            "created": TIME.format(at), "metrics": {"start": 1.77e9 + at, "end": 1.77e9 + at + 1}, "input": given,
            "output": output, "span_attributes": {"type": "llm", "name": "Response"},
            "metadata": {"model": "gpt-5", "instructions": "Be brief.", "tools": [TOOL]},
        }  # fmt: skip

    return [row(1, "Where?", first), row(2, ASKED, second)]


@pytest.mark.parametrize("written_by", [langfuse, langsmith, braintrust])
def test_items_are_messages_and_those_of_an_answer_are_one(written_by: Callable[..., list[Any]]) -> None:
    found, [run] = read(lines(*written_by([THOUGHT, ASKS], [SAYS])))
    assert (found.unread, run.incomplete) == ({}, "")
    first, second = (placed.call for placed in run.calls)
    assert [(one.role, one.text) for one in first.messages] == [("system", "Be brief."), ("user", "Where?")]
    assert [choice.message.parts for choice in first.choices] == [(ReasoningPart("I look."), CALL)]
    assert [(one.role, one.parts) for one in second.messages] == [
        ("system", (TextPart("Be brief."),)),
        ("user", (TextPart("Where?"),)),
        ("assistant", (OtherPart(HIDDEN), CALL)),
        ("tool", (RESULT_PART,)),
    ]
    assert [choice.message.parts for choice in second.choices] == [(TextPart("There."),)]
    assert [(tool.name, tool.result) for tool in run.tool_calls] == [("find", "there")]
    assert [tool["function"]["name"] for tool in second.tools] == ["find"]


ANSWER = {"role": "assistant", "content": "yo"}
OTHER = {"answer": 42, "type": "final"}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ({"choices": [{"message": ANSWER, "finish_reason": "length"}]}, [("length", TextPart("yo"))]),
        ([ANSWER, {**ANSWER, "content": "ya"}], [(None, TextPart("yo")), (None, TextPart("ya"))]),
        ({"object": "response", "status": "completed", "output": [SAYS]}, [("stop", TextPart("There."))]),
        (ASKS, [(None, CALL)]),
        ([{"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "x"}}], [(None, CALL)]),
        (OTHER, [(None, OtherPart({"type": "output", "output": OTHER}))]),
    ],
)
def test_what_a_program_gave_langfuse_as_an_output_is_an_answer_that_is_not_empty(output: Any, expected: Any) -> None:
    """Whole responses, their items or blocks, or an object of the program's own, as `update(output=...)` takes them."""
    [trace] = langfuse([], [])
    trace["observations"] = [
        {**trace["observations"][0], "input": [{"role": "user", "content": "hi"}], "output": output}
    ]
    _, [run] = read(lines(trace))
    [placed] = run.calls
    assert [(one.finish_reason, one.message.parts[0]) for one in placed.call.choices] == expected


@pytest.mark.parametrize("written_by", [langfuse, langsmith, braintrust])
def test_an_answer_that_was_cut_says_so(written_by: Callable[..., list[Any]]) -> None:
    items = written_by([THOUGHT, ASKS], [{**SAYS, "status": "incomplete"}])
    if written_by is langsmith:
        items[1]["outputs"] |= {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    _, [run] = read(lines(*items))
    reasons = [choice.finish_reason for placed in run.calls for choice in placed.call.choices]
    assert reasons[-1] == ("length" if written_by is langsmith else "incomplete")
