"""A program seen by other SDKs' instrumentations (data/make.py) gives the trajectory that our own capture gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from arttrace.formats.imported_files import read_file
from arttrace.formats.sdks.conventions import normalise
from arttrace.formats.sdks.langfuse import names
from arttrace.formats.sdks.langfuse_live import formed
from arttrace.records import semconv
from arttrace.records.message import message_hash
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.sequence import NotTrained
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories import sequences
from arttrace.trajectories.conversations import conversations, unsupported
from arttrace.trajectories.identity.stand_ins import is_stand_in

DATA = Path(__file__).parent / "data"
FOREIGN = ["openinference", "openllmetry", "openllmetry_old", "langfuse"]


def build(data: DataDir, records: list[Record]) -> Trajectory:
    with Store.open(data, create=True) as store:
        store.append(records)
        [trajectory] = store.trajectories()
        spans = [record for record in records if isinstance(record, SpanRow)]
        assert sorted(store.spans(trajectory.id), key=lambda s: s.span_id) == sorted(spans, key=lambda s: s.span_id)
    return trajectory


def load(name: str) -> list[Record]:
    [path] = DATA.glob(f"{name}.json*")
    return read_file(path.read_bytes(), name).records


def outline(trajectory: Trajectory) -> dict[str, Any]:
    """What the program did, without ids of spans and times."""
    return {
        "agents": [(agent.name, agent.inferred, agent.placeholder) for agent in trajectory.agents],
        "calls": [
            {
                "model": placed.call.request_model,
                "messages": [message_hash(message) for message in placed.call.messages],
                "answers": [message_hash(choice.message) for choice in placed.call.choices],
                "ids": [
                    getattr(part, "id", None)
                    for message in (*placed.call.messages, *(choice.message for choice in placed.call.choices))
                    for part in message.parts
                ],
                "tools": placed.call.tools,
                "temperature": placed.call.temperature,
                "usage": (placed.call.input_tokens, placed.call.output_tokens),
            }
            for placed in trajectory.calls
        ],
        "tools": [
            (call.id, call.name, json.loads(call.arguments), call.result, call.inferred)
            for call in trajectory.tool_calls
        ],
        "messages": sorted(message_hash(node.message) for node in trajectory.nodes),
        "result": trajectory.result,
        "incomplete": trajectory.incomplete,
    }


@pytest.mark.parametrize("name", FOREIGN)
def test_other_sdks_give_the_trajectory_that_our_capture_gives(name: str, tmp_path: Path) -> None:
    own = outline(build(DataDir(tmp_path / "own"), load("arttrace")))
    foreign = build(DataDir(tmp_path / "foreign"), load(name))
    assert outline(foreign) == own
    assert len(own["calls"]) == 2
    assert len(own["tools"]) == 2
    found, report = sequences(foreign)
    assert not found
    assert report.reasons == {"no token ids": 2}  # in the graph, out of the sequences, and counted


def test_spans_without_content_still_give_agents_tools_and_calls(tmp_path: Path) -> None:
    trajectory = build(DataDir(tmp_path), load("openai_v2"))  # this instrumentation puts messages into logs
    assert [agent.name for agent in trajectory.agents] == ["researcher"]
    assert [(call.name, call.result) for call in trajectory.tool_calls] == [("look", "page x"), ("add", "3")]
    assert [(placed.call.input_tokens, placed.call.request_model) for placed in trajectory.calls] == [(7, "gpt-4o")] * 2


def test_messages_as_span_events(tmp_path: Path) -> None:
    calls = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}]
    events = [
        SpanEvent("gen_ai.system.message", 1, {"content": "be kind"}),
        SpanEvent("gen_ai.user.message", 2, {"gen_ai.event.content": '{"content": "hello"}'}),
        SpanEvent("gen_ai.assistant.message", 3, {"tool_calls": json.dumps(calls)}),
        SpanEvent("gen_ai.tool.message", 4, {"id": "c", "content": "2"}),
        SpanEvent("gen_ai.choice", 5, {"index": 0, "finish_reason": "stop", "message": '{"content": "two"}'}),
    ]
    span = SpanRow("1" * 32, "2" * 16, "chat m", 1, 9, attributes={"gen_ai.operation.name": "chat"}, events=events)
    trajectory = build(DataDir(tmp_path), [span])
    [placed] = trajectory.calls
    assert [m.role for m in placed.call.messages] == ["system", "user", "assistant", "tool"]
    assert placed.call.messages[2].tool_calls[0].name == "f"
    assert placed.call.choices[0].message.text == "two"
    assert placed.call.choices[0].finish_reason == "stop"


def test_older_names_of_usage() -> None:
    old = {
        "gen_ai.operation.name": "chat",
        "gen_ai.system": "openai",
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.cache_creation.input_tokens": 2,
    }
    found = normalise(SpanRow("1" * 32, "2" * 16, "chat", 1, 2, attributes=old)).attributes
    assert found[semconv.PROVIDER_NAME] == "openai"
    assert found[semconv.USAGE_INPUT_TOKENS] == 7
    assert found[semconv.USAGE_CACHE_WRITE_INPUT_TOKENS] == 2
    assert normalise(span := SpanRow("1" * 32, "2" * 16, "GET /", 1, 2, attributes={"http.method": "GET"})) is span


@pytest.mark.parametrize(
    "attributes",
    [
        {"openinference.span.kind": 7, "llm.input_messages": "x", "llm.input_messages.0": 1, "llm.tools.0.tool": 3},
        {"openinference.span.kind": "LLM", "llm.input_messages.0.message": "x", "llm.input_messages.a.b": 1},
        {
            "openinference.span.kind": "LLM",
            "llm.invocation_parameters": "[",
            "llm.output_messages.0.message.tool_calls": 1,
        },
        {"langfuse.observation.type": "generation", "langfuse.observation.input": "[1, null]"},
        {"langfuse.observation.type": None, "langfuse.observation.usage_details": "[]"},
        {"traceloop.span.kind": "tool", "traceloop.entity.input": "{"},
        {"gen_ai.operation.name": "chat", "gen_ai.prompt.0.role": 1, "gen_ai.prompt.0.tool_calls.0": 2},
        {"gen_ai.operation.name": "chat", "gen_ai.tool.definitions": "[1, {}]"},
    ],
)
def test_malformed_foreign_attributes_cost_themselves_only(attributes: dict[str, Any], tmp_path: Path) -> None:
    spans = [SpanRow("1" * 32, "2" * 16, "x", 1, 2, attributes=attributes)]
    spans.append(SpanRow("1" * 32, "3" * 16, "chat", 3, 4, attributes={"gen_ai.operation.name": "chat"}))
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(spans)
        assert len(store.trajectories()) == 1
        assert sorted(s.span_id for s in store.spans("1" * 32)) == ["2" * 16, "3" * 16]


def test_evaluations_on_any_span_are_rewards(tmp_path: Path) -> None:
    def event(**more: Any) -> SpanEvent:
        return SpanEvent(semconv.EVALUATION_EVENT, 5, {semconv.EVALUATION_NAME: "right", **more})

    call = SpanRow(
        "1" * 32,
        "2" * 16,
        "chat",
        1,
        9,
        attributes={"gen_ai.operation.name": "chat"},
        events=[event(**{semconv.EVALUATION_SCORE: 0.5, semconv.EVALUATION_EXPLANATION: "half"}), event()],
    )
    own = SpanRow(
        "4" * 32,
        "5" * 16,
        "evaluate ruler",
        7,
        7,
        attributes={semconv.TRAJECTORY_ID: "1" * 32},
        events=[event(**{semconv.EVALUATION_SCORE: 1, semconv.REWARD_ID: "r", semconv.REWARD_SOURCE: "judge"})],
    )
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([call])
        before = store.trajectory("1" * 32)
        store.append([own, call])
        store.append([own])
        after = store.trajectory("1" * 32)
        assert [s.rewards for s in store.summaries()] == [after.rewards]
        assert [t.id for t in store.trajectories()] == ["1" * 32]
    assert [(r.value, r.name, r.source, r.explanation) for r in before.rewards] == [(0.5, "right", "code", "half")]
    assert {(r.id, r.value, r.source) for r in after.rewards} >= {("r", 1.0, "judge")}
    assert len(after.rewards) == 2
    assert after.revision == before.revision  # a reward is no part of what the run did


def test_a_langfuse_export(tmp_path: Path) -> None:
    spans = [record for record in load("langfuse") if isinstance(record, SpanRow)]
    exported = {
        "id": spans[0].trace_id,
        "timestamp": "2026-11-21T12:00:00.000Z",
        "scores": [{"id": "s", "name": "quality", "value": 0.75, "comment": "good", "source": "EVAL"}],
        "observations": [
            {
                "id": span.span_id,
                "parentObservationId": span.parent_span_id,
                "type": str(span.attributes["langfuse.observation.type"]).upper(),
                "name": span.name,
                "startTime": f"2026-11-21T12:00:0{number}.000Z",
                "endTime": f"2026-11-21T12:00:0{number}.500Z",
                "model": span.attributes.get("langfuse.observation.model.name"),
                **{
                    key: value
                    if (value := span.attributes.get(f"langfuse.observation.{name}")) is None
                    else loaded(value)
                    for key, name in (
                        ("input", "input"),
                        ("output", "output"),
                        ("modelParameters", "model.parameters"),
                        ("usageDetails", "usage_details"),
                    )
                },
            }
            for number, span in enumerate(sorted(spans, key=lambda span: span.start_ns), 1)
        ],
    }
    imported = read_file(json.dumps([exported]).encode(), "export")
    trajectory = build(DataDir(tmp_path / "export"), imported.records)
    assert outline(trajectory) == outline(build(DataDir(tmp_path / "spans"), list(spans)))
    assert trajectory.rewards == (
        Reward("s", trajectory.id, 0.75, "quality", "judge", None, "good", time_ns=trajectory.rewards[0].time_ns),
    )
    flat = [{**observation, "traceId": exported["id"]} for observation in exported["observations"]]
    assert len(read_file(json.dumps(flat).encode(), "export").records) == len(spans)


def test_the_keys_of_a_langfuse_export_stay_in_their_order(tmp_path: Path) -> None:
    """Exports have objects where the API has text: arguments of tools, schemas, and content that is JSON."""
    arguments = {"to": "BRN", "from": "ZRH", "at": {"minute": 5, "hour": 7}}
    function = {"name": "fly", "parameters": {"type": "object", "properties": {"to": {}, "from": {}}}}
    asked = {"tools": [{"type": "function", "function": function}], "messages": [{"role": "user", "content": "Fly."}]}
    call = {"id": "c", "type": "function", "function": {"name": "fly", "arguments": arguments}}
    at = {"startTime": "2026-11-21T12:00:00.000Z", "endTime": "2026-11-21T12:00:01.000Z", "traceId": "1" * 32}
    observations = [
        {"id": "a" * 16, "type": "AGENT", "name": "a", "input": arguments, "output": arguments, **at},
        {
            "id": "b" * 16, "parentObservationId": "a" * 16, "type": "GENERATION", "name": "g", "input": asked,
            "output": {"role": "assistant", "tool_calls": [call]}, **at,
        },
        {"id": "c" * 16, "parentObservationId": "a" * 16, "type": "TOOL", "name": "fly", "input": arguments,
         "output": arguments, **at},
    ]  # fmt: skip
    run = build(DataDir(tmp_path), read_file(json.dumps(observations).encode(), "export").records)
    [placed], [tool] = run.calls, run.tool_calls
    [said] = placed.call.choices[0].message.tool_calls
    written = json.dumps(arguments, separators=(",", ":"))
    assert (said.arguments, tool.arguments, tool.result) == (written, written, written)
    assert json.dumps(run.arguments) == json.dumps(arguments)
    assert json.dumps(placed.call.tools[0]["function"]["parameters"]) == json.dumps(function["parameters"])


def test_the_level_and_message_of_an_observation_of_langfuse_are_kept() -> None:
    """Of one that failed they are the span's own. Pushed on, they are what they were."""
    said = {
        "fine": {"level": "DEFAULT", "statusMessage": None},
        "odd": {"level": "WARNING", "statusMessage": "a retry"},
        "told": {"level": "DEFAULT", "statusMessage": "from the cache"},
        "broken": {"level": "ERROR", "statusMessage": "no"},
    }
    items = [
        {
            "traceId": "1" * 32,
            "id": str(at) * 16,
            "type": "SPAN",
            "name": name,
            "startTime": "2026-11-21T12:00:00Z",
            **more,
        }
        for at, (name, more) in enumerate(said.items(), 1)
    ]
    spans = [one for one in read_file(json.dumps(items).encode(), "x").records if isinstance(one, SpanRow)]
    kept = {span.name: (span.status_code, span.status_message, levels(span)) for span in spans}
    assert kept == {
        "fine": (0, "", (None, None)),
        "odd": (0, "", ("WARNING", "a retry")),
        "told": (0, "", (None, "from the cache")),
        "broken": (2, "no", (None, None)),
    }
    assert {span.name: levels(formed(span)) for span in spans} == {name: has for name, (*_, has) in kept.items()}


