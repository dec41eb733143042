"""A call that two SDKs recorded, one span inside the other, is one call; two calls, of which one is made inside the
other, are two. In SQL too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from arttrace.formats.imported_files import read_file
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.costs.prices import Prices
from arttrace.views.costs.usage import Cost, cost_of_run, costs_by

DATA = Path(__file__).parent / "data"
TRACE = "1" * 32
COUNTED = {"gen_ai.usage.input_tokens": 3, "gen_ai.usage.output_tokens": 2}


def call(id: str, up: str | None, said: str | None, *, scope: str, **more: Any) -> SpanRow:
    attributes = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    attributes["gen_ai.input.messages"] = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "x?"}]}])
    if said is not None:
        parts = [{"type": "reasoning", "content": id}, {"type": "text", "content": said}]
        attributes["gen_ai.output.messages"] = json.dumps([{"role": "assistant", "parts": parts}])
    start = int(id, 16)
    return SpanRow(
        *(TRACE, id * 16, "chat m", start, 100 - start, up and up * 16),
        attributes={**attributes, **more},
        scope_name=scope,
    )


def calls(spans: list[SpanRow], directory: Path) -> list[str]:
    """The ids of the calls of the run, by their first digits."""
    with Store.open(DataDir(directory), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
        in_sql = store.sql("SELECT span_id FROM calls ORDER BY started, span_id")[1]
        [[counted]] = store.sql("SELECT calls FROM trajectories")[1]
        cost = cost_of_run(store, run.id, Prices({}, {}))
    found = [placed.call.span_id for placed in run.calls]
    assert [id for (id,) in in_sql] == found
    assert counted == len(found)
    assert cost.unpriced_calls == sum(placed.call.error is None for placed in run.calls)
    return [id[0] for id in found]


def outer(said: str | None = "y", **more: Any) -> SpanRow:
    return call("a", None, said, scope="litellm", **more)


def inner(id: str = "b", said: str | None = "y", *, scope: str = "openai", **more: Any) -> SpanRow:
    return call(id, "a", said, scope=scope, **more)


def test_what_openinference_recorded_of_litellm_and_of_openais_client_is_one_call(tmp_path: Path) -> None:
    """A call and a stream."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file((DATA / "openinference_twice.json").read_bytes(), "twice").records)
        [run] = store.trajectories()
        assert store.sql("SELECT calls, input_tokens, output_tokens FROM trajectories")[1] == [(2, 14, 10)]
        models = store.sql("SELECT model FROM calls")[1]
    assert (len(run.calls), run.unread, models) == (2, {}, [("gpt-4o",)] * 2)


@pytest.mark.parametrize(
    "spans",
    [
        [outer(), inner()],
        [outer(**{"gen_ai.request.model": "openai/m"}, **COUNTED), inner(**COUNTED)],
        [outer(None, **COUNTED), inner(**COUNTED)],
        [outer(**{"gen_ai.response.id": "chatcmpl-1"}), inner(**{"gen_ai.response.id": "msg_1"})],
        [outer(), msgspec.structs.replace(inner(scope="litellm"), resource={"service.name": "gateway"})],
    ],
    ids=["text", "tokens", "tokens alone", "an id of its own", "another process"],
)
def test_two_records_of_one_call_are_one(spans: list[SpanRow], tmp_path: Path) -> None:
    assert calls(spans, tmp_path) == ["b"]


def logged(of: str) -> SpanRow:
    """An answer in a log record about a call."""
    [record] = records_of(
        {
            "timeUnixNano": "5",
            "eventName": "gen_ai.choice",
            "traceId": TRACE,
            "spanId": of * 16,
            "body": {
                "kvlistValue": {
                    "values": [
                        {
                            "key": "message",
                            "value": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "y"}}]}},
                        }
                    ]
                }
            },
        }
    )
    return record


