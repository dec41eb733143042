"""One run of two agents, with a tool and a call that failed, as each system exports it: all that it says is read."""

from __future__ import annotations

import json
from typing import Any

import pytest
from reported_runs import BEGAN, shown
from system_files import SESSION, SUB_AGENT, TIME, event, lines, spoken

FIND: dict[str, Any] = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}
ASKED = {"role": "user", "content": "Where?"}
CALLED = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q":"x"}'}}
WHOLE: dict[str, Any] = {
    "project": "file", "time": (0.0, 9.0), "tags": ("prod",), "metadata": {"user": "ada"},
    "arguments": {"q": "Where?"}, "result": "There.", "agents": [("agent", None), ("sub", "agent")],
    "calls": [
        {
            "agent": "agent", "time": (1.0, 3.0), "models": ("gpt-x",), "temperature": 0.5, "most": 50,
            "provider": "openai", "offered": ["find"], "asked": ["user: Where?"],
            "answers": [("tool_calls", 'assistant: [c1 find {"q":"x"}]')],
            "tokens": {"input": 9, "output": 4, "read": 5, "written": 1, "reasoning": 2},
        },
        {
            "agent": "sub", "time": (5.0, 6.0), "models": ("gpt-x",), "asked": ["user: x"],
            "error": "RateLimitError: slow",
        },
    ],
    "tools": [("c1", "agent", "find", '{"q":"x"}', "there", None, (3.0, 4.0))],
    "rewards": [("good", 0.5, "judge", None, "so", 20.0)],
}  # fmt: skip
AGENTS_CALL = WHOLE["calls"][0]


def called(**other: Any) -> list[dict[str, Any]]:
    """The calls, where a system says other things of the first."""
    first = {name: value for name, value in {**AGENTS_CALL, **other}.items() if value is not None}
    return [first, WHOLE["calls"][1]]


# --- Langfuse -------------------------------------------------------------------------------------------------


def observation(id: str, kind: str, parent: str | None, at: int, to: int, **more: Any) -> dict[str, Any]:
    times = {"startTime": TIME.format(at), "endTime": TIME.format(to), "completionStartTime": None}
    return {
        "id": id, "traceId": "tr-1", "type": kind, "parentObservationId": parent, "level": "DEFAULT",
        "statusMessage": None, "version": None, "modelParameters": None, "metadata": {}, **times, **more,
    }  # fmt: skip


LANGFUSE = {
    "id": "tr-1", "name": "agent", "timestamp": TIME.format(0), "input": ASKED, "output": "There.", "sessionId": "s1",
    "userId": "u1", "release": "v1", "environment": "production", "tags": ["prod"], "metadata": {"user": "ada"},
    "observations": [
        observation("o-1", "AGENT", None, 0, 9, name="agent", input={"q": "Where?"}, output="There."),
        observation(
            "o-2", "GENERATION", "o-1", 1, 3, name="chat", model="gpt-x", input={"messages": [ASKED], "tools": [FIND]},
            output={"role": "assistant", "content": "", "tool_calls": [CALLED]},
            modelParameters={"temperature": 0.5, "max_tokens": 50},
            usageDetails={
                "input": 3, "input_cached_tokens": 5, "input_cache_creation": 1, "output": 2,
                "output_reasoning_tokens": 2, "total": 13,
            },
        ),
        observation("o-3", "TOOL", "o-1", 3, 4, name="find", input={"q": "x"}, output="there"),
        observation("o-4", "AGENT", "o-1", 4, 7, name="sub", input="x", output="y"),
        observation(
            "o-5", "GENERATION", "o-4", 5, 6, name="chat", model="gpt-x", input=[{"role": "user", "content": "x"}],
            output=None, level="ERROR", statusMessage="RateLimitError: slow",
        ),
    ],
    "scores": [
        {
            "id": "sc1", "traceId": "tr-1", "observationId": None, "name": "good", "value": 0.5, "dataType": "NUMERIC",
            "source": "EVAL", "comment": "so", "timestamp": TIME.format(20),
        },
        {
            "id": "sc2", "traceId": "tr-1", "observationId": "o-4", "name": "fine", "value": 1, "dataType": "BOOLEAN",
            "source": "API", "timestamp": TIME.format(21),
        },
    ],
}  # fmt: skip


