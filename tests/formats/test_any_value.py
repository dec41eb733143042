"""Any value in any place of another system's file is read or refused; nothing else is raised."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from anthropic_files import PAIRS as ANTHROPICS_PAIRS
from anthropic_files import TALK as ANTHROPICS_TALK
from system_files import (
    CHILD,
    CODEX,
    COMPLETION,
    FLAT,
    PHOENIX,
    ROOT,
    SESSION,
    SUB_AGENT,
    SWE,
    TIME,
    event,
    runs_of,
)

from arttrace.formats.imported_files import Unreadable, read_file
from arttrace.records.record import decode_record, encode_record

LANGSMITH = {
    "id": ROOT, "trace_id": ROOT, "run_type": "llm", "name": "m", "start_time": TIME.format(0),
    "inputs": {"messages": [[{"lc": 1, "type": "constructor", "id": ["HumanMessage"], "kwargs": {"content": "hi"}}]]},
    "outputs": {"generations": [[{"text": "yo", "message": {"kwargs": {"content": "yo"}, "id": ["AIMessage"]}}]]},
    "extra": {"metadata": {"ls_model_name": "m"}, "invocation_params": {"tools": [{"name": "f"}]}},
    "feedback_stats": {"a": {"avg": 1}}, "feedback": [{"key": "b", "score": 1}], "tags": ["x"],
}  # fmt: skip
BRAINTRUST = {
    "root_span_id": "r", "span_id": "r", "span_parents": ["q"], "input": [{"role": "user", "content": "hi"}],
    "output": [{"message": {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}}],
    "metrics": {"start": 1.77e9, "end": 1.77e9, "prompt_tokens": 1}, "scores": {"a": 1}, "metadata": {"model": "m"},
    "span_attributes": {"name": "x", "type": "llm"},
}  # fmt: skip
WEAVE = {
    "id": ROOT, "trace_id": ROOT, "parent_id": CHILD, "project_id": "p", "display_name": "x", "thread_id": "t",
    "op_name": "weave:///e/p/op/openai.chat.completions.create:x", "started_at": TIME.format(0),
    "ended_at": TIME.format(1), "deleted_at": None, "exception": '{"type": "E", "message": "m"}', "wb_run_id": None,
    "inputs": {
        "self": {"client": {"base_url": "http://h:1/v1"}}, "model": "m", "stream": True, "tools": [{"name": "f"}],
        "messages": [{"role": "user", "content": "hi"}, {"_type": "M", "_class_name": "M", "_bases": [], "role": "x"}],
        "extra_body": {"a": 1}, "timeout": "NOT_GIVEN",
    },
    "output": {
        "choices": [{"message": {"role": "assistant", "content": "yo"}, "logprobs": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1}, "time_to_first_token": 0.5,
    },
    "attributes": {"weave": {"kind": "llm"}, "a": 1},
    "summary": {
        "usage": {"m": {"requests": 1}}, "status_counts": {"success": 1},
        "weave": {
            "status": "success",
            "feedback": [{"id": "f", "feedback_type": "a", "payload": {"value": 1}, "created_at": TIME.format(2)}],
        },
    },
}  # fmt: skip
WEAVES_EXAMPLE = {
    **WEAVE, "id": CHILD, "op_name": "weave:///e/p/op/Evaluation.predict_and_score:x",
    "inputs": {"example": "weave:///e/p/object/D:x/attr/rows/id/y", "model": "weave:///e/p/op/m:x"},
    "output": {"output": "yo", "scores": {"s": {"a": 1}}}, "attributes": {"_weave_eval_meta": {}},
}  # fmt: skip
WEAVES_GEMINI = {
    **WEAVE, "op_name": "google.genai.models.Models.generate_content",
    "inputs": {"model": "m", "contents": [{"parts": [{"text": "hi"}]}], "config": {"system_instruction": "s"}},
    "output": {"candidates": [{"content": {"parts": [{"text": "yo"}]}}]},
}  # fmt: skip
WEAVES_OTLP = {**WEAVE, "attributes": {"otel_span": {"attributes": {"gen_ai": {"operation": {"name": "chat"}}}}}}
WEAVES_CHAIN = {
    **WEAVE, "op_name": "langchain.Llm.M", "inputs": LANGSMITH["inputs"],
    "output": {"outputs": LANGSMITH["outputs"], "extra": LANGSMITH["extra"]}, "attributes": {"lc_id": "x"},
}  # fmt: skip
ATIF = {
    "schema_version": "ATIF-v1.7", "trajectory_id": "t", "agent": {"name": "a", "tool_definitions": [{"name": "f"}]},
    "steps": [
        {"step_id": 1, "source": "user", "message": [{"type": "text", "text": "hi"}]},
        {
            "step_id": 2, "source": "agent", "message": "yo", "timestamp": TIME.format(1),
            "tool_calls": [{"tool_call_id": "c", "function_name": "f", "arguments": {}, "extra": {"arttrace": {}}}],
            "observation": {"results": [{"source_call_id": "c", "subagent_trajectory_ref": [{"trajectory_id": "u"}]}]},
            "metrics": {"completion_token_ids": [1], "logprobs": [-0.5], "prompt_token_ids": [1]},
            "extra": {"arttrace": {"span_id": "s", "start_ns": 5, "end_ns": 6}},
        },
    ],
    "extra": {"arttrace": {"rewards": [{"id": "r", "name": "n", "value": 1, "time_ns": 1, "source": "code"}]}},
    "subagent_trajectories": [{"trajectory_id": "u", "agent": {}, "steps": [], "extra": {"arttrace": {}}}],
}  # fmt: skip
ART = {
    "trajectories": [
        {
            "messages_and_choices": [
                {"role": "user", "content": "hi"},
                {
                    "finish_reason": "stop", "message": {"role": "assistant", "content": "yo", "tool_calls": []},
                    "logprobs": {"content": [{"token": "token_id:1", "logprob": -0.5}]},
                },
            ],
            "tools": [{"name": "f"}], "reward": 1, "metrics": {"m": 1}, "metadata": {"tags": "a"}, "logs": ["x"],
            "additional_histories": [{"messages_and_choices": [], "tools": None}],
        }
    ],
    "metadata": {"group": "g"},
}  # fmt: skip
ANSWER = {"role": "assistant", "content": "yo"}
WHOLE: dict[str, list[Any]] = {
    "swe": [SWE],
    "claude": [*SESSION, *SUB_AGENT],
    "codex": [*CODEX, event(9, "compacted", message="x", replacement_history=[{"type": "message", "role": "user"}])],
    "langsmith": [LANGSMITH],
    "braintrust": [BRAINTRUST],
    "weave": [WEAVE, WEAVES_EXAMPLE],
    "weave, gemini": [WEAVES_GEMINI],
    "weave, otlp": [WEAVES_OTLP],
    "weave, langchain": [WEAVES_CHAIN],
    "phoenix": [{**PHOENIX, "context": {"trace_id": "ab" * 16, "span_id": "cd" * 8}, "attributes": {"llm": FLAT}}],
    "completion": [{**COMPLETION, "messages": [{"role": "user", "content": "hi", "content_parts": []}]}],
    "pairs": [*ANTHROPICS_PAIRS, {"request": {"messages": [ANSWER]}, "response": COMPLETION}],
    "anthropic": [ANTHROPICS_TALK],
    "atif": [ATIF],
    "art": [ART],
    "rows": [
        {
            "prompt": [{"role": "user", "content": "hi"}],
            "chosen": [ANSWER],
            "rejected": [ANSWER],
            "tools": [{"name": "f"}],
        },
        {"input": {"messages": [ANSWER]}, "preferred_output": [ANSWER], "non_preferred_output": [ANSWER]},
        {"conversations": [{"from": "function_call", "value": '{"name": "f"}'}, {"from": "tool", "value": "x"}]},
    ],
    "langfuse": [
        {
            "id": "t",
            "observations": [{"id": "o", "type": "GENERATION", "startTime": TIME.format(0), "metadata": {}}],
            "scores": [{"id": "s", "name": "n", "value": 1, "observationId": "o"}],
            "tags": ["x"],
            "metadata": {"a": 1},
        }
    ],
}
_OTHERS: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1e300,
    "",
    "x",
    "{",
    "\ud800",
    [],
    [[]],
    [None],
    {},
    {"a": {}},
    ["x", 1],
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield (*at, key)
        yield from places(one, (*at, key))


def exchanged(items: list[Any], place: tuple[Any, ...], other: Any) -> list[Any]:
    made = copy.deepcopy(items)
    holder = made
    for key in place[:-1]:
        holder = holder[key]
    holder[place[-1]] = other
    return made


@pytest.mark.parametrize("name", WHOLE)
def test_any_value_in_any_place_is_read_or_refused(name: str) -> None:
    rng = random.Random(name)
    every = list(places(WHOLE[name]))
    for place in every if len(every) < 120 else rng.sample(every, 120):
        for other in rng.sample(_OTHERS, 6):
            try:
                found = read_file(json.dumps(exchanged(WHOLE[name], place, other)).encode(), "file")
            except Unreadable:
                continue
            assert [decode_record(encode_record(record)) for record in found.records] == found.records
            assert not any(reason.startswith("the session") for reason in found.reasons), (place, other, found.reasons)
            runs_of(found.records)