def levels(span: SpanRow) -> tuple[Any, Any]:
    return span.attributes.get(names.LEVEL), span.attributes.get(names.STATUS_MESSAGE)


def test_what_a_langfuse_export_says_of_its_trace_is_the_runs(tmp_path: Path) -> None:
    said = {
        "name": "answer", "userId": "u1", "sessionId": "s1", "tags": ["beta"], "environment": "staging",
        "release": "r1", "metadata": {"shop": "bern", "attributes": {"gen_ai.response.id": "no word of the user's"}},
    }  # fmt: skip
    began = {"startTime": "2026-11-21T12:00:00Z"}
    exported = {
        "id": "1" * 32,
        **said,
        "observations": [
            {"id": "a" * 16, "type": "AGENT", "name": "root", "metadata": {"ticket": 4}, **began},
            {
                "id": "b" * 16, "parentObservationId": "a" * 16, "type": "GENERATION", "name": "ask", **began,
                "input": [{"role": "user", "content": "hi"}], "output": {"role": "assistant", "content": "yo"},
                "usage": {"input": 3, "output": 2, "total": 5, "unit": "TOKENS"}, "model": "m",
            },
            {"type": "EVENT"},
        ],
        "scores": [
            {"id": "1", "name": "right", "value": True, "dataType": "BOOLEAN"},
            {"id": "2", "name": "tone", "stringValue": "kind", "dataType": "CATEGORICAL"},
            {"id": "3", "name": "depth", "value": 2, "observationId": "a" * 16, "source": "EVAL"},
        ],
    }  # fmt: skip
    found = read_file(json.dumps(exported).encode(), "export")
    run = build(DataDir(tmp_path), found.records)
    assert (run.tags, run.metadata) == (
        ("beta",),
        {"shop": "bern", "ticket": 4, "user_id": "u1", "session_id": "s1", "release": "r1"},
    )
    [placed] = run.calls
    assert (placed.call.request_model, placed.call.input_tokens, placed.call.output_tokens) == ("m", 3, 2)
    assert run.incomplete == "a span was refused: an observation without an id"
    spans = [one for one in found.records if isinstance(one, SpanRow) and not is_stand_in(one)]
    assert {one.resource["langfuse.environment"] for one in spans} == {"staging"}
    given = {one.name: (one.value, one.agent_id, one.source) for one in run.rewards}
    assert given == {"right": (1.0, None, "code"), "depth": (2.0, None, "judge")}
    assert found.left_out == {"observations without an id": 1, "scores that are no numbers": 1}
    rows = [
        {**one, "traceId": "1" * 32, "userId": "u1", "tags": ["beta"], "environment": "staging"}
        for one in exported["observations"][:2]
    ]
    [alone] = [build(DataDir(tmp_path / "rows"), read_file("\n".join(map(json.dumps, rows)).encode(), "rows").records)]
    assert (alone.tags, alone.metadata) == (("beta",), {"ticket": 4, "user_id": "u1"})