def test_langfuse() -> None:
    found, [run] = shown(lines(LANGFUSE))
    assert (found.left_out, found.unread) == ({}, {})
    named = {"user_id": "u1", "session_id": "s1", "release": "v1"}
    assert run == {
        **{name: value for name, value in WHOLE.items() if name != "project"},
        "metadata": {"user": "ada", **named},
        "calls": called(provider=None, answers=[(None, 'assistant: [c1 find {"q":"x"}]')]),
        "rewards": [*WHOLE["rewards"], ("fine", 1.0, "code", "sub", "", 21.0)],
    }


# --- LangSmith ------------------------------------------------------------------------------------------------

IDS = [f"{n}0000000-0000-4000-8000-000000000000" for n in range(6)]


def langsmith(number: int, kind: str, parent: int | None, at: int, to: int, **more: Any) -> dict[str, Any]:
    return {
        "id": IDS[number], "trace_id": IDS[1], "parent_run_id": None if parent is None else IDS[parent],
        "run_type": kind, "start_time": TIME.format(at)[:-1], "end_time": TIME.format(to)[:-1], "status": "success",
        "error": None, "dotted_order": "x", "session_name": "file", **more,
    }  # fmt: skip


def constructor(name: str, **fields: Any) -> dict[str, Any]:
    return {"lc": 1, "type": "constructor", "id": ["langchain", "schema", "messages", name], "kwargs": fields}


SAID = constructor(
    "AIMessage", content="", type="ai", tool_calls=[{"id": "c1", "name": "find", "args": {"q": "x"}}],
    usage_metadata={
        "input_tokens": 9, "output_tokens": 4, "total_tokens": 13,
        "input_token_details": {"cache_read": 5, "cache_creation": 1}, "output_token_details": {"reasoning": 2},
    },
    response_metadata={"model_name": "gpt-x-2026", "id": "chatcmpl-9", "finish_reason": "tool_calls"},
)  # fmt: skip
TOOL_MESSAGE = {"content": "there", "type": "tool", "tool_call_id": "c1", "status": "success"}
FEEDBACK = {
    "id": "f1", "key": "good", "score": 0.5, "comment": "so", "feedback_source": {"type": "model"},
    "created_at": TIME.format(20),
}  # fmt: skip


@pytest.mark.parametrize("output", [TOOL_MESSAGE, constructor("ToolMessage", **TOOL_MESSAGE)], ids=["plain", "lc"])
def test_langsmith(output: dict[str, Any]) -> None:
    runs = [
        langsmith(
            1, "chain", None, 0, 9, name="agent", inputs={"q": "Where?"}, outputs={"a": "There."}, tags=["prod"],
            extra={"metadata": {"user": "ada"}}, reference_example_id="ex-1", feedback=[FEEDBACK],
            feedback_stats={"good": {"n": 1, "avg": 0.5}},
        ),
        langsmith(
            2, "llm", 1, 1, 3, name="ChatOpenAI",
            inputs={"messages": [[constructor("HumanMessage", content="Where?", type="human")]]},
            outputs={
                "generations": [[{"text": "", "generation_info": {"finish_reason": "tool_calls"}, "message": SAID}]],
                "llm_output": {"model_name": "gpt-x-2026"},
            },
            extra={
                "metadata": {"ls_model_name": "gpt-x", "ls_provider": "openai"},
                "invocation_params": {"model": "gpt-x", "temperature": 0.5, "max_tokens": 50, "tools": [FIND]},
            },
            prompt_tokens=9, completion_tokens=4,
        ),
        langsmith(3, "tool", 1, 3, 4, name="find", inputs={"input": "{'q': 'x'}"}, outputs={"output": output}),
        langsmith(
            5, "llm", 1, 5, 6, name="ChatOpenAI", inputs={"messages": [{"role": "user", "content": "x"}]},
            outputs=None, error="RateLimitError: slow", extra={"metadata": {"ls_model_name": "gpt-x"}},
        ),
    ]  # fmt: skip
    found, [run] = shown(lines(*runs))
    assert (found.left_out, found.unread) == ({}, {})
    first, failed = called(models=("gpt-x", "gpt-x-2026"), id="chatcmpl-9")
    assert run == {
        **WHOLE, "result": {"a": "There."}, "scenario": "ex-1", "agents": [("agent", None)],
        "calls": [first, {**failed, "agent": "agent"}],
    }  # fmt: skip