def records_of(record: dict[str, Any]) -> list[SpanRow]:
    request = {"resourceLogs": [{"scopeLogs": [{"scope": {"name": "openai"}, "logRecords": [record]}]}]}
    read = read_file(json.dumps(request).encode(), "logs").records
    return [each for each in read if isinstance(each, SpanRow)]


def test_a_call_whose_answer_came_as_a_log_record_is_one(tmp_path: Path) -> None:
    assert calls([outer(**COUNTED), inner(said=None, **COUNTED), logged("b")], tmp_path) == ["b"]


def test_scopes_of_two_versions_are_of_two_records(tmp_path: Path) -> None:
    newer = msgspec.structs.replace(inner(scope="litellm"), scope_version="2")
    assert calls([outer(), newer], tmp_path) == ["b"]


def used(tool: str, arguments: Any) -> dict[str, Any]:
    parts = [{"type": "tool_call", "id": "c", "name": tool, "arguments": arguments}]
    return {"gen_ai.output.messages": json.dumps([{"role": "assistant", "parts": parts}]), **COUNTED}


@pytest.mark.parametrize(
    ("below", "found"),
    [
        (used("get", {"x": 1}), ["b"]),
        (used("get", '{"x": 1}'), ["b"]),
        (used("get", {"x": 2}), ["a", "b"]),
        (used("search", {"x": 1}), ["a", "b"]),
    ],
    ids=["the same", "the same as text", "other arguments", "another tool"],
)
def test_answers_of_tool_calls_are_compared(below: dict[str, Any], found: list[str], tmp_path: Path) -> None:
    assert calls([outer(None, **used("get", {"x": 1})), inner(said=None, **below)], tmp_path) == found


def test_of_three_records_the_innermost_counts(tmp_path: Path) -> None:
    assert calls([outer(), inner(), call("c", "b", "y", scope="http")], tmp_path) == ["c"]


def test_an_attempt_that_failed_inside_stays(tmp_path: Path) -> None:
    failed = msgspec.structs.replace(inner("b", None), status_code=2, status_message="busy")
    assert calls([outer(), failed, inner("c")], tmp_path) == ["b", "c"]


@pytest.mark.parametrize(
    "spans",
    [
        [outer(), inner(said="z")],
        [outer(**COUNTED), inner(**{**COUNTED, "gen_ai.usage.input_tokens": 4})],
        [outer(), inner(**{"gen_ai.request.model": "guard"})],
        [outer(None), inner()],
        [outer(), inner(said=None)],
        [outer(), inner(scope="litellm")],
        [outer(**{"arttrace.trajectory.id": TRACE}), inner(**{"arttrace.trajectory.id": TRACE})],
    ],
    ids=["text", "tokens", "model", "nothing alike", "no answer", "one SDK", "captured"],
)
def test_a_call_inside_another_stays_one(spans: list[SpanRow], tmp_path: Path) -> None:
    assert calls(spans, tmp_path) == ["a", "b"]


def test_several_answers_inside_are_calls_of_their_own(tmp_path: Path) -> None:
    assert calls([outer(), inner("b"), inner("c")], tmp_path) == ["a", "b", "c"]


def test_a_cost_that_the_outer_record_alone_states_is_the_calls(tmp_path: Path) -> None:
    failed = msgspec.structs.replace(inner("b", None), status_code=2, status_message="busy")
    spans = [outer(**{"gen_ai.cost.total_cost": 0.01}), failed, inner("c")]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
        assert cost_of_run(store, run.id, Prices({}, {})) == Cost(0.01, stated_usd=0.01)
        assert costs_by(store, "model", Prices({}, {})) == {"m": Cost(0.01, stated_usd=0.01)}


def test_a_cost_that_both_records_state_counts_once(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([outer(**{"gen_ai.cost.total_cost": 0.02}), inner(**{"operation.cost": 0.01})])
        [run] = store.trajectories()
        assert cost_of_run(store, run.id, Prices({}, {})) == Cost(0.01, stated_usd=0.01)
