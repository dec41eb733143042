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


def traced(tracer: str, id: str, up: str | None, name: str, **said: Any) -> dict[str, Any]:
    """One call of a model, as its file has it; `said` is its answer, tokens, cost and the id of the answer."""
    answer, cost, of_answer = said.get("answer", "y"), said.get("cost"), said.get("of_answer")
    tokens = said.get("tokens", (3, 2))
    asked = [{"role": "user", "content": "x?"}]
    message = {"role": "assistant", "content": answer}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    times = [f"2026-01-01T00:00:{second:02}Z" for second in (int(id, 16), 40 - int(id, 16))]
    usage = {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]} if tokens else {}
    if tracer == "weave":
        output = {"id": of_answer, "object": "chat.completion", "model": "m", "choices": choices, "usage": usage}
        costs = {"m": {"prompt_tokens_total_cost": cost, "completion_tokens_total_cost": 0.0}}
        return {
            **{"id": id * 16, "trace_id": TRACE, "parent_id": up and up * 16, "op_name": name, "project_id": "p"},
            **{"started_at": times[0], "ended_at": times[1], "attributes": {}, "exception": None},
            **{"inputs": {"model": "m", "messages": asked}, "output": output},
            "summary": {"usage": {"m": {"requests": 1, **usage}}, "weave": {"costs": costs}},
        }
    if tracer == "langsmith":
        return {
            **{"id": id * 16, "trace_id": TRACE, "parent_run_id": up and up * 16, "run_type": "llm", "name": name},
            **{"start_time": times[0], "end_time": times[1], "total_cost": cost, "error": None, **usage},
            **{"inputs": {"model": "m", "messages": asked}, "outputs": {"id": of_answer, "choices": choices}},
        }
    ends = [float(int(id, 16)), 40.0 - int(id, 16)]
    return {
        **{"span_id": id * 16, "root_span_id": TRACE, "span_parents": up and [up * 16], "id": id},
        **{"span_attributes": {"type": "llm", "name": name}, "created": times[0]},
        **{"input": asked, "output": choices, "metadata": {"model": "m"}},
        "metrics": {"start": ends[0], "end": ends[1], "estimated_cost": cost, **usage},
    }


def of_file(rows: list[dict[str, Any]], directory: Path) -> tuple[list[str], Cost, tuple[Any, ...]]:
    """The calls of the run by their first digits, the same in SQL; its cost, and its tokens as SQL and lists say it."""
    found = read_file("\n".join(map(json.dumps, rows)).encode(), "rows")
    assert (found.refused, found.unread) == (0, {})
    with Store.open(DataDir(directory), create=True) as store:
        store.append(found.records)
        [run] = store.trajectories()
        [summary] = store.summaries()
        in_sql = store.sql("SELECT span_id FROM calls ORDER BY started, span_id")[1]
        [counts] = store.sql("SELECT calls, input_tokens, output_tokens FROM trajectories")[1]
        cost = cost_of_run(store, run.id, Prices({}, {}))
        assert sum(one.usd or 0.0 for one in costs_by(store, "model", Prices({}, {})).values()) == (cost.usd or 0.0)
    calls = [placed.call.span_id for placed in run.calls]
    assert [id for (id,) in in_sql] == calls
    assert counts == (summary.calls, summary.input_tokens, summary.output_tokens)
    assert summary.calls == len(calls)
    return [id[0] for id in calls], cost, counts[1:]


@pytest.mark.parametrize(
    ("tracer", "above", "below", "said"),
    [
        ("weave", "litellm.completion", "openai.chat.completions.create", {"of_answer": "r1"}),
        ("weave", "litellm.completion", "openai.chat.completions.create", {}),
        ("langsmith", "ChatOpenAI", "wrap_openai", {}),
        ("langsmith", "llm", "llm", {"of_answer": "r1", "tokens": None}),
        ("braintrust", "ask", "Chat Completion", {"tokens": None}),
        ("braintrust", "llm", "llm", {}),
    ],
    ids=["weave", "weave, no id", "langsmith", "langsmith, one id", "braintrust", "braintrust, one name"],
)
def test_two_records_of_one_call_in_a_tracers_file_are_one(
    tracer: str, above: str, below: str, said: dict[str, Any], tmp_path: Path
) -> None:
    """Their spans do not say which SDK made them."""
    rows = [traced(tracer, "a", None, above, cost=0.25, **said), traced(tracer, "b", "a", below, cost=0.25, **said)]
    calls, cost, tokens = of_file(rows, tmp_path)
    assert (calls, cost) == (["b"], Cost(0.25, stated_usd=0.25))
    assert tokens == ((None, None) if said.get("tokens", 1) is None else (3, 2))


