"""What runs cost: prices by model, cached tokens, and what no price is known of."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from simulated_agent import Run, message

from arttrace.commands import cli
from arttrace.formats.imported_files import read_file
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.views.console.running import running
from arttrace.views.costs.prices import Prices, Usage, load_prices
from arttrace.views.costs.usage import Cost, cost_of_run, cost_words, costs_by

TABLE = {
    "m": {
        "litellm_provider": "openai",
        "input_cost_per_token": 2.0,
        "output_cost_per_token": 10.0,
        "cache_read_input_token_cost": 0.5,
        "input_cost_per_token_above_200k_tokens": 4.0,
    },
    "groq/m": {"litellm_provider": "groq", "input_cost_per_token": 1.0, "output_cost_per_token": 1.0},
    "eu.n:0": {"litellm_provider": "bedrock_converse", "input_cost_per_token": 0.5, "output_cost_per_token": 1.0},
    "images": {"litellm_provider": "openai", "output_cost_per_image": 1.0},
}


def usage(**given: Any) -> Usage:
    return Usage(**{"model": "m", "provider": "openai", "host": "api.openai.com", "input": 10, "output": 1, **given})


@pytest.mark.parametrize(
    ("used", "cost"),
    [
        (usage(), 30.0),
        (usage(cached=4), 6 * 2.0 + 4 * 0.5 + 10.0),
        (usage(cached=4, written=6), 4 * 0.5 + 6 * 2.0 + 10.0),  # what is written costs as others do, where not said
        (usage(beyond=272_000), 50.0),
        (usage(beyond=128_000), 30.0),
        (usage(host="api.groq.com"), 11.0),
        (usage(provider="groq", host=""), 11.0),
        (usage(provider="", host=""), 30.0),
        (usage(provider="aws.bedrock", model="arn:aws:bedrock:eu-west-1:1:inference-profile/eu.n:0"), 6.0),
        (usage(host="llm.example.com"), 30.0),
        # Of these nobody knows a price: none is free.
        (usage(provider="anthropic"), None),
        (usage(model="unheard-of"), None),
        (usage(model="images"), None),
        (usage(policy_version="policy@3"), None),
        (usage(host="127.0.0.1"), None),
        (usage(host="10.1.2.3"), None),
        (usage(host="localhost"), None),
        (usage(host="vllm"), None),
        (usage(host="gpu.internal"), None),
    ],
)
def test_a_price_is_that_of_the_model_at_its_provider(used: Usage, cost: float | None) -> None:
    assert Prices({}, TABLE).cost(used) == (None if cost is None else pytest.approx(cost))


def test_own_prices_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"m": {"input": 1, "output": 2, "cached_input": 0.5}, "policy": {"input": 4, "output": 0}}')
    monkeypatch.setenv("ARTTRACE_PRICES", str(file))
    prices = load_prices()
    assert prices.cost(usage(cached=4)) == pytest.approx((6 * 1 + 4 * 0.5 + 2) / 1e6)
    assert prices.cost(usage(host="127.0.0.1")) == pytest.approx(12 / 1e6)
    assert prices.cost(usage(policy_version="policy@3")) == pytest.approx(40 / 1e6)
    negative = b'{"m": {"input": 1, "output": -2}}'
    for unreadable in (b'{"m": {"input_price": 1}}', b'{"\xff": {}}', b'{"m": ' + b"[" * 100_000, negative):
        file.write_bytes(unreadable)
        with pytest.raises(ArttraceError, match="cannot be read"):
            load_prices()


def test_the_table_that_litellm_brings_is_read_without_it() -> None:
    if find_spec("litellm") is None:  # imported, it asks for newer prices and says so into what others print
        pytest.skip("litellm is not installed")
    cost = load_prices().cost(usage(model="gpt-4o", input=1000, cached=400, output=100))
    assert cost == pytest.approx(600 * 2.5e-6 + 400 * 1.25e-6 + 100 * 1e-5)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: one of three calls, one of them in part cached, one with OpenInference's names; one of a call without
    usage, one of an unknown model and one that failed."""
    root = tmp_path_factory.mktemp("costs")
    asked = [message("user", "why?")]
    paid = {"POLICY_VERSION": None, "PROVIDER_NAME": "openai", "SERVER_ADDRESS": "api.openai.com", "REQUEST_MODEL": "m"}
    first = Run("one", entry="shop:paid")
    first.chat("a", asked, message("assistant", "a"), at=1, USAGE_INPUT_TOKENS=10, USAGE_OUTPUT_TOKENS=1, **paid)
    counts = {"USAGE_INPUT_TOKENS": 10, "USAGE_OUTPUT_TOKENS": 1, "USAGE_CACHE_READ_INPUT_TOKENS": 4}
    first.chat("b", asked, message("assistant", "b"), at=20, **counts, **paid)
    first.chat("c", asked, message("assistant", "c"), at=30, USAGE_INPUT_TOKENS=300_000, USAGE_OUTPUT_TOKENS=0, **paid)
    second = Run("two", entry="shop:unknown")
    second.chat("a", asked, message("assistant", "a"), at=1, **paid)
    unknown = {**paid, "REQUEST_MODEL": "unheard-of"}
    second.chat("b", asked, message("assistant", "b"), at=20, USAGE_INPUT_TOKENS=1, USAGE_OUTPUT_TOKENS=1, **unknown)
    second.chat("c", asked, at=30, ERROR_TYPE="RateLimitError", **paid)
    second.spans[-1] = replace(second.spans[-1], status_code=2)
    with Store.open(DataDir(root), create=True) as store:
        store.append([*first.end(at=100), *second.end(at=100)])
    return root