@pytest.mark.parametrize(
    ("buckets", "counted"),
    [
        ({"input": 5, "input_cached_tokens": 2, "output": 3, "output_reasoning_tokens": 1, "total": 11}, (7, 4, 2)),
        ({"input": 5, "input_cache_read": 2, "input_audio": 1, "output": 3}, (8, 3, 2)),
        ({"input": 5, "cache_read_input_tokens": 2, "cache_creation_input_tokens": 4, "output": 3}, (11, 3, 2)),
        ({"total": 3}, (None, None, None)),
    ],
)
def test_langfuses_buckets_of_tokens_are_added_as_it_adds_them(
    buckets: dict[str, int], counted: tuple[int | None, ...]
) -> None:
    """Every tracer names its buckets; Langfuse takes those with `input` in their name together, and those with
    `output`."""
    row = {"id": "a" * 16, "traceId": "1" * 32, "type": "GENERATION", "startTime": "2026-11-21T12:00:00Z"}
    [span] = read_file(json.dumps({**row, "usageDetails": buckets}).encode(), "export").records
    assert isinstance(span, SpanRow)
    got = normalise(span).attributes
    names = (semconv.USAGE_INPUT_TOKENS, semconv.USAGE_OUTPUT_TOKENS, semconv.USAGE_CACHE_READ_INPUT_TOKENS)
    assert tuple(got.get(name) for name in names) == counted