# --- Braintrust -----------------------------------------------------------------------------------------------


def braintrust(id: str, kind: str, parent: str | None, at: int, to: int, **more: Any) -> dict[str, Any]:
    counts = more.pop("metrics", {})
    return {
        "id": f"row-{id}", "span_id": id, "root_span_id": "r", "span_parents": parent and [parent], "project_id": "p",
        "created": TIME.format(0), "metrics": {"start": BEGAN + at, "end": BEGAN + to, **counts}, "error": None,
        "is_root": parent is None, "span_attributes": {"name": more.pop("name"), "type": kind}, **more,
    }  # fmt: skip


def test_braintrust() -> None:
    rows = [
        braintrust(
            "r", "task", None, 0, 9, name="agent", input={"q": "Where?"}, output="There.", expected="There",
            tags=["prod"], metadata={"user": "ada"}, scores={"good": 0.5, "none": None},
        ),
        braintrust(
            "c", "llm", "r", 1, 3, name="Chat Completion", input=[ASKED],
            output=[{"index": 0, "finish_reason": "tool_calls", "message": {"role": "assistant", "content": None,
                     "tool_calls": [CALLED]}}],
            metadata={"model": "gpt-x", "provider": "openai", "temperature": 0.5, "max_tokens": 50, "tools": [FIND]},
            metrics={
                "prompt_tokens": 9, "completion_tokens": 4, "tokens": 13, "prompt_cached_tokens": 5,
                "prompt_cache_creation_tokens": 1, "completion_reasoning_tokens": 2, "time_to_first_token": 0.4,
            },
        ),
        braintrust(
            "t", "tool", "r", 3, 4, name="find", input={"q": "x"}, output="there", metadata={"tool_call_id": "c1"},
        ),
        braintrust(
            "e", "llm", "r", 5, 6, name="Chat Completion", input=[{"role": "user", "content": "x"}], output=None,
            error="RateLimitError: slow", metadata={"model": "gpt-x"},
        ),
    ]  # fmt: skip
    found, [run] = shown(lines(*rows))
    assert (found.left_out, found.unread) == ({}, {})
    first, failed = WHOLE["calls"]
    assert run == {
        **WHOLE, "metadata": {"user": "ada", "expected": "There"}, "agents": [("agent", None)],
        "calls": [first, {**failed, "agent": "agent"}], "rewards": [("good", 0.5, "code", None, "", 9.0)],
    }  # fmt: skip


# --- Weave ----------------------------------------------------------------------------------------------------


def weave(
    number: int, name: str, kind: str | None, parent: int | None, at: int, to: int, **more: Any
) -> dict[str, Any]:
    return {
        "id": IDS[number], "trace_id": IDS[1], "parent_id": None if parent is None else IDS[parent],
        "project_id": "file", "op_name": f"weave:///team/file/op/{name}:abc", "display_name": None, "exception": None,
        "started_at": TIME.format(at), "ended_at": TIME.format(to), "thread_id": None, "turn_id": None,
        "attributes": {"weave": {"kind": kind, "client_version": "0.54.0"}, **more.pop("attributes", {})},
        "summary": more.pop("summary", {}), "wb_run_id": None, "deleted_at": None, **more,
    }  # fmt: skip


