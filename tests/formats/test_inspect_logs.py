"""Logs of Inspect AI are runs: each sample with the calls of its events and its scores, a scorer's calls apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from every_form import ANSWER, ASKED, ITEMS
from system_files import lines, read

from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow

[SAMPLE] = ITEMS["inspect samples"]
[EVENT] = SAMPLE["events"]
ADD = {"id": "c", "function": "add", "arguments": {"a": 2}}
CALLS = {"role": "assistant", "content": [{"type": "reasoning", "reasoning": "Add."}], "tool_calls": [ADD]}
FAILED = {"role": "tool", "tool_call_id": "c", "content": "", "error": {"type": "timeout", "message": "too slow"}}


def event(*asked: Any, said: Any = ANSWER, **more: Any) -> dict[str, Any]:
    choices = [{"message": said, "stop_reason": "stop"}]
    return {**EVENT, "input": list(asked) or [ASKED], "output": {**EVENT["output"], "choices": choices}, **more}


def span(id: str, type: str | None, parent: str | None = None, name: str = "n") -> dict[str, Any]:
    return {"event": "span_begin", "id": id, "type": type, "parent_id": parent, "name": name}


def log(*samples: Any, **more: Any) -> bytes:
    evaluation = {"task": "sums", "run_id": "r", "task_id": "t", "model": "openai/m"}
    return json.dumps({"version": 2, "eval": evaluation, "plan": {}, "samples": list(samples), **more}).encode()


def given(data: bytes) -> list[tuple[str, float]]:
    return [(one.name, one.value) for one in read_file(data, "log").records if isinstance(one, Reward)]


def test_samples_are_runs_with_their_scores_and_epochs_of_one_are_a_group() -> None:
    scores = {"a": {"value": "P"}, "b": {"value": {"x": 0.5, "y": True}}, "c": {"value": "No"}, "d": {"value": "odd"}}
    data = log(SAMPLE, {**SAMPLE, "epoch": 2, "uuid": "v", "scores": scores})
    _, runs = read(data)
    assert len({run.scenario for run in runs}) == 1
    assert {(run.agents[0].name, run.result, len(run.calls), run.incomplete) for run in runs} == {("sums", "4", 1, "")}
    call = runs[0].calls[0].call
    assert (call.request_model, call.response_model, call.temperature, call.input_tokens) == ("openai/m", "m", 0.5, 9)
    assert given(data) == [("match", 1.0), ("a", 0.5), ("b/x", 0.5), ("b/y", 1.0), ("c", 0.0)]
    assert read_file(data, "log").left_out == {"rewards that are no numbers": 1}
    assert read(data)[1][0].id == read(lines(SAMPLE))[1][0].id  # the same sample, of an unpacked log


def test_calls_of_scorers_are_none_of_the_run() -> None:
    within = [span("s", None, name="scorers"), span("t", "scorer", "s"), event(span_id="t")]
    before = [{"event": "step", "type": "scorer", "action": "begin"}, event()]
    for scored in (within, before):
        data = lines({**SAMPLE, "events": [event(), *scored]})
        assert [len(run.calls) for run in read(data)[1]] == [1]
        assert read_file(data, "log").left_out == {"model calls of scorers": 1}


def test_what_stands_elsewhere_in_the_log_is_put_in_its_place_and_what_is_nowhere_is_said() -> None:
    long = {"role": "user", "content": "attachment://h"}
    pooled = event(input_refs=[[0, 1], [1, 2]], **{"input": []})
    data: dict[str, Any] = {
        "events_data": {"messages": [{"role": "system", "content": "Be brief."}, long]},
        "events": [pooled],
    }
    _, [run] = read(lines({**SAMPLE, **data, "attachments": {"h": "2 + 2, please?"}}))
    assert [one.text for one in run.calls[0].call.messages] == ["Be brief.", "2 + 2, please?"]
    assert run.incomplete == ""
    before = {"message_pool": data["events_data"]["messages"], "events": [pooled]}
    _, [run] = read(lines({**SAMPLE, **before, "attachments": {"h": "2 + 2, please?"}}))
    assert ([one.text for one in run.calls[0].call.messages][1], run.incomplete) == ("2 + 2, please?", "")
    assert "message_pool" not in run.metadata
    _, [run] = read(lines({**SAMPLE, **data}))
    assert "1 text of the log missing" in str(run.incomplete)
    _, [run] = read(lines({**SAMPLE, "events": [event(input_refs=[[0, 7]])]}))
    assert "1 text of the log missing" in str(run.incomplete)
    _, [run] = read(lines({**SAMPLE, "events": []}))
    assert "the log has no events of its model calls" in str(run.incomplete)
    assert len(run.calls) == 1


def test_tools_thoughts_and_tokens_of_the_cache() -> None:
    usage = {"input_tokens": 2, "output_tokens": 3, "input_tokens_cache_read": 7, "total_cost": 0.25}
    first = event(said=CALLS)
    first["output"]["usage"] = usage
    _, [run] = read(lines({**SAMPLE, "events": [first, event(ASKED, CALLS, FAILED), event(ASKED, CALLS, FAILED)]}))
    found = read_file(lines({**SAMPLE, "events": [first]}), "log").records
    [counted] = [one.attributes for one in found if isinstance(one, SpanRow) and one.kind == 3]
    names = ("input_tokens", "cache_read.input_tokens", "cost")
    assert [counted[f"gen_ai.usage.{name}"] for name in names] == [9, 7, 0.25]
    assert [(tool.name, tool.result, bool(tool.error)) for tool in run.tool_calls] == [("add", "Error: too slow", True)]
    assert "Add." in str([placed.call.choices for placed in run.calls])


def test_an_agent_that_a_tool_runs_is_a_sub_agent() -> None:
    events = [
        span("main", "agent"), event(span_id="main"),
        span("tool", "tool", "main"), span("sub", "agent", "tool", name="helper"), event(span_id="sub"),
    ]  # fmt: skip
    _, [run] = read(lines({**SAMPLE, "events": events}))
    assert [agent.name for agent in run.agents] == ["sample", "helper"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"error": {"message": "no disk"}}, "Inspect AI counts it as failed (no disk)"),
        ({"invalidation": {"author": "me"}}, "invalidated in Inspect AI"),
    ],
)
def test_a_sample_that_failed_or_was_taken_back_is_incomplete(more: dict[str, Any], why: str) -> None:
    _, [run] = read(lines({**SAMPLE, **more}))
    assert why in str(run.incomplete)


def test_a_log_without_samples_is_refused_and_a_packed_one_says_how_to_unpack_it() -> None:
    with pytest.raises(ValueError, match="a log without its samples"):
        read_file(log(), "log")
    with pytest.raises(ValueError, match="inspect log dump"):
        read_file(b"PK\x03\x04....", "log")