@pytest.mark.parametrize(
    ("tracer", "above", "below"),
    [
        ("weave", {}, {"answer": "z"}),
        ("langsmith", {}, {"tokens": (4, 2)}),
        ("braintrust", {"tokens": None}, {"tokens": None}),
    ],
    ids=["other words", "other tokens", "one name, no tokens"],
)
def test_two_calls_of_a_tracers_file_are_two(
    tracer: str, above: dict[str, Any], below: dict[str, Any], tmp_path: Path
) -> None:
    name = "openai.chat.completions.create"
    rows = [traced(tracer, "a", None, name, cost=0.25, **above), traced(tracer, "b", "a", name, cost=0.25, **below)]
    calls, cost, _ = of_file(rows, tmp_path)
    assert (calls, cost) == (["a", "b"], Cost(0.5, stated_usd=0.5))


@pytest.mark.parametrize(
    ("tracer", "sums"),
    [
        ("weave", {"cost": 0.5, "tokens": (7, 5)}),
        ("langsmith", {"cost": 0.5, "answer": "z"}),
        ("braintrust", {"cost": 0.5, "tokens": None, "answer": "y and z"}),
        ("langsmith", {"cost": 0.3, "tokens": (7, 5)}),
    ],
    ids=["both", "cost, tokens of one", "cost alone", "tokens alone"],
)
def test_a_span_that_says_the_sum_of_the_calls_inside_it_is_none(
    tracer: str, sums: dict[str, Any], tmp_path: Path
) -> None:
    rows = [
        traced(tracer, "a", None, "openai.chat.completions.create", **sums),
        traced(tracer, "b", "a", "openai.chat.completions.create", cost=0.25, tokens=(3, 2)),
        traced(tracer, "c", "a", "openai.chat.completions.create", cost=0.25, tokens=(4, 3), answer="z"),
    ]
    assert of_file(rows, tmp_path) == (["b", "c"], Cost(0.5, stated_usd=0.5), (7, 5))


def test_a_sum_that_is_of_other_numbers_is_a_call(tmp_path: Path) -> None:
    inside = [traced("langsmith", id, "a", "llm", cost=0.25) for id in "bc"]
    calls, cost, tokens = of_file([traced("langsmith", "a", None, "llm", cost=0.75), *inside], tmp_path)
    assert (calls, cost, tokens) == (["a", "b", "c"], Cost(1.25, stated_usd=1.25), (9, 6))


def test_a_cost_that_only_the_span_of_several_calls_states_is_divided_among_them(tmp_path: Path) -> None:
    """By their tokens."""
    inside = [traced("braintrust", "b", "a", "llm"), traced("braintrust", "c", "a", "llm", tokens=(10, 5))]
    above = traced("braintrust", "a", None, "llm", cost=0.5, tokens=(13, 7))
    assert of_file([above, *inside], tmp_path) == (["b", "c"], Cost(0.5, stated_usd=0.5), (13, 7))


def test_spans_without_a_scope_are_records_of_one_call_by_the_id_of_the_answer(tmp_path: Path) -> None:
    same = {"gen_ai.response.id": "r1"}
    spans = [msgspec.structs.replace(one, scope_name="") for one in (outer(**same), inner(**same))]
    assert calls(spans, tmp_path) == ["b"]


def test_a_span_that_came_twice_is_in_a_sum_once(tmp_path: Path) -> None:
    inside = [traced("braintrust", "b", "a", "llm"), traced("braintrust", "c", "a", "llm", tokens=(10, 5))]
    above = traced("braintrust", "a", None, "llm", cost=0.5, tokens=(13, 7))
    again = {**inside[0], "input": [{"role": "user", "content": "x?"}, {"role": "user", "content": "and?"}]}
    assert of_file([above, *inside, again], tmp_path) == (["b", "c"], Cost(0.5, stated_usd=0.5), (13, 7))


def test_a_sum_of_costs_is_found_by_whatever_name_they_are_stated(tmp_path: Path) -> None:
    spans = [
        outer("all", **{"langfuse.observation.cost_details": '{"input": 0.5, "output": 0.25}'}),
        inner("b", **{"llm.cost.prompt": 0.25, "llm.cost.completion": 0.25}),
        inner("c", **{"operation.cost": "0.25"}),
    ]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
        assert [placed.call.span_id[0] for placed in run.calls] == ["b", "c"]
        assert store.sql("SELECT calls FROM trajectories")[1] == [(2,)]
        assert cost_of_run(store, run.id, Prices({}, {})) == Cost(0.75, stated_usd=0.75)


@pytest.mark.parametrize("stating", ["the gateway", "the framework", "both"])
def test_of_three_records_the_cost_that_an_outer_one_states_is_the_calls(stating: str, tmp_path: Path) -> None:
    """Of both the nearer one's."""
    costs = {"the gateway": (0.01, None), "the framework": (None, 0.02), "both": (0.01, 0.02)}[stating]
    above, middle = ({"gen_ai.cost.total_cost": cost} if cost else {} for cost in costs)
    spans = [outer(**above), inner(**middle), call("c", "b", "y", scope="http")]
    assert costs_of(spans, tmp_path) == (["c"], Cost(costs[1] or 0.01, stated_usd=costs[1] or 0.01))