def test_weave() -> None:
    raised = json.dumps({"type": "RateLimitError", "message": "slow", "traceback": []})
    given = {
        "id": "f1", "feedback_type": "wandb.annotation.good", "payload": {"value": 0.5}, "creator": "ada",
        "created_at": TIME.format(20),
    }  # fmt: skip
    calls = [
        weave(
            1, "agent", "agent", None, 0, 9, inputs={"q": "Where?"}, output="There.", attributes={"user": "ada"},
            summary={"weave": {"feedback": [given]}, "status_counts": {"success": 4, "error": 1}},
        ),
        weave(
            2, "openai.chat.completions.create", "llm", 1, 1, 3,
            inputs={
                "self": {"client": {"base_url": "https://api.openai.com/v1", "version": "3.51.0"}}, "model": "gpt-x",
                "messages": [ASKED], "temperature": 0.5, "max_tokens": 50, "tools": [FIND], "timeout": "NOT_GIVEN",
            },
            output={
                "id": "chatcmpl-9", "object": "chat.completion", "created": 1, "model": "gpt-x-2026",
                "choices": [{"index": 0, "finish_reason": "tool_calls",
                             "message": {"role": "assistant", "content": None, "tool_calls": [CALLED]}}],
                "usage": {
                    "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13,
                    "prompt_tokens_details": {"cached_tokens": 5, "cache_write_tokens": 1},
                    "completion_tokens_details": {"reasoning_tokens": 2},
                },
            },
        ),
        weave(3, "find", "tool", 1, 3, 4, inputs={"q": "x"}, output="there"),
        weave(4, "sub", "agent", 1, 4, 7, inputs={"q": "x"}, output="y"),
        weave(
            5, "openai.chat.completions.create", "llm", 4, 5, 6, exception=raised, output=None,
            inputs={"model": "gpt-x", "messages": [{"role": "user", "content": "x"}]},
        ),
    ]  # fmt: skip
    found, [run] = shown(lines(*calls))
    assert (found.left_out, found.unread) == ({}, {})
    assert run == {
        **{name: value for name, value in WHOLE.items() if name != "tags"},
        "calls": called(models=("gpt-x", "gpt-x-2026"), id="chatcmpl-9"),
        "rewards": [("good", 0.5, "code", None, "", 20.0)],
    }  # fmt: skip


# --- Phoenix --------------------------------------------------------------------------------------------------


def phoenix(id: str, kind: str, parent: str | None, at: int, to: int, **more: Any) -> dict[str, Any]:
    return {
        "name": kind, "context": {"trace_id": "ab" * 16, "span_id": id * 8}, "span_kind": kind,
        "parent_id": parent and parent * 8, "start_time": TIME.format(at), "end_time": TIME.format(to),
        "status_code": "OK", "status_message": "", "events": [], **more,
    }  # fmt: skip