def test_costs_of_runs_and_of_what_is_counted_together(root: Path) -> None:
    prices = Prices({}, TABLE)
    whole = pytest.approx(30.0 + (6 * 2.0 + 4 * 0.5 + 10.0) + 300_000 * 4.0)
    with Store.open(DataDir(root)) as store:
        one, two = cost_of_run(store, "one", prices), cost_of_run(store, "two", prices)
        assert (one.usd, one.unpriced_calls) == (whole, 0)
        assert two == Cost(None, 2, ("", "unheard-of"))
        assert cost_words(two, prices) == "no price known of 2 calls (calls without token counts, unheard-of)"
        by_entry = costs_by(store, "entry", prices)
        assert (by_entry["shop:paid"], by_entry["shop:unknown"]) == (one, two)
        by_model = costs_by(store, "model", prices)
        assert (by_model["m"].usd, by_model["m"].unpriced_calls) == (whole, 1)
        assert by_model["unheard-of"] == Cost(None, 1, ("unheard-of",))
        assert sum(cost.unpriced_calls for cost in costs_by(store, "agent", prices).values()) == 2
        assert costs_by(store, "tool", prices) == {}


def test_commands_show_them(root: Path, tmp_path: Path) -> None:
    file = tmp_path / "prices.json"
    file.write_text('{"m": {"input": 1000000, "output": 0}}')

    def run(*arguments: str) -> str:
        made = CliRunner().invoke(
            cli, [*arguments, "--dir", str(root)], env={"ARTTRACE_PRICES": str(file)}, catch_exceptions=False
        )
        return made.output

    found = json.loads(run("stats", "--json"))
    entries = {row["name"]: (row["cost"], row["unpriced_calls"]) for row in found["entry"]}
    assert entries == {"shop:paid": (300_020.0, 0), "shop:unknown": (None, 2)}
    shown = run("stats", "--by", "entry")
    assert max(map(len, shown.splitlines())) <= 100
    assert "$300,020.00" in shown
    assert "?: no price is known of 2 calls" in shown
    assert "cost        $300,020.00" in run("show", "one")
    assert json.loads(run("show", "two", "--json"))["cost"]["unpriced_models"] == ["", "unheard-of"]


