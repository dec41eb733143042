"""Trajectories of SWE-agent and mini-swe-agent: every call of a model with what it was given, and no other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from system_files import SWE, read

from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory


def said(run: Trajectory) -> list[tuple[list[str], str, tuple[str, ...], str | None]]:
    """Of each call the texts that it was given, its text, its tools, and why it ended."""
    found = []
    for placed in run.calls:
        [choice] = placed.call.choices
        given = [message.text for message in placed.call.messages]
        found.append((given, choice.message.text, tuple(one.name for one in choice.message.tool_calls), choice.end))
    return found


def entry(role: str, content: Any, kind: str, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, "agent": "main", "message_type": kind, **more}


def step(query: list[Any], response: str, **more: Any) -> dict[str, Any]:
    return {
        "action": "x", "observation": "", "response": response, "thought": response, "execution_time": 0.1,
        "state": {}, "query": query, "extra_info": {}, **more,
    }  # fmt: skip


SYSTEM, TASK = entry("system", "You program.", "system_prompt"), entry("user", "Fix it.", "observation")
LOOK, SEEN = entry("assistant", "Look: ls", "action", action="ls"), entry("user", "a.py, b.py", "observation")
EDIT, DONE = entry("assistant", "Edit: vi", "action", action="vi"), entry("user", "saved", "observation")
EXIT = entry("assistant", "Exit due to cost limit", "action", action="")
OMITTED = entry("user", "Old environment output: (1 lines omitted)", "observation")
CACHED = entry("user", [{"type": "text", "text": "Fix it.", "cache_control": {"type": "ephemeral"}}], "observation")
AGAIN = [entry("assistant", "Look!", "assistant"), entry("user", "Write a command.", "user")]
HISTORY = [SYSTEM, TASK, LOOK, SEEN, EDIT, DONE, EXIT, entry("user", "Exited", "observation")]
STEPS = [
    step([SYSTEM, CACHED], "Look!"),
    step([SYSTEM, TASK, *AGAIN], "Look: ls"),
    step([SYSTEM, TASK, LOOK, OMITTED], "Edit: vi"),
    step([{}], "Exit due to cost limit", action=""),
]
INFO = {"exit_status": "submitted (exit_cost)", "submission": "diff", "model_stats": {"api_calls": 3}}


def test_what_swe_agent_s_model_was_given_is_in_its_steps() -> None:
    """Its history holds neither what it left out of a prompt, nor what it asked again for, and holds its own words."""
    found, [run] = read(
        json.dumps({"environment": "repo-1", "trajectory": STEPS, "history": HISTORY, "info": INFO}).encode()
    )
    start = ["You program.", "Fix it."]
    assert said(run) == [
        (start, "Look!", (), None),
        ([*start, "Look!", "Write a command."], "Look: ls", (), None),
        ([*start, "Look: ls", "Old environment output: (1 lines omitted)"], "Edit: vi", (), None),
    ]
    assert (run.incomplete, found.left_out) == ("", {})


def test_an_exit_of_a_file_without_prompts_is_no_answer() -> None:
    steps = [{name: value for name, value in one.items() if name != "query"} for one in STEPS]
    _, [run] = read(json.dumps({"trajectory": steps, "history": HISTORY, "info": INFO}).encode())
    assert [text for _, text, _, _ in said(run)] == ["Look: ls", "Edit: vi"]


def test_an_answer_that_was_asked_for_again_and_lost_its_tool_calls_is_counted() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
    look = {**LOOK, "tool_calls": [call]}
    steps = [step([SYSTEM, TASK], "Look!"), step([SYSTEM, TASK, *AGAIN], "Look: ls")]
    result = entry("tool", "a.py", "observation", tool_call_ids=["c1"])
    found, [run] = read(
        json.dumps({"trajectory": steps, "history": [SYSTEM, TASK, look, result], "info": INFO}).encode()
    )
    assert [(text, tools) for _, text, tools, _ in said(run)] == [("Look: ls", ("ls",))]
    assert found.left_out == {"answers that were asked for again, kept without their tool calls": 1}


def test_thinking_blocks_are_reasoning() -> None:
    thinking = [{"type": "thinking", "thinking": "Where?", "signature": "x"}]
    _, [run] = read(
        json.dumps({"history": [SYSTEM, TASK, {**LOOK, "thinking_blocks": thinking}], "info": INFO}).encode()
    )
    assert [part.content for part in run.calls[0].call.choices[0].message.parts] == ["Where?", "Look: ls"]


@pytest.mark.parametrize("is_chosen", [True, False])
def test_each_attempt_is_a_run_of_the_task(is_chosen: bool) -> None:
    def attempt(text: str, status: str) -> dict[str, Any]:
        return {
            "history": [SYSTEM, TASK, {**LOOK, "content": text}],
            "info": {"exit_status": status},
            "environment": "r",
        }

    attempts = [attempt("One", "exit_cost"), attempt("Two", "submitted")]
    chosen = {**attempts[1], "info": {"exit_status": "submitted", "best_attempt_idx": 1}, "resolved": True}
    item = {"attempts": attempts, **(chosen if is_chosen else {})}
    found, runs = read(json.dumps(item).encode())
    assert sorted(said(run)[0][1] for run in runs) == ["One", "Two"]
    assert {run.scenario for run in runs} == {"file/r"}
    rewarded = [one.trajectory_id for one in found.records if isinstance(one, Reward)]
    assert rewarded == ([run.id for run in runs if said(run)[0][1] == "Two"] if is_chosen else [])


MINI = {
    "trajectory_format": "mini-swe-agent-1.1", "instance_id": "repo-2",
    "info": {"exit_status": "Submitted", "submission": "d", "config": {"model": {"model_name": "m"}}},
}  # fmt: skip
BASH = {"name": "bash", "arguments": '{"command": "ls"}'}


def mini(*messages: dict[str, Any]) -> bytes:
    opening = [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]
    return json.dumps({**MINI, "messages": [*opening, *messages, {"role": "exit", "content": "d"}]}).encode()


def completion(content: str | None, reason: str, calls: list[Any] | None = None) -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "tool_calls": calls}
    choices = [{"index": 0, "finish_reason": reason, "message": message}]
    return {"id": "r1", "model": "m-1", "choices": choices, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}


def test_mini_swe_agent_says_when_and_why_an_answer_ended() -> None:
    cut = completion("I would", "length")
    answer = {**cut["choices"][0]["message"], "extra": {"response": cut, "actions": [], "timestamp": 1_790_000_000.5}}
    _, [run] = read(mini(answer, {"role": "user", "content": "<returncode>0</returncode>"}))
    assert said(run) == [(["s", "u"], "I would", (), "length")]
    assert run.calls[0].call.end_ns == 1_790_000_000_500_000_000


def test_an_answer_that_mini_swe_agent_could_not_parse_is_a_call() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "unknown", "arguments": "{}"}}
    refused = completion(None, "tool_calls", [call])
    error = {"role": "user", "content": "Unknown tool", "extra": {"interrupt_type": "FormatError", "response": refused}}
    good = {"role": "assistant", "content": "ls", "extra": {"response": completion("ls", "stop"), "actions": []}}
    _, [run] = read(mini(error, good))
    assert said(run) == [(["s", "u"], "", ("unknown",), "tool_calls"), (["s", "u", "Unknown tool"], "ls", (), "stop")]
    assert [placed.call.input_tokens for placed in run.calls] == [7, 7]
    error["extra"]["response"] = "ModelResponse(id='r1')"
    found, [run] = read(mini(error, good))
    assert len(run.calls) == 1
    assert found.left_out == {"answers that could not be parsed, kept as no JSON": 1}


def test_mini_swe_agent_with_the_responses_api() -> None:
    def response(*output: dict[str, Any], **more: Any) -> dict[str, Any]:
        usage = {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12}
        return {"id": "r1", "object": "response", "model": "m-1", "status": "completed", "output": list(output),
                "usage": usage, **more}  # fmt: skip

    def text(words: str) -> dict[str, Any]:
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": words}]}

    used = {"type": "function_call", "call_id": "c1", **BASH}
    result = {"type": "function_call_output", "call_id": "c1", "output": "a.py", "extra": {"timestamp": 1.79e9 + 1}}
    refused = response(text("Hm."))
    told = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Call a tool."}],
            "extra": {"interrupt_type": "FormatError", "response": refused}}  # fmt: skip
    last = response(text("Done."), {**used, "call_id": "c2"}, status="incomplete",
                    incomplete_details={"reason": "max_output_tokens"}, extra={"timestamp": 1.79e9 + 2})  # fmt: skip
    _, [run] = read(mini(response(used, extra={"timestamp": 1.79e9}), result, told, last))
    assert said(run) == [
        (["s", "u"], "", ("bash",), "tool_calls"),
        (["s", "u", "", ""], "Hm.", (), "stop"),
        (["s", "u", "", "", "Call a tool."], "Done.", ("bash",), "length"),
    ]
    assert [(tool.name, tool.result) for tool in run.tool_calls] == [("bash", "a.py"), ("bash", None)]
    assert (run.calls[0].call.input_tokens, run.calls[0].call.response_model, run.incomplete) == (9, "m-1", "")
    assert (run.scenario, run.result) == ("file/repo-2", "d")


def test_a_demonstration_stays_context() -> None:
    _, [run] = read(json.dumps(SWE).encode())
    assert [text for _, text, _, _ in said(run)] == ["Look.", "Done."]