def test_phoenix() -> None:
    note = {
        "id": "n1", "name": "good", "annotator_kind": "LLM", "result": {"score": 0.5, "explanation": "so"},
        "created_at": TIME.format(20),
    }  # fmt: skip
    out, call = "llm.output_messages.0.message", "llm.output_messages.0.message.tool_calls.0.tool_call"
    asked = {
        "llm.model_name": "gpt-x", "llm.provider": "openai", "llm.finish_reason": "tool_calls",
        "llm.invocation_parameters": '{"temperature": 0.5, "max_tokens": 50}',
        "llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Where?",
        f"{out}.role": "assistant", f"{call}.id": "c1", f"{call}.function.name": "find",
        f"{call}.function.arguments": '{"q":"x"}', "llm.tools.0.tool.json_schema": FIND,
        "llm.token_count.prompt": 9, "llm.token_count.completion": 4,
        "llm.token_count.prompt_details.cache_read": 5, "llm.token_count.prompt_details.cache_write": 1,
        "llm.token_count.completion_details.reasoning": 2,
    }  # fmt: skip
    tool = {"tool.name": "find", "tool_call.id": "c1", "input.value": '{"q":"x"}', "output.value": "there"}
    failed = {
        "llm.model_name": "gpt-x", "llm.input_messages.0.message.role": "user",
        "llm.input_messages.0.message.content": "x",
    }  # fmt: skip
    agent = {
        "input.value": '{"q": "Where?"}', "output.value": "There.", "tag.tags": ["prod"], "user.id": "u1",
        "metadata": '{"user": "ada"}',
    }  # fmt: skip
    spans = [
        phoenix("01", "AGENT", None, 0, 9, name="agent", attributes=agent, annotations=[note]),
        phoenix("02", "LLM", "01", 1, 3, attributes=asked),
        phoenix("03", "TOOL", "01", 3, 4, name="find", attributes=tool),
        phoenix("04", "AGENT", "01", 4, 7, name="sub", attributes={"input.value": "x", "output.value": "y"}),
        phoenix("05", "LLM", "04", 5, 6, attributes=failed, status_code="ERROR", status_message="RateLimitError: slow"),
    ]
    found, [run] = shown(lines(*spans))
    assert (found.left_out, found.unread) == ({}, {})
    assert run == {**WHOLE, "metadata": {"user": "ada", "user_id": "u1"}}


# --- coding agents --------------------------------------------------------------------------------------------


def test_claude_code() -> None:
    _, [run] = shown(lines(*SESSION, *SUB_AGENT))
    counts = {"input": 18, "output": 2, "read": 10, "written": 5}
    history = [
        "user: Read both.", 'assistant: (thinks Both.) [t1 Read {"path":"t1"}] [t2 Read {"path":"t2"}]',
        "tool: [t1 one]", "tool: [t2 two]",
    ]  # fmt: skip
    common = {"agent": "claude-code", "models": ("claude-x",), "tokens": counts}
    assert run == {
        "project": "claude-code", "scenario": "claude-code/s-1", "time": (1.0, 9.0), "result": "As before.",
        "metadata": {"session": "s-1", "version": "2.1.0", "gitBranch": "main"},
        "agents": [("claude-code", None), ("sub-agent", "claude-code")],
        "calls": [
            {**common, "id": "a1", "time": (1.0, 4.0), "asked": history[:1], "answers": [("stop", history[1])]},
            {
                **common, "agent": "sub-agent", "id": "b1", "time": (5.0, 6.0), "asked": ["user: You look."],
                "answers": [("stop", "assistant: Seen.")],
            },
            {
                **common, "id": "a2", "time": (6.0, 7.0), "asked": history,
                "answers": [("stop", "assistant: One and two.")],
            },
            {
                **common, "id": "a3", "time": (8.0, 9.0),
                "asked": [*history, "assistant: One and two.", "user: Again."],
                "answers": [("stop", "assistant: As before.")],
            },
        ],
        "tools": [
            ("t1", "claude-code", "Read", '{"path":"t1"}', "one", None, None),
            ("t2", "claude-code", "Read", '{"path":"t2"}', "two", None, None),
        ],
    }  # fmt: skip


