"""An item of every form that files are read in, small and whole, by what the form is called."""

from __future__ import annotations

from typing import Any

import msgspec
from system_files import CODEX, GEMINI, SESSION, SWE, TIME

from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow

ASKED = {"role": "user", "content": "2 + 2?"}
ANSWER = {"role": "assistant", "content": "4"}
TRACE, SPAN = "ab" * 16, "cd" * 8
_BEGAN, _ENDED = TIME.format(1), TIME.format(2)
_CHOICES = [{"message": ANSWER, "finish_reason": "stop", "index": 0}]
_USAGE = {"prompt_tokens": 9, "completion_tokens": 3}
_OTLP_SPAN = {
    "traceId": TRACE, "spanId": SPAN, "name": "chat", "startTimeUnixNano": "1", "endTimeUnixNano": "2",
    "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
}  # fmt: skip
_SCORE = {"id": "s", "name": "good", "value": 1, "timestamp": _ENDED, "source": "EVAL", "traceId": TRACE}
_OBSERVATION = {
    "id": SPAN, "traceId": TRACE, "type": "GENERATION", "name": "n", "startTime": _BEGAN, "endTime": _ENDED,
    "input": [ASKED], "output": ANSWER, "model": "m", "usageDetails": {"input": 9, "output": 3},
}  # fmt: skip

