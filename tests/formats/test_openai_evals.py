"""Output items of OpenAI's Evals are runs: what was given and answered, and the graders' scores."""

from __future__ import annotations

import json
from typing import Any

import pytest
from every_form import ITEMS
from system_files import lines, read

from arttrace.formats.imported_files import read_file
from arttrace.records.reward import Reward

[ITEM] = ITEMS["openai eval items"]
CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}


def item(id: str = "outputitem_1", sample: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {**ITEM, "id": id, **more, "sample": {**ITEM["sample"], **(sample or {})}}


def test_an_item_has_its_graders_scores_and_stands_with_those_of_other_runs() -> None:
    results = [{"name": "exact", "score": 0.25}, {"name": "polite", "passed": True}, {"name": "odd", "score": "high"}]
    page = {
        "object": "list",
        "data": [item(results=results), item("outputitem_2", run_id="evalrun_2")],
        "has_more": False,
    }
    found = read_file(json.dumps(page).encode(), "page")
    _, runs = read(json.dumps(page).encode())
    assert {(run.scenario, len(run.calls), run.result) for run in runs} == {("eval_1/5", 1, "4")}
    call = runs[0].calls[0].call
    assert (call.request_model, call.temperature, call.input_tokens, call.output_tokens) == ("m", 0.5, 9, 3)
    given = [(one.name, one.value) for one in found.records if isinstance(one, Reward)]
    assert given == [("exact", 0.25), ("polite", 1.0), ("exact", 1.0)]
    assert found.left_out == {"rewards that are no numbers": 1}


def test_each_answer_of_an_item_is_a_call_and_a_failure_is_the_runs() -> None:
    said = [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "4"},
        {"role": "assistant", "content": "Four."},
    ]
    _, [run] = read(lines(item(sample={"output": said, "finish_reason": "length"})))
    assert [len(placed.call.messages) for placed in run.calls] == [1, 3]
    assert [placed.call.choices[0].finish_reason for placed in run.calls] == ["tool_calls", "length"]
    assert [(tool.name, tool.result) for tool in run.tool_calls] == [("add", "4")]
    assert run.calls[0].call.input_tokens is None  # the counts are those of all
    failed = item(
        sample={"output": [], "error": {"code": "rate_limit", "message": "Too many requests."}}, status="error"
    )
    _, [run] = read(lines(failed))
    assert (run.error, run.calls) == ("Too many requests.", ())


def test_an_item_without_its_sample_is_refused() -> None:
    found = read_file(lines(ITEM, {**ITEM, "sample": None}), "items")
    assert (found.refused, found.reasons) == (1, ["line 2: an output item of an evaluation without its sample"])


@pytest.mark.parametrize("changed", [{"results": None}, {"datasource_item_id": None}, {"created_at": None}])
def test_what_an_item_lacks_is_not_made_up(changed: dict[str, Any]) -> None:
    _, [run] = read(lines({**ITEM, **changed}))
    assert len(run.calls) == 1