def test_bedrock_sells_models_under_its_own_names(tmp_path: Path) -> None:
    """A body of Anthropic's names the model that answered as Anthropic does."""
    sold = {"POLICY_VERSION": None, "PROVIDER_NAME": "aws.bedrock", "REQUEST_MODEL": "eu.n:0", "RESPONSE_MODEL": "n"}
    run = Run("one", entry="shop:sold")
    run.chat("a", [], message("assistant", "a"), at=1, USAGE_INPUT_TOKENS=10, USAGE_OUTPUT_TOKENS=1, **sold)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=100))
        assert cost_of_run(store, "one", Prices({}, TABLE)) == Cost(6.0, 0)


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        ({"operation.cost": 0.25}, 0.25),  # Logfire, PydanticAI
        ({"gen_ai.usage.cost": "0.25"}, 0.25),
        ({"gen_ai.cost.total_cost": 0.25, "gen_ai.cost.input_cost": 0.1}, 0.25),  # LiteLLM
        ({"llm.cost.total": 0.25, "llm.cost.prompt": 0.1}, 0.25),  # OpenInference
        ({"llm.cost.prompt": 0.25, "llm.cost.completion": 0.5}, 0.75),
        ({"llm.cost.completion": 0.5}, 0.5),
        ({"langfuse.observation.cost_details": '{"input": 0.1, "output": 0.2, "total": 0.25}'}, 0.25),
        ({"langfuse.observation.cost_details": '{"input": 0.25, "cached": 0.25, "output": 0.5}'}, 1.0),
        ({"operation.cost": 0}, 0.0),
        # No cost: its price is looked up.
        ({"operation.cost": -1.0}, None),
        ({"operation.cost": "much"}, None),
        ({"operation.cost": "NaN"}, None),
        ({"langfuse.observation.cost_details": "{}"}, None),
        ({"langfuse.observation.cost_details": "[1]"}, None),
        ({"langfuse.observation.cost_details": '{"input'}, None),
    ],
)
def test_a_cost_that_the_sender_states_is_the_calls(said: dict[str, Any], cost: float | None, tmp_path: Path) -> None:
    paid = {"POLICY_VERSION": None, "PROVIDER_NAME": "openai", "SERVER_ADDRESS": "api.openai.com", "REQUEST_MODEL": "m"}
    run = Run("one", entry="shop:paid")
    run.chat("a", [], message("assistant", "a"), at=1, USAGE_INPUT_TOKENS=10, USAGE_OUTPUT_TOKENS=1, **paid)
    run.spans[-1] = replace(run.spans[-1], attributes={**run.spans[-1].attributes, **said})
    run.chat("b", [], message("assistant", "b"), at=20, **paid)  # without token counts
    run.spans[-1] = replace(run.spans[-1], attributes={**run.spans[-1].attributes, **said})
    run.chat("c", [], message("assistant", "c"), at=30, USAGE_INPUT_TOKENS=10, USAGE_OUTPUT_TOKENS=1, **paid)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.end(at=100))
        found, by_model = cost_of_run(store, "one", Prices({}, TABLE)), costs_by(store, "model", Prices({}, TABLE))
    expected = Cost(60.0, 1, ("",)) if cost is None else Cost(2 * cost + 30.0, stated_usd=2 * cost)
    assert found == by_model["m"] == expected


def test_what_was_stated_is_said(tmp_path: Path) -> None:
    prices = Prices({}, TABLE)
    assert cost_words(Cost(0.25, stated_usd=0.25), prices) == "$0.2500, as its sender states"
    assert cost_words(Cost(0.5, 1, ("n",), 0.25), prices) == (
        "$0.5000, of it $0.2500 as its sender states; no price known of 1 call (n)"
    )


