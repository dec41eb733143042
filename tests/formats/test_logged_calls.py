"""A call as programs log it, its messages beside its response, is a call, and no conversation."""

from __future__ import annotations

from typing import Any

import pytest
from system_files import lines, read

from arttrace.formats.imported_files import Imported
from arttrace.records.trajectory import Trajectory

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


def response(text: str, created: int) -> dict[str, Any]:
    choices = [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": text}}]
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "total_tokens": 10}
    return {"id": f"r{created}", "model": "m-1", "created": created, "choices": choices, "usage": usage}


def of_litellm(messages: list[Any], answer: Any, **more: Any) -> dict[str, Any]:
    """As LiteLLM's proxy and its callbacks log a call (StandardLoggingPayload)."""
    return {
        "id": "chatcmpl-1", "trace_id": "t", "call_type": "acompletion", "status": "success", "model": "gpt-x",
        "startTime": 1_790_000_000.0, "endTime": 1_790_000_001.0, "metadata": {"task_id": "t1"}, "messages": messages,
        "response": answer, "model_parameters": {"temperature": 0.5, "tools": [TOOL]}, "error_str": None, **more,
    }  # fmt: skip


def of_openhands(messages: list[Any], answer: Any) -> dict[str, Any]:
    """As OpenHands logs a completion."""
    return {
        "messages": messages, "response": answer, "args": [], "timestamp": 1_790_000_000.5, "cost": 0.01,
        "kwargs": {"model": "gpt-x", "temperature": 0.5, "tools": [TOOL]},
    }  # fmt: skip


def said(found: Imported, runs: list[Trajectory]) -> list[Any]:
    assert (found.kinds, found.unread, len(runs)) == ({"exchanges": 2}, {}, 1)
    return [
        (len(one.call.messages), one.call.choices[0].message.text, one.call.choices[0].end) for one in runs[0].calls
    ]


@pytest.mark.parametrize("logged", [of_litellm, of_openhands])
def test_a_logged_call_has_its_answer_and_is_there_once(logged: Any) -> None:
    more = [*ASKED, {"role": "assistant", "content": "4"}, {"role": "user", "content": "+ 1?"}]
    found, runs = read(lines(logged(ASKED, response("4", 1_790_000_001)), logged(more, response("5", 1_790_000_003))))
    assert said(found, runs) == [(2, "4", "stop"), (4, "5", "stop")]
    call = runs[0].calls[0].call
    assert (call.request_model, call.temperature, call.input_tokens) == ("gpt-x", 0.5, 9)
    assert [tool["function"]["name"] for tool in call.tools] == ["add"]


def test_a_logged_call_that_failed_is_no_conversation() -> None:
    more = [*ASKED, {"role": "assistant", "content": "4"}, {"role": "user", "content": "+ 1?"}]
    about = {"error_class": "RateLimitError", "error_code": "429"}
    failed = of_litellm(more, {}, status="failure", error_str="later", error_information=about)
    found, [run] = read(lines(of_litellm(ASKED, response("4", 1_790_000_001)), failed))
    assert found.kinds == {"exchanges": 2}
    assert [placed.call.error for placed in run.calls] == [None, "RateLimitError: later"]
    assert run.scenario == "file/t1"


def test_messages_beside_a_response_that_is_none_stay_a_conversation() -> None:
    found, [run] = read(lines({"messages": [*ASKED, {"role": "assistant", "content": "4"}], "response": "4"}))
    assert (found.kinds, len(run.calls)) == ({"conversations": 1}, 1)