ITEMS: dict[str, tuple[dict[str, Any], ...]] = {
    "otlp": ({"resourceSpans": [{"scopeSpans": [{"spans": [_OTLP_SPAN]}]}]},),
    "records": (msgspec.json.decode(encode_record(SpanRow(TRACE, SPAN, "chat", 1, 2))),),
    "langfuse": ({"id": TRACE, "timestamp": _BEGAN, "observations": [_OBSERVATION], "scores": [_SCORE]},),
    "langsmith runs": (
        {
            "id": "r1", "trace_id": "r1", "run_type": "llm", "name": "m", "start_time": _BEGAN, "end_time": _ENDED,
            "inputs": {"messages": [ASKED]}, "outputs": ANSWER, "total_cost": 0.5,
            "extra": {"invocation_params": {"model": "m"}}, "feedback_stats": {"good": {"n": 1, "avg": 1.0}},
        },
    ),
    "braintrust spans": (
        {
            "id": "b", "root_span_id": "b1", "span_id": "b1", "span_parents": None, "created": _BEGAN,
            "span_attributes": {"name": "m", "type": "llm"}, "input": [ASKED], "output": _CHOICES,
            "metadata": {"model": "m"}, "metrics": {"start": 1.0, "end": 2.0, "estimated_cost": 0.5, **_USAGE},
            "scores": {"good": 1},
        },
    ),
    "weave calls": (
        {
            "id": "w1", "trace_id": "w1", "parent_id": None, "op_name": "openai.chat.completions.create",
            "started_at": _BEGAN, "ended_at": _ENDED, "inputs": {"model": "m", "messages": [ASKED]},
            "output": {"model": "m", "choices": _CHOICES, "usage": _USAGE},
            "summary": {"usage": {"m": _USAGE}, "weave": {"feedback": []}},
        },
    ),
    "phoenix spans": (
        {
            "name": "m", "span_kind": "LLM", "context": {"trace_id": TRACE, "span_id": SPAN}, "parent_id": None,
            "start_time": _BEGAN, "end_time": _ENDED, "annotations": [{"name": "good", "result": {"score": 1}}],
            "attributes": {"llm": {"model_name": "m", "input_messages": [{"message": ASKED}]}},
        },
    ),
    "claude code sessions": tuple(SESSION),
    "codex sessions": tuple(CODEX),
    "gemini cli sessions": tuple(GEMINI),
    "atif trajectories": (
        {
            "schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "a", "version": "1"},
            "steps": [
                {"step_id": 1, "source": "user", "message": "2 + 2?"},
                {
                    "step_id": 2, "source": "agent", "message": "", "metrics": {"cost_usd": 0.5, **_USAGE},
                    "tool_calls": [{"tool_call_id": "c", "function_name": "add", "arguments": {}}],
                    "observation": {"results": [{"source_call_id": "c", "content": "4"}]},
                },
            ],
        },
    ),
    "rllm episodes": (
        {
            "id": "task:0", "task": {"question": "2 + 2?"}, "is_correct": True, "termination_reason": "env_done",
            "trajectories": [
                {"name": "solver", "reward": 1.0, "steps": [
                    {"chat_completions": [ASKED, ANSWER], "prompt_ids": [1], "response_ids": [2], "logprobs": [-0.5]},
                ]},
            ],
        },
    ),
    "verl rollouts": (
        {
            "input": "user\n2 + 2?\nassistant\n", "output": "4", "gts": "4", "score": 1.0, "step": 3,
            "uid": "5d1b-a_0_0",
        },
    ),
    "agent lightning rollouts": (
        {
            "rollout": {
                "rollout_id": "a", "input": {"question": "2 + 2?"}, "is_train": True,
                "status": {"state": "succeeded", "created_at": 1_772_359_201.0, "updated_at": 1_772_359_202.0},
            },
            "events": [
                {
                    "event_type": "model_request", "rollout_id": "a", "attempt_id": "0", "timestamp": 1_772_359_201.5,
                    "data": {
                        "model": "m", "status": "ok", "latency_ms": 50.0, "http_status": 200,
                        "request": {"model": "m", "messages": [ASKED]},
                        "response": {"id": "r", "model": "m", "choices": _CHOICES, "usage": _USAGE},
                    },
                },
                {
                    "event_type": "reward", "rollout_id": "a", "attempt_id": "0", "timestamp": 1_772_359_201.8,
                    "data": {"value": 1.0, "source": "agent"},
                },
            ],
        },
    ),
    "art trajectories": (
        {"trajectories": [{"messages_and_choices": [ASKED, {**_CHOICES[0]}], "reward": 1.0, "metrics": {"n": 1}}]},
    ),
    "mini-swe-agent trajectories": (
        {
            "trajectory_format": "mini-swe-agent-1.1", "info": {"exit_status": "Submitted", "submission": "x"},
            "messages": [ASKED, {**ANSWER, "extra": {"response": {"choices": _CHOICES, "usage": _USAGE}}}],
        },
    ),
    "swe-agent trajectories": (SWE,),
    "stored completions": (
        {
            "object": "chat.completion", "id": "r", "model": "m", "created": 1_772_359_201, "choices": _CHOICES,
            "usage": {**_USAGE, "cost": 0.5}, "messages": {"data": [ASKED]},
        },
    ),
    "openai eval items": (
        {
            "object": "eval.run.output_item", "id": "outputitem_1", "created_at": 1_772_359_201, "run_id": "evalrun_1",
            "eval_id": "eval_1", "status": "pass", "datasource_item_id": 5, "datasource_item": {"q": "2 + 2?"},
            "results": [{"name": "exact", "passed": True, "score": 1.0}],
            "sample": {
                "input": [ASKED], "output": [ANSWER], "finish_reason": "stop", "model": "m", "usage": _USAGE,
                "error": None, "temperature": 0.5, "top_p": 1.0,
            },
        },
    ),
    "inspect samples": (
        {
            "id": 1, "epoch": 1, "uuid": "u", "input": "2 + 2?", "target": "4", "messages": [ASKED, ANSWER],
            "output": {"model": "m", "choices": [{"message": ANSWER, "stop_reason": "stop"}]},
            "scores": {"match": {"value": "C", "answer": "4"}}, "events": [
                {
                    "event": "model", "timestamp": _BEGAN, "completed": _ENDED, "model": "openai/m", "input": [ASKED],
                    "tools": [], "config": {"temperature": 0.5}, "output": {
                        "model": "m", "choices": [{"message": ANSWER, "stop_reason": "stop"}],
                        "usage": {"input_tokens": 9, "output_tokens": 3},
                    },
                },
            ],
        },
    ),
    "nemo gym rollouts": (
        {
            "responses_create_params": {"input": [ASKED]}, "reward": 1.0, "_ng_task_index": 0,
            "response": {"id": "r", "created_at": 1_772_359_201, "model": "m", "output": [
                {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}],
                 "prompt_token_ids": [1], "generation_token_ids": [2], "generation_log_probs": [-0.5]},
            ]},
        },
    ),
    "verifiers results": (
        {
            "example_id": 1, "task": "sums", "prompt": [ASKED], "completion": [ANSWER], "reward": 1.0,
            "metrics": {"n": 1},
        },
    ),
    "verifiers traces": (
        {
            "id": "e", "env": {"id": "sums"}, "task": {"key": "k"}, "ok": True, "errors": [], "traces": [
                {
                    "id": "t", "agent": {"name": "a"}, "task": {"key": "k"}, "ok": True, "errors": [],
                    "rewards": {"good": {"score": 1.0, "weight": 1.0}},
                    "calls": [{"node": 1, "model": "m", "usage": _USAGE, "sampling": {"temperature": 1.0}}],
                    "nodes": [
                        {"message": ASKED, "token_ids": [1], "mask": [False]},
                        {"parent": 0, "message": ANSWER, "sampled": True, "token_ids": [2], "mask": [True],
                         "logprobs": [-0.5], "semantic_parents": [{"node": 0, "type": "compaction_attempt"}]},
                        {"parent": 1, "message": ASKED, "token_ids": [3], "mask": [False]},
                    ],
                },
            ],
        },
    ),
    "tau2 results": (
        {
            "id": "s", "task_id": "t", "trial": 0, "termination_reason": "user_stop", "start_time": _BEGAN,
            "reward_info": {"reward": 1.0}, "messages": [
                {**ASKED, "turn_idx": 0, "timestamp": _BEGAN},
                {**ANSWER, "turn_idx": 1, "timestamp": _ENDED, "usage": _USAGE, "cost": 0.1, "tool_calls": None},
            ],
        },
    ),
    "exchanges": (
        {
            "request": {"model": "m", "messages": [ASKED], "tools": [{"function": {"name": "f"}}]},
            "response": {"id": "r", "model": "m", "created": 1_772_359_201, "usage": _USAGE, "choices": _CHOICES},
            "task_id": "t", "reward": 1,
        },
    ),
    "training rows": ({"prompt": [ASKED], "chosen": [ANSWER], "rejected": [{**ANSWER, "content": "5"}]},),
    "conversations": ({"messages": [ASKED, ANSWER], "task_id": "t", "reward": 1, "created": 1_772_359_201},),
}  # fmt: skip
"""Those of a session are its lines."""