def test_codex() -> None:
    meta = {"id": "c-1", "cwd": "/home/x", "cli_version": "0.100.0", "model_provider": "openai"}
    usage = {"input_tokens": 9, "cached_input_tokens": 5, "output_tokens": 4, "reasoning_output_tokens": 2}
    session = [
        event(0, "session_meta", **meta, base_instructions={"text": "You code."}),
        event(1, "turn_context", model="gpt-x", cwd="/home/x", effort="high"),
        spoken(1, "user", "List."),
        event(2, "response_item", type="reasoning", summary=[{"type": "summary_text", "text": "ls"}]),
        event(3, "response_item", type="function_call", name="exec", arguments='{"cmd":"ls"}', call_id="k1"),
        event(3, "event_msg", type="token_count", info={"last_token_usage": usage}),
        event(4, "response_item", type="function_call_output", call_id="k1", output="a.py"),
        spoken(6, "assistant", "There is one."),
    ]
    _, [run] = shown(lines(*session))
    called = 'assistant: (thinks ls) [k1 exec {"cmd":"ls"}]'
    assert run == {
        "project": "codex", "scenario": "codex/c-1", "time": (0.0, 6.0), "result": "There is one.",
        "metadata": {"session": "c-1", "cli_version": "0.100.0", "model_provider": "openai"},
        "agents": [("codex", None)],
        "calls": [
            {
                "agent": "codex", "time": (2.0, 3.0), "models": ("gpt-x",), "answers": [(None, called)],
                "asked": ["system: You code.", "user: List."],
                "tokens": {"input": 9, "output": 4, "read": 5, "reasoning": 2},
            },
            {
                "agent": "codex", "time": (6.0, 6.0), "models": ("gpt-x",),
                "asked": ["system: You code.", "user: List.", called, "tool: [k1 a.py]"],
                "answers": [(None, "assistant: There is one.")],
            },
        ],
        "tools": [("k1", "codex", "exec", '{"cmd":"ls"}', "a.py", None, None)],
    }  # fmt: skip


def test_mini_swe_agent() -> None:
    def answer(text: str, at: int, **usage: Any) -> dict[str, Any]:
        response = {"id": f"r{at}", "model": "m-2026", "created": BEGAN + at, "usage": usage}
        return {"role": "assistant", "content": text, "timestamp": BEGAN + at + 0.5, "extra": {"response": response}}

    item = {
        "trajectory_format": "mini-swe-agent-1.1", "instance_id": "repo-2", "resolved": True,
        "info": {
            "exit_status": "Submitted", "submission": "diff", "model_stats": {"api_calls": 2}, "mini_version": "1.9",
            "config": {"model": {"model_name": "m"}},
        },
        "messages": [
            {"role": "system", "content": "s", "timestamp": BEGAN},
            {"role": "user", "content": "u", "timestamp": BEGAN},
            answer("ls", 2, prompt_tokens=7, completion_tokens=2, prompt_tokens_details={"cached_tokens": 3}),
            {"role": "user", "content": "a.py", "timestamp": BEGAN + 4},
            answer("done", 6, prompt_tokens=9, completion_tokens=1),
        ],
    }  # fmt: skip
    _, [run] = shown(lines(item))
    common = {"agent": "swe-agent", "models": ("m", "m-2026")}
    asked = ["system: s", "user: u"]
    assert run == {
        "project": "file", "scenario": "file/repo-2", "time": (0.0, 6.5), "result": "diff",
        "metadata": {
            "exit_status": "Submitted", "submission": "diff", "model_stats": {"api_calls": 2}, "mini_version": "1.9"
        },
        "agents": [("swe-agent", None)],
        "calls": [
            {
                **common, "id": "r2", "time": (0.0, 2.5), "asked": asked, "answers": [(None, "assistant: ls")],
                "tokens": {"input": 7, "output": 2, "read": 3},
            },
            {
                **common, "id": "r6", "time": (4.0, 6.5), "asked": [*asked, "assistant: ls", "user: a.py"],
                "answers": [(None, "assistant: done")], "tokens": {"input": 9, "output": 1},
            },
        ],
        "rewards": [("resolved", 1.0, "code", None, "", 0.0)],
    }  # fmt: skip


# --- pairs, stored completions --------------------------------------------------------------------------------