def test_what_logfire_says_a_call_cost_is_its_cost(tmp_path: Path) -> None:
    file = Path(__file__).parents[1] / "formats" / "data" / "logfire_streams.json"
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file(file.read_bytes(), file.name).records)
        [run] = [one.id for one in store.summaries() if one.entry == "stream"]
        assert cost_of_run(store, run, Prices({}, {})) == Cost(2.75e-05, stated_usd=2.75e-05)


def test_what_langfuse_says_a_call_cost_is_its_cost(tmp_path: Path) -> None:
    """Older servers give the total alone."""
    observation = {
        **{"id": "a" * 16, "traceId": "1" * 32, "type": "GENERATION", "name": "ask", "model": "unheard-of"},
        **{"startTime": "2026-11-01T00:00:00Z", "endTime": "2026-11-01T00:00:01Z", "input": "hi", "output": "ho"},
    }
    said = ({"costDetails": {"input": 0.1, "output": 0.2, "total": 0.3}}, {"calculatedTotalCost": 0.5})
    items = [{**observation, "id": f"{at + 1:016x}", **one} for at, one in enumerate(said)]
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file(json.dumps(items).encode(), "langfuse.json").records)
        [run] = store.summaries()
        assert cost_of_run(store, run.id, Prices({}, {})) == Cost(0.8, stated_usd=0.8)


ASKED = [{"role": "user", "content": "2 + 2?"}]
ANSWER = {"role": "assistant", "content": "4"}
COUNTS = {"prompt_tokens": 10, "completion_tokens": 1}
CHOICES = [{"message": ANSWER, "finish_reason": "stop", "index": 0}]
TIMES = {"start_time": "2026-11-01T00:00:00Z", "end_time": "2026-11-01T00:00:01Z"}
LANGSMITH_CALL = {
    "id": "b", "trace_id": "a", "parent_run_id": "a", "run_type": "llm", "name": "m", **TIMES,
    "inputs": {"messages": ASKED}, "outputs": ANSWER, "extra": {"invocation_params": {"model": "m"}},
}  # fmt: skip
LANGSMITH_ROOT = {"id": "a", "trace_id": "a", "run_type": "chain", "name": "r", **TIMES, "total_cost": "0.25"}
BRAINTRUST_CALL = {
    "root_span_id": "a", "span_id": "b", "span_parents": ["a"], "created": TIMES["start_time"], "input": ASKED,
    "output": CHOICES, "metadata": {"model": "m"}, "span_attributes": {"type": "llm"},
}  # fmt: skip
BRAINTRUST_ROOT = {**BRAINTRUST_CALL, "span_id": "a", "span_parents": None, "span_attributes": {"type": "task"}}
WEAVES_COSTS = {
    "m": {
        "prompt_tokens_total_cost": 0.125, "completion_tokens_total_cost": 0.125, "prompt_token_cost": 0.0125,
        "completion_token_cost": 0.125, "prompt_token_cost_unit": "USD", "completion_token_cost_unit": "USD",
    }
}  # fmt: skip
WEAVES_NONE = {"m": {"prompt_tokens_total_cost": 0.0, "completion_tokens_total_cost": 0.0}}


def weaves(id: str, parent: str | None, costs: dict[str, Any], **more: Any) -> dict[str, Any]:
    times = {"started_at": TIMES["start_time"], "ended_at": TIMES["end_time"]}
    summary = {"usage": {"m": {**COUNTS, "requests": 1}}, "weave": {"costs": costs}}
    return {"id": id, "trace_id": "a", "parent_id": parent, "op_name": "act", "summary": summary, **times, **more}


def weaves_call(costs: dict[str, Any], **usage: Any) -> list[dict[str, Any]]:
    output = {"choices": CHOICES, "model": "m", "usage": {**COUNTS, **usage}}
    asked = {"op_name": "openai.chat.completions.create", "inputs": {"model": "m", "messages": ASKED}, "output": output}
    return [weaves("b", "a", costs, **asked), weaves("a", None, costs)]