def loaded(value: Any) -> Any:
    try:
        return json.loads(value)
    except ValueError:
        return value


ASKED_OF_LANGFUSE: list[tuple[Any, str, NotTrained | None]] = [
    ("What is x?", "What is x?", None),
    ([{"role": "user", "content": "What is x?"}], "What is x?", None),
    (
        {"args": [], "kwargs": {"model": "m", "messages": [{"role": "user", "content": "What is x?"}]}},
        "What is x?",
        None,
    ),
    ({"args": ["What is x?"], "kwargs": {}}, "", NotTrained.NOT_TEXT),
    ({"question": "What is x?"}, "", NotTrained.NOT_TEXT),
]


@pytest.mark.parametrize(("given", "asked", "fault"), ASKED_OF_LANGFUSE)
def test_what_a_generation_of_langfuse_was_asked_is_its_prompt(
    given: Any, asked: str, fault: NotTrained | None, tmp_path: Path
) -> None:
    """As `observe` and people write it: a text, messages, or what a function was given."""
    said = {
        "langfuse.observation.type": "generation",
        "langfuse.observation.input": given if isinstance(given, str) else json.dumps(given),
        "langfuse.observation.output": "x is 3.",
    }
    run = build(DataDir(tmp_path), [SpanRow("1" * 32, "2" * 16, "ask", 1, 2, attributes=said)])
    [one] = conversations(run)
    assert [message.role for message in one.messages] == ["user", "assistant"]
    assert (one.messages[0].text, unsupported(one)) == (asked, fault)