def test_the_share_of_a_record_of_several_calls_goes_on_to_the_call_in_it(tmp_path: Path) -> None:
    """A span says what two calls took, of which one was recorded twice."""
    sums = {"gen_ai.usage.input_tokens": 6, "gen_ai.usage.output_tokens": 4, "gen_ai.cost.total_cost": 0.5}
    inside = [inner("b", scope="litellm", **COUNTED), call("c", "b", "y", scope="openai", **COUNTED)]
    spans = [outer("y and z", **sums), *inside, inner("d", "z", scope="litellm", **COUNTED)]
    assert costs_of(spans, tmp_path) == (["c", "d"], Cost(0.5, stated_usd=0.5))


def step(id: str, up: str, **attributes: Any) -> SpanRow:
    """A span that is no call."""
    return msgspec.structs.replace(call(id, up, None, scope="steps"), name="step", attributes=attributes)


CHAIN = {"openinference.span.kind": "CHAIN"}


@pytest.mark.parametrize("between", [CHAIN, {"http.request.method": "POST"}], ids=["a chain", "an HTTP request"])
def test_two_records_of_one_call_are_one_with_a_span_between_them_that_is_no_call(
    between: dict[str, Any], tmp_path: Path
) -> None:
    above = outer(**COUNTED, **{"gen_ai.cost.total_cost": 0.01})
    below = call("d", "c", "y", scope="openai", **COUNTED)
    spans = [above, step("b", "a", **between), step("c", "b", **between), below]
    assert costs_of(spans, tmp_path) == (["d"], Cost(0.01, stated_usd=0.01))


@pytest.mark.parametrize("operation", ["execute_tool", "invoke_agent"])
def test_what_a_tool_or_an_agent_within_a_call_asks_is_a_call_of_its_own(operation: str, tmp_path: Path) -> None:
    between = step("b", "a", **{"gen_ai.operation.name": operation})
    assert calls([outer(**COUNTED), between, call("c", "b", "y", scope="openai", **COUNTED)], tmp_path) == ["a", "c"]


def test_several_answers_below_a_step_are_calls_of_their_own(tmp_path: Path) -> None:
    below = [call(id, "b", "y", scope="openai") for id in "cd"]
    assert calls([outer(), step("b", "a", **CHAIN), *below], tmp_path) == ["a", "c", "d"]


OURS = "7" * 32


def captured(span: SpanRow, run: str = OURS) -> SpanRow:
    return msgspec.structs.replace(span, attributes={**span.attributes, "arttrace.trajectory.id": run})


def entered() -> SpanRow:
    """The own span of a run that is captured here."""
    said = {"gen_ai.operation.name": "invoke_agent", "arttrace.entry.name": "agent", "gen_ai.agent.name": "agent"}
    return captured(SpanRow(TRACE, "e" * 16, "invoke_agent agent", 1, 101, attributes=said))


@pytest.mark.parametrize("between", [[], [step("c", "a", **CHAIN)]], ids=["right below", "below a step"])
def test_a_record_around_a_call_that_is_captured_here_is_none(between: list[SpanRow], tmp_path: Path) -> None:
    """Of a framework's SDK, say, in a run that is captured here: it was not told apart as it ran."""
    above = msgspec.structs.replace(
        outer(**COUNTED, **{"gen_ai.cost.total_cost": 0.01}), parent_span_id="e" * 16, start_ns=2
    )
    below = captured(call("d", "c" if between else "a", "y", scope="arttrace", **COUNTED))
    assert costs_of([entered(), above, *between, below], tmp_path) == (["d"], Cost(0.01, stated_usd=0.01))


def test_a_run_that_is_captured_inside_anothers_call_takes_nothing_from_it(tmp_path: Path) -> None:
    """The two are runs of their own."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([outer(**COUNTED), captured(inner(**COUNTED))])
        found = {run.id: [placed.call.span_id[0] for placed in run.calls] for run in store.trajectories()}
        in_sql = store.sql("SELECT trajectory_id, span_id[1] FROM calls ORDER BY 2")[1]
    assert found == {TRACE: ["a"], OURS: ["b"]}
    assert in_sql == [(TRACE, "a"), (OURS, "b")]


def test_spans_that_are_each_others_parents_are_read(tmp_path: Path) -> None:
    rings = [step("b", "c"), step("c", "b"), call("d", "c", "y", scope="openai", **COUNTED)]
    assert calls([call("a", "a", "y", scope="litellm", **COUNTED), *rings], tmp_path) == ["a", "d"]


def costs_of(spans: list[SpanRow], directory: Path) -> tuple[list[str], Cost]:
    """The ids of the calls of the run, by their first digits, and what they cost; the same by each model."""
    with Store.open(DataDir(directory), create=True) as store:
        store.append(spans)
        [run] = store.trajectories()
        cost = cost_of_run(store, run.id, Prices({}, {}))
        assert costs_by(store, "model", Prices({}, {})) == {"m": cost}
        in_sql = store.sql("SELECT span_id FROM calls ORDER BY started, span_id")[1]
    found = [placed.call.span_id for placed in run.calls]
    assert [id for (id,) in in_sql] == found
    return [id[0] for id in found], cost