def atif(**metrics: Any) -> dict[str, Any]:
    steps = [
        {"step_id": 1, "source": "user", "message": "2 + 2?"},
        {"step_id": 2, "source": "agent", "message": "4", "metrics": {**COUNTS, **metrics}},
    ]
    agent = {"name": "a", "version": "1", "model_name": "m"}
    final = {"total_cost_usd": 0.25}
    return {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": agent, "steps": steps, "final_metrics": final}


def exchanged(**usage: Any) -> dict[str, Any]:
    response = {"id": "r", "model": "m", "created": 1_772_359_201, "choices": CHOICES, "usage": {**COUNTS, **usage}}
    return {"request": {"model": "m", "messages": ASKED}, "response": response}


def of_openrouters_responses(**usage: Any) -> dict[str, Any]:
    """A rollout of NeMo Gym by a model at OpenRouter."""
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "4"}]}
    counts = {"input_tokens": 10, "output_tokens": 1, **usage}
    response = {"id": "r", "created_at": 1_772_359_201, "model": "m", "output": [said], "usage": counts}
    return {"responses_create_params": {"input": ASKED, "model": "m"}, "response": response}


def of_anthropics_messages(**usage: Any) -> dict[str, Any]:
    counts = {"input_tokens": 10, "output_tokens": 1, **usage}
    answer = {"type": "message", "role": "assistant", "model": "m", "content": [{"type": "text", "text": "4"}]}
    return {"request": {"model": "m", "messages": ASKED, "max_tokens": 9}, "response": {**answer, "usage": counts}}


STORED = {**exchanged(cost=0.25)["response"], "object": "chat.completion", "messages": ASKED}
LOGGED = {"messages": ASKED, "model": "m", "response": exchanged()["response"]}
OWN_KEY = {"cost": 0.05, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.2}}
OTHERS_KEY = {"cost": 0.25, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.25}}
PERPLEXITYS = {"input_tokens_cost": 0.125, "output_tokens_cost": 0.0625, "request_cost": 0.0625, "total_cost": 0.25}
PERPLEXITYS_RESPONSES = {"currency": "USD", "input_cost": 0.125, "output_cost": 0.125, "total_cost": 0.25}
TRACE_OF_VERIFIERS = {
    "id": "t", "agent": {"name": "a"}, "task": {}, "ok": True,
    "nodes": [{"message": ASKED[0]}, {"parent": 0, "message": ANSWER, "sampled": True}],
    "calls": [{"node": 1, "model": "m", "usage": {**COUNTS, "cost": 0.25}}],
}  # fmt: skip
SIMULATION = {
    "id": "s", "task_id": "t", "termination_reason": "user_stop", "agent_cost": 0.25,
    "messages": [ASKED[0], {**ANSWER, "usage": COUNTS, "raw_data": {"model": "m"}, "cost": 0.25}],
}  # fmt: skip
OF_MINI_SWE_AGENT = {
    "trajectory_format": "mini-swe-agent-1.1", "info": {"model_stats": {"instance_cost": 0.25}},
    "messages": [*ASKED, {**ANSWER, "extra": {"response": exchanged()["response"], "cost": 0.25}}],
}  # fmt: skip