def test_stored_completions() -> None:
    usage = {
        "prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13, "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }  # fmt: skip
    message = {"role": "assistant", "content": None, "tool_calls": [CALLED], "function_call": None}
    item = {
        "object": "chat.completion", "id": "chatcmpl-1", "model": "gpt-x", "created": BEGAN, "request_id": "req_1",
        "usage": usage, "temperature": 0.5, "top_p": 1.0, "seed": 7, "tools": [FIND], "service_tier": "default",
        "metadata": {"task_id": "t1", "user": "ada"},
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls", "logprobs": None}],
        "messages": {"object": "list", "data": [{"id": "chatcmpl-1-0", **ASKED, "name": None, "content_parts": None}]},
    }  # fmt: skip
    _, [run] = shown(lines(item))
    assert run == {
        "project": "file", "scenario": "file/t1", "metadata": {"task_id": "t1", "user": "ada"}, "time": (0.0, 1.0),
        "agents": [("agent", None)],
        "calls": [
            {
                "agent": "agent", "time": (0.0, 1.0), "models": ("gpt-x",), "id": "chatcmpl-1", "temperature": 0.5,
                "offered": ["find"], "asked": ["user: Where?"], "answers": AGENTS_CALL["answers"],
                "tokens": {"input": 9, "output": 4, "read": 5, "reasoning": 2},
            }
        ],
        "tools": [("c1", "agent", "find", '{"q":"x"}', None, None, None)],
    }  # fmt: skip


# --- trajectories of ART and ATIF, conversations --------------------------------------------------------------

TALK = ["system: s", "user: Where?", 'assistant: (thinks Hm.) Look. [c1 find {"q":"x"}]', "tool: [c1 there]"]


def test_art() -> None:
    choice = {
        "finish_reason": "tool_calls", "index": 0,
        "message": {"role": "assistant", "content": None, "tool_calls": [CALLED]},
        "logprobs": {"content": [{"token": "token_id:7", "logprob": -0.5, "bytes": None, "top_logprobs": []}]},
    }  # fmt: skip
    said = [
        {"role": "system", "content": "s"}, ASKED, choice, {"role": "tool", "tool_call_id": "c1", "content": "there"},
        {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": "There."}},
    ]  # fmt: skip
    trajectory = {
        "messages_and_choices": said, "tools": [FIND], "additional_histories": [], "reward": 0.5,
        "initial_policy_version": 3, "final_policy_version": None, "metrics": {"duration": 2.0}, "auto_metrics": {},
        "metadata": {"scenario_id": "x"}, "logs": ["l1"],
    }  # fmt: skip
    group = {
        "trajectories": [trajectory, trajectory], "exceptions": [{"type": "ValueError", "message": "no"}],
        "metadata": {"env": "web"}, "metrics": {"solved": 1}, "logs": ["g1"],
    }  # fmt: skip
    found, runs = shown(lines(group))
    assert (found.left_out, found.unread) == ({"rollouts that failed": 1}, {})
    called = 'assistant: [c1 find {"q":"x"}]'
    for run in runs:
        assert {name: run[name] for name in run if name not in ("time", "calls", "rewards")} == {
            "project": "file", "group": "file item 1", "result": "There.", "agents": [("file", None)],
            "metadata": {
                "scenario_id": "x", "metrics": {"duration": 2.0}, "logs": ["l1"], "initial_policy_version": 3,
                "group_metadata": {"env": "web"}, "group_metrics": {"solved": 1}, "group_logs": ["g1"],
            },
            "tools": [("c1", "file", "find", '{"q":"x"}', "there", None, None)],
        }  # fmt: skip
        assert [(call["asked"], call["answers"], call["offered"]) for call in run["calls"]] == [
            (TALK[:2], [("tool_calls", called)], ["find"]),
            ([*TALK[:2], called, TALK[3]], [("stop", "assistant: There.")], ["find"]),
        ]
        assert [reward[:2] for reward in run["rewards"]] == [("reward", 0.5)]
    assert len(runs) == 2


def test_atif() -> None:
    item = {
        "schema_version": "ATIF-v1.7", "session_id": "s1", "notes": "n", "extra": {"trial": 3},
        "agent": {
            "name": "agent", "version": "2", "model_name": "m", "tool_definitions": [FIND], "extra": {"mode": "fast"}
        },
        "steps": [
            {"step_id": 1, "timestamp": TIME.format(0), "source": "system", "message": "s"},
            {"step_id": 2, "timestamp": TIME.format(0), "source": "user", "message": "Where?"},
            {
                "step_id": 3, "timestamp": TIME.format(2), "source": "agent", "model_name": "m2", "message": "Look.",
                "reasoning_content": "Hm.",
                "tool_calls": [{"tool_call_id": "c1", "function_name": "find", "arguments": {"q": "x"}}],
                "observation": {"results": [{"source_call_id": "c1", "content": "there"}]},
                "metrics": {"prompt_tokens": 9, "completion_tokens": 4, "cached_tokens": 5, "cost_usd": 0.1},
            },
            {
                "step_id": 4, "timestamp": TIME.format(6), "source": "agent", "message": "There.",
                "metrics": {"prompt_tokens": 12, "completion_tokens": 1},
            },
        ],
        "final_metrics": {"total_cost_usd": 0.1},
    }  # fmt: skip
    _, [run] = shown(lines(item))
    common = {"agent": "agent", "offered": ["find"]}
    assert run == {
        "project": "file", "time": (0.0, 7.0), "result": "There.", "agents": [("agent", None)],
        "metadata": {
            "agent_version": "2", "model": "m", "notes": "n", "final_metrics": {"total_cost_usd": 0.1},
            "extra": {"trial": 3}, "agent_extra": {"mode": "fast"},
        },
        "calls": [
            {
                **common, "time": (2.0, 3.0), "models": ("m2",), "asked": TALK[:2], "answers": [(None, TALK[2])],
                "tokens": {"input": 9, "output": 4, "read": 5},
            },
            {
                **common, "time": (6.0, 7.0), "models": ("m",), "asked": TALK,
                "answers": [(None, "assistant: There.")], "tokens": {"input": 12, "output": 1},
            },
        ],
        "tools": [("c1", "agent", "find", '{"q":"x"}', "there", None, None)],
    }  # fmt: skip


@pytest.mark.parametrize("form", ["openai", "anthropic"])
def test_conversations(form: str) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "find", "input": {"q": "x"}}
    thought = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    messages: dict[str, list[dict[str, Any]]] = {
        "openai": [
            {"role": "system", "content": "s"}, ASKED,
            {"role": "assistant", "content": "Look.", "reasoning_content": "Hm.", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "c1", "content": "there"}, {"role": "assistant", "content": "There."},
        ],
        "anthropic": [
            ASKED, {"role": "assistant", "content": [thought, {"type": "text", "text": "Look."}, use]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "there"}]},
            {"role": "assistant", "content": [{"type": "text", "text": "There."}]},
        ],
    }  # fmt: skip
    beside = {"tools": [FIND]} if form == "openai" else {
        "system": "s", "tools": [{"name": "find", "input_schema": {"type": "object"}}]
    }  # fmt: skip
    item = {
        "messages": messages[form], "model": "m", "task_id": "t", "reward": 0.5, "created_at": TIME.format(0),
        "tags": ["prod"], "metadata": {"user": "ada"}, **beside,
    }  # fmt: skip
    found, [run] = shown(lines(item))
    assert (found.left_out, found.unread) == ({}, {})
    common = {"agent": "file", "models": ("m",), "offered": ["find"]}
    assert run == {
        "project": "file", "scenario": "file/t", "time": (0.0, 2.0), "result": "There.", "tags": ("prod",),
        "metadata": {"user": "ada", "model": "m", "task_id": "t", "created_at": TIME.format(0)},
        "agents": [("file", None)],
        "calls": [
            {**common, "time": (0.0, 1.0), "asked": TALK[:2], "answers": [(None, TALK[2])]},
            {**common, "time": (1.0, 2.0), "asked": TALK, "answers": [(None, "assistant: There.")]},
        ],
        "tools": [("c1", "file", "find", '{"q":"x"}', "there", None, None)],
        "rewards": [("reward", 0.5, "code", None, "", 0.0)],
    }  # fmt: skip