@pytest.mark.parametrize(
    ("items", "cost"),
    [
        ([LANGSMITH_ROOT, {**LANGSMITH_CALL, "total_cost": "0.25", "prompt_cost": 0.1}], 0.25),
        ([LANGSMITH_ROOT, {**LANGSMITH_CALL, "prompt_cost": 0.125, "completion_cost": 0.125}], 0.25),
        ([LANGSMITH_ROOT, {**LANGSMITH_CALL, "outputs": {**ANSWER, "usage_metadata": {"total_cost": 0.25}}}], 0.25),
        (
            [{**LANGSMITH_CALL, "outputs": {**ANSWER, "usage_metadata": {"input_cost": 0.125, "output_cost": 0.125}}}],
            0.25,
        ),
        ([{**LANGSMITH_CALL, **COUNTS, "total_cost": None}], None),
        ([BRAINTRUST_ROOT, {**BRAINTRUST_CALL, "metrics": {**COUNTS, "estimated_cost": 0.25}}], 0.25),
        ([{**BRAINTRUST_ROOT, "metrics": {"estimated_cost": 0.25}}, {**BRAINTRUST_CALL, "metrics": COUNTS}], None),
        (weaves_call(WEAVES_COSTS), 0.25),
        (weaves_call(WEAVES_NONE), None),  # as Weave says of models whose price it does not know
        (weaves_call({"m": {**WEAVES_COSTS["m"], "prompt_token_cost_unit": "EUR"}}), None),
        (weaves_call(WEAVES_COSTS, cost=0.5), 0.5),
        ([atif(cost_usd=0.25)], 0.25),
        ([atif()], None),
        ([exchanged(cost=0.25)], 0.25),
        ([exchanged(**OWN_KEY)], 0.25),
        ([exchanged(**OTHERS_KEY)], 0.25),
        ([exchanged(cost=True)], None),
        ([exchanged(cost=PERPLEXITYS)], 0.25),
        ([of_openrouters_responses(cost=PERPLEXITYS_RESPONSES)], 0.25),
        ([exchanged(cost={"amount": 0.25})], None),
        ([exchanged(cost={"total_cost": None})], None),
        ([exchanged(cost={**PERPLEXITYS_RESPONSES, "currency": "EUR"})], None),
        ([STORED], 0.25),
        ([of_openrouters_responses(cost=0.25)], 0.25),
        ([of_anthropics_messages(cost=0.25)], 0.25),
        ([{**LOGGED, "cost": 0.25}], 0.25),  # OpenHands
        ([{**LOGGED, "call_type": "acompletion", "response_cost": 0.25}], 0.25),  # LiteLLM
        ([TRACE_OF_VERIFIERS], 0.25),
        ([SIMULATION], 0.25),
        ([OF_MINI_SWE_AGENT], 0.25),
    ],
)
def test_what_a_file_says_a_call_cost_is_its_cost(items: list[Any], cost: float | None, tmp_path: Path) -> None:
    """Once, whatever stands at the run as a total."""
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(read_file("\n".join(map(json.dumps, items)).encode(), "file").records)
        [run] = store.summaries()
        expected = Cost(None, 1, ("m",)) if cost is None else Cost(cost, stated_usd=cost)
        assert cost_of_run(store, run.id, Prices({}, {})) == expected
        assert costs_by(store, "model", Prices({}, {}))["m"] == expected


def test_a_span_that_was_placed_in_no_run_costs_no_run_anything(tmp_path: Path) -> None:
    paid = {"POLICY_VERSION": None, "PROVIDER_NAME": "openai", "SERVER_ADDRESS": "api.openai.com", "REQUEST_MODEL": "m"}
    run = Run("one", entry="shop:paid")
    run.chat("a", [], message("assistant", "a"), at=1, USAGE_INPUT_TOKENS=10, USAGE_OUTPUT_TOKENS=1, **paid)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(run.spans)  # it has not ended
        assert cost_of_run(store, "one", Prices({}, TABLE)).usd is not None
        [found] = running(store, store.summaries())
        assert found.input_tokens == 10
    with duckdb.connect(DataDir(tmp_path).store) as connection:
        connection.execute(
            "INSERT INTO placed_spans SELECT trace_id, span_id, NULL FROM span_records WHERE input_tokens = 10"
        )
    with Store.open(DataDir(tmp_path)) as store:
        assert store.sql("SELECT count(*) FROM calls WHERE trajectory_id = 'one'")[1] == [(0,)]
        assert cost_of_run(store, "one", Prices({}, TABLE)) == Cost()
        summaries = [msgspec.structs.replace(one, incomplete="in progress") for one in store.summaries()]
        [found] = running(store, summaries)
        assert found.input_tokens == 0
