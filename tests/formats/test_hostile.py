"""Attributes and files of a hostile sender: each costs itself, nothing raises, the spans beside it are read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from every_form import ITEMS
from hostile import HUGE, closed, damaged
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from arttrace.collector.otlp.receiver import failed
from arttrace.formats.evaluations import rewards_of
from arttrace.formats.imported_files import Unreadable, read_file
from arttrace.formats.left_out import LeftOutItem
from arttrace.formats.otlp import decode_json
from arttrace.formats.otlp.decode_json import parse_json
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.formats.otlp.encode_json import encode_json
from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.formats.otlp.request import TooManySpans
from arttrace.formats.sdks import conventions, langfuse
from arttrace.formats.sdks.conventions import added_by_conventions, normalise
from arttrace.formats.sdks.openinference import feedback, spans
from arttrace.records import semconv
from arttrace.records.record import decode_record, encode_record
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.trajectories import build_trajectories, sequences
from arttrace.trajectories.identity.stand_ins import is_stand_in

OPEN = "[" * 3000
NANO = 1_000_000_000
EXAMPLES = 150


def nested(depth: int) -> Any:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def span(attributes: Mapping[str, Any], *, number: int = 1, **more: Any) -> SpanRow:
    ids = {"trace_id": "ab" * 16, "span_id": f"{number:016x}"}
    return SpanRow(
        **ids, name="x", start_ns=number * NANO, end_ns=(number + 1) * NANO, attributes=dict(attributes), **more
    )


def read(*spans: SpanRow) -> None:
    """All that the store asks of spans, when it writes them and when it reads them."""
    for one in spans:
        added_by_conventions(one)
        list(rewards_of(one))
    for trajectory in build_trajectories([normalise(one) for one in spans]):
        sequences(trajectory)


LLM = {"openinference.span.kind": "LLM"}
GENERATION = {langfuse.TYPE: "generation"}
CHAT = {semconv.OPERATION_NAME: semconv.OPERATION_CHAT}


@pytest.mark.parametrize(
    "attributes",
    [
        {**LLM, "llm.invocation_parameters": OPEN},
        {**LLM, "llm.tools.0.tool": "x"},
        {**LLM, "llm.tools.0.tool.json_schema": OPEN},
        {**LLM, "llm.input_messages.².role": "user"},
        {**LLM, f"llm.input_messages.{'9' * 5000}.message.role": "user"},
        {**LLM, "llm.input_messages." + ".".join("a" * 2000): "x"},
        {**LLM, "llm.input_messages." + ".".join("0" * 2000): "x"},
        {**LLM, "llm.input_messages.0.message": nested(500)},
        *(
            {**LLM, "annotations.0.annotation.name": "x", f"annotations.0.annotation.{field}": value}
            for field in ("score", "label", "identifier", "annotator_kind")
            for value in (HUGE, nested(600), OPEN)
        ),
        {**LLM, "annotations.0.annotation.name": "x", "annotations.0.annotation.score.0.x": 1},
        {"traceloop.span.kind": "tool", "traceloop.entity.input": OPEN},
        {"traceloop.span.kind": ["tool"]},
        {"llm.request.type": ["chat"]},
        {"llm.request.type": {"chat": 1}},
        {**GENERATION, "langfuse.observation.input": OPEN},
        {**GENERATION, "langfuse.observation.model.parameters": OPEN},
        {**GENERATION, "langfuse.observation.usage_details": OPEN},
        {langfuse.TYPE: nested(400)},
        {**CHAT, semconv.TOOL_DEFINITIONS: OPEN},
        {**CHAT, semconv.TOOL_DEFINITIONS: nested(900)},
        {**CHAT, semconv.SAMPLING_SETTINGS: [nested(400)]},
        {**CHAT, semconv.TOKEN_IDS: [2**40], semconv.LOGPROBS: [-1]},
        {**CHAT, semconv.TOKEN_IDS: [1], semconv.LOGPROBS: [HUGE]},
        {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, semconv.INTERRUPTED: nested(500)},
        {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, semconv.TAGS: [nested(500)]},
        {semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT, semconv.TRAJECTORY_SPAN_COUNT: 10**4300 - 1},
    ],
    ids=lambda attributes: " ".join(attributes)[:60],
)
def test_an_attribute_of_a_hostile_sender_costs_itself(attributes: dict[str, Any]) -> None:
    good = span({**CHAT, semconv.OUTPUT_MESSAGES: '[{"role":"assistant","parts":[{"type":"text","content":"42"}]}]'})
    bad = span(attributes, number=2)
    read(bad)
    [trajectory] = build_trajectories([normalise(good), normalise(bad)])
    assert trajectory.calls[0].call.choices[0].message.text == "42"


@pytest.mark.parametrize("name", ["gen_ai.event.content", "message", "tool_calls"])
def test_an_event_of_a_hostile_sender_costs_itself(name: str) -> None:
    for value in (OPEN, closed(990), nested(100), HUGE):
        read(span(CHAT, events=[SpanEvent("gen_ai.user.message", 1, {name: value})]))


@pytest.mark.parametrize(
    "template", ["%s", '[{"role": "user", "content": %s}]', '{"messages": [{"tool_calls": [%s]}]}']
)
@pytest.mark.parametrize("name", ["langfuse.observation.input", "langfuse.observation.output"])
def test_what_can_just_be_read_need_not_be_written(name: str, template: str) -> None:
    """Between the depth that a parser still reads and the one that is still written lie a few levels, elsewhere for
    every caller."""
    call = '{"function": {"name": "f", "arguments": %s}}' if "tool_calls" in template else "%s"
    for kind in ("generation", "tool", "agent"):
        for depth in range(900, 1000):
            read(span({langfuse.TYPE: kind, name: template % (call % closed(depth))}))


# --- anything under any name ---------------------------------------------------------------------------------

_DIGITS = ["0", "1", "²", "٣", "\uff19", "Ⅷ", "-1", "9" * 5000, "00", "", " 1"]
_SEEN_BY_FOREIGN = [
    *conventions._FOREIGN,
    *spans._RENAMED,
    *(getattr(semconv, name) for name in dir(semconv) if name.isupper() and isinstance(getattr(semconv, name), str)),
    *(f"langfuse.observation.{end}" for end in ("input", "output", "model.name", "model.parameters", "usage_details")),
    *("langfuse.session.id", "input.value", "output.value", "llm.invocation_parameters", "llm.finish_reason"),
    *(
        f"{prefix}{many}.{at}.{one}.name"
        for _, prefix in feedback._PREFIXES
        for many, one in feedback._FORMS
        for at in (0, 1)
    ),
    *(f"annotations.0.annotation.{end}" for end in ("score", "label", "explanation", "annotator_kind", "identifier")),
    *("tool.name", "tool.id", "tool_call.id", "tool_call.function.name", "agent.name"),
    *(f"traceloop.entity.{end}" for end in ("name", "input", "output")),
    "llm.request.functions.0.name",
    semconv.TOKEN_IDS + ".1",
    semconv.LOGPROBS + ".1",
]
_KINDS = ["LLM", "AGENT", "TOOL", "generation", "agent", "tool", "workflow", "chat", "text_completion", "invoke_agent"]
_KINDS += ["execute_tool"]
_scalars = st.one_of(
    st.sampled_from([None, True, False, "", "x", "[", "{}", "[]", "null", '"x"', "i4:", "i4:AAAA", "f4:AAAAwH8="]),
    st.sampled_from([*_KINDS, OPEN, '{"a":' * 3000, closed(256), closed(257), closed(985), closed(3000), "1" * 5000]),
    st.sampled_from([0, -1, 2**31, 2**63, 2**64, HUGE, 10**4300 - 1, 1e300, float("nan"), float("inf")]),
    st.sampled_from([nested(60), nested(240), nested(600)]),
)
_FIELDS = ["role", "content", "parts", "type", "text", "tool_calls", "function", "name", "arguments", "id", "image"]
_FIELDS += ["args", "kwargs", "messages", "tools", "message", "tool_call", "message_content", "contents", "url", "tool"]
_FIELDS += ["json_schema", "parameters", "prompt_tokens_details", "model", "temperature", "finish_reason", "response"]
_values = st.recursive(
    _scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(_FIELDS), inner, max_size=4)),
    max_leaves=8,
)
_hostile = st.one_of(_values, _values.map(json.dumps))
_steps = st.sampled_from([*_DIGITS, *_FIELDS])
_numbered = st.builds(
    lambda start, steps, times: ".".join([start, *steps * times]),
    st.sampled_from(
        [
            *("gen_ai.prompt", "gen_ai.completion", "llm.request.functions"),
            *("llm.input_messages", "llm.output_messages", "llm.tools"),
        ]
    ),
    st.lists(_steps, min_size=1, max_size=5),
    st.sampled_from([1, 1, 1, 400]),
)
_attributes = st.dictionaries(st.one_of(st.sampled_from(_SEEN_BY_FOREIGN), _numbered), _hostile, max_size=8)
_kinds = st.dictionaries(
    st.sampled_from([langfuse.TYPE, "openinference.span.kind", "traceloop.span.kind", semconv.OPERATION_NAME]),
    st.sampled_from(_KINDS),
    max_size=2,
)
_events = st.lists(
    st.builds(
        SpanEvent,
        st.sampled_from([*conventions._INPUT_EVENTS, "gen_ai.choice", semconv.EVALUATION_EVENT]),
        st.sampled_from([0, 1, 2**63, 2**64 - 1]),
        st.dictionaries(
            st.sampled_from([*_FIELDS, "gen_ai.event.content", semconv.EVALUATION_SCORE, semconv.REWARD_ID]),
            _hostile,
            max_size=4,
        ),
    ),
    max_size=2,
)
_quiet = settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
_several = st.lists(st.tuples(_attributes, _kinds, _events), min_size=1, max_size=3)
_Several = list[tuple[dict[str, Any], dict[str, str], list[SpanEvent]]]


def survives(several: _Several) -> None:
    read(
        *(
            span(
                {**attributes, **kinds},
                number=number,
                events=events,
                parent_span_id=f"{1:016x}" if number > 1 else None,
            )
            for number, (attributes, kinds, events) in enumerate(several, 1)
        )
    )


@_quiet
@given(_several)
def test_no_attribute_makes_a_reader_raise(several: _Several) -> None:
    survives(several)


@pytest.mark.full
@settings(_quiet, max_examples=5_000, derandomize=False)
@given(_several)
def test_none_of_thousands_of_spans_makes_a_reader_raise(several: _Several) -> None:
    survives(several)


# --- numbers -------------------------------------------------------------------------------------------------


def test_a_reward_beyond_what_the_store_holds() -> None:
    """A time beyond 64 bits with a sign is the last one; a value beyond a float is none."""
    events = [
        SpanEvent(semconv.EVALUATION_EVENT, 2**64 - 1, {semconv.EVALUATION_SCORE: 1}),
        SpanEvent(semconv.EVALUATION_EVENT, 1, {semconv.EVALUATION_SCORE: HUGE}),
    ]
    [reward] = rewards_of(span({}, events=events))
    assert (reward.value, reward.time_ns) == (1.0, 2**63 - 1)
    assert decode_record(encode_record(reward)) == reward


@pytest.mark.parametrize(
    "record",
    [
        span({}),
        Reward(id="r", trajectory_id="t", value=1),
    ],
)
@pytest.mark.parametrize("time_ns", [2**63, -(2**63) - 1])
def test_a_record_with_a_time_beyond_64_bits_is_none(record: SpanRow | Reward, time_ns: int) -> None:
    field = "end_ns" if isinstance(record, SpanRow) else "time_ns"
    document = json.loads(encode_record(record)) | {field: time_ns}
    with pytest.raises(ValueError, match=field):
        decode_record(json.dumps(document).encode())


def test_times_of_langfuse_that_no_clock_shows() -> None:
    observations = [{"id": "o", "type": "SPAN", "startTime": "2025-01-01T00:00:00Z", "endTime": "9999-12-31T23:59:59Z"}]
    scores = [
        {"id": "s", "name": "n", "value": value, "timestamp": "9999-12-31T23:59:59Z"}
        for value in (HUGE, float("nan"), 1)
    ]
    read = list(langfuse.records({"id": "t", "observations": observations, "scores": scores}))
    records = [one for one in read if not isinstance(one, LeftOutItem)]
    assert len(read) == len(records) + 2
    assert [decode_record(encode_record(record)) for record in records] == records
    [row] = [record for record in records if isinstance(record, SpanRow)]
    assert row.start_ns == row.end_ns
    assert [record.value for record in records if isinstance(record, Reward)] == [1.0]


@pytest.mark.parametrize("value", [2**64 - 1, 2**63, -(2**63) - 1, HUGE])
def test_integers_that_otlp_cannot_hold_go_out_as_text(value: int) -> None:
    row = span({"a": value, "b": [value]})
    [again] = parse_json(encode_json([row])).spans
    assert again.attributes == {"a": str(value), "b": [str(value)]}
    assert protobuf_spans(encode_protobuf([row])) == [again]


# --- OTLP ----------------------------------------------------------------------------------------------------


def request(*spans: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()


def otlp_span(number: int = 1, **more: Any) -> dict[str, Any]:
    return {"traceId": "ab" * 16, "spanId": f"{number:016x}", "name": "x", "startTimeUnixNano": "1", **more}


def test_a_json_request_has_the_bounds_of_a_protobuf_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_json, "MAX_SPANS", 2)
    assert len(parse_json(request(*map(otlp_span, (1, 2)))).spans) == 2
    with pytest.raises(TooManySpans) as raised:
        parse_json(request({}, {}, {}))
    assert failed("application/json", raised.value).status == 413
    monkeypatch.setattr(decode_json, "MAX_ATTRIBUTES", 1)
    pairs = [{"key": key, "value": {"intValue": "1"}} for key in "ab"]
    export = parse_json(request(otlp_span(1, attributes=pairs), otlp_span(2, attributes=pairs[:1])))
    assert (len(export.spans), export.refused) == (1, 1)
    assert "attributes" in export.reason
    monkeypatch.setattr(decode_json, "MAX_SPAN_BYTES", 500)
    export = parse_json(request(otlp_span(1, name="x" * 501), otlp_span(2)))
    assert (len(export.spans), export.refused) == (1, 1)
    assert "bytes" in export.reason


def test_text_that_is_a_deep_array_costs_its_span() -> None:
    """`str` of it raises where the parser did not."""
    for depth in (300, 600, 900):
        deep = [{"key": "a", "value": {"stringValue": "DEEP"}}]
        body = request(otlp_span(1, attributes=deep), otlp_span(2))
        export = parse_json(body.replace(b'"DEEP"', closed(depth).encode()))
        assert export.spans[-1].span_id == f"{2:016x}"


def test_a_key_given_twice_leaves_nothing_of_its_first_value() -> None:
    made = ExportTraceServiceRequest()
    one = (
        made.resource_spans.add()
        .scope_spans.add()
        .spans.add(trace_id=b"\xab" * 16, span_id=b"\x01" * 8, name="x", start_time_unix_nano=1)
    )
    one.attributes.add(key="a").value.bytes_value = b"first"
    one.attributes.add(key="a").value.string_value = "last"
    [row] = protobuf_spans(made.SerializeToString())
    assert (row.attributes, row.rest) == ({"a": "last"}, None)


# --- files ---------------------------------------------------------------------------------------------------

CONVERSATION = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}


@pytest.mark.parametrize("depth", [300, 900, 960, 3000])
def test_a_deep_line_is_refused_alone(depth: int) -> None:
    value = closed(depth)
    for line in (OPEN, f'{{"observations": {value}}}', f'{{"messages": [{{"role": "user", "content": {value}}}]}}'):
        found = read_file("\n".join([json.dumps(CONVERSATION), line, line]).encode(), "x")
        good = len(read_file(json.dumps(CONVERSATION).encode(), "x").records)
        assert len(found.records) >= good
        for record in found.records:
            assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize(
    "change",
    [
        {"trace_id": "zz"},
        {"span_id": "0" * 16},
        {"parent_span_id": "x"},
        {"start_ns": -1},
        {"flags": -1},
        {"attributes": {"a": nested(400)}},
        {"links": [{"trace_id": "zz", "span_id": "yy"}]},
        {"events": [{"name": "x", "time_ns": -1}]},
    ],
)
def test_a_record_that_no_export_could_write_is_refused(change: dict[str, Any]) -> None:
    good = json.loads(encode_record(span({"a": 1})))
    found = read_file(b"\n".join(json.dumps(item).encode() for item in (good, good | change)), "x")
    [kept, *instead] = sorted(found.records, key=lambda one: isinstance(one, SpanRow) and is_stand_in(one))
    assert (encode_record(kept), found.refused) == (encode_record(span({"a": 1})), 1)
    assert [isinstance(one, SpanRow) and is_stand_in(one) for one in instead] == [True] * ("trace_id" not in change)


@pytest.mark.parametrize("places", [[["no"]], [[]], [["a"]], [["a", "b"]], [["a", 0]]])
def test_places_that_are_not_there_do_not_end_an_export(places: list[list[str | int]]) -> None:
    good = json.loads(encode_record(span({"a": "!"})))
    found = read_file(json.dumps(good | {"rest": {"typed": {"bytes": places, "double": places}}}).encode(), "x")
    rows = [record for record in found.records if isinstance(record, SpanRow)]
    assert parse_json(encode_json(rows)).refused == 0
    assert len(protobuf_spans(encode_protobuf(rows))) == len(rows) == 1


@pytest.mark.parametrize("key", ["model", "name", "level", "statusMessage", "usage", "input", "metadata"])
def test_an_observation_of_a_hostile_export_costs_itself(key: str) -> None:
    start = {"traceId": "t", "startTime": "2025-01-01T00:00:00Z", "type": "GENERATION"}
    for value in (nested(200), nested(900), HUGE):
        bad, good = {**start, "id": "a", "traceId": "u", key: value}, {**start, "id": "b"}
        found = read_file(f"{json.dumps(good)}\n{json.dumps(bad)}".encode(), "x")
        read(*(record for record in found.records if isinstance(record, SpanRow)))
        assert found.records
        assert parse_json(encode_json(record for record in found.records if isinstance(record, SpanRow))).refused == 0


SCORE = {"id": "s", "name": "n", "value": 1, "timestamp": "2025-01-01T00:00:00Z", "source": "EVAL", "comment": "c"}
OBSERVATION = {
    "id": "o", "traceId": "t", "type": "GENERATION", "name": "n", "startTime": "2025-01-01T00:00:00Z",
    "endTime": "2025-01-01T00:00:01Z", "input": {"messages": CONVERSATION["messages"], "tools": [{"name": "f"}]},
    "output": {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"a": 1}}]}, "model": "m",
    "modelParameters": {"temperature": 1}, "usageDetails": {"input": 1}, "level": "ERROR", "statusMessage": "e",
    "parentObservationId": "p",
}  # fmt: skip
EXCHANGE = {
    "request": {**CONVERSATION, "model": "m", "tools": [{"function": {"name": "f"}}]},
    "response": {"id": "r", "model": "m", "created": 1e9, "usage": {"prompt_tokens": 1},
                 "choices": [{"message": {"role": "assistant", "content": "c"}, "finish_reason": "stop"}]},
}  # fmt: skip
OTLP_SPAN = otlp_span(
    attributes=[{"key": "a", "value": {"arrayValue": {"values": [{"kvlistValue": {"values": []}}]}}}],
    events=[{"name": "e", "timeUnixNano": 1, "attributes": [{"key": "b", "value": {"bytesValue": "AA=="}}]}],
    links=[{"traceId": "ab" * 16, "spanId": "cd" * 8}],
    status={"code": 1}, parentSpanId="ef" * 8, flags=1, droppedAttributesCount=1,
)  # fmt: skip
VERL = {"input": "user\nQ\nassistant\n", "output": "A", "gts": "A", "score": 1.0, "step": 1, "acc": 1}
AGL_EVENT = {"rollout_id": "r", "attempt_id": "0", "timestamp": 1.8e9}
AGL = {
    "rollout": {"rollout_id": "r", "input": {"q": 1}, "is_train": False, "metadata": {"n": 1},
                "status": {"state": "succeeded", "last_attempt_id": "0", "created_at": 1.8e9}},
    "events": [
        {**AGL_EVENT, "event_type": "model_request", "data": {**EXCHANGE, "latency_ms": 5.0, "http_status": 200}},
        {**AGL_EVENT, "event_type": "reward", "data": {"value": 1.0}},
        {**AGL_EVENT, "event_type": "note", "data": {"a": 1}},
    ],
}  # fmt: skip
_GOOD_ITEMS = [
    {"id": "t", "timestamp": SCORE["timestamp"], "observations": [OBSERVATION], "scores": [SCORE], "sessionId": "s"},
    OBSERVATION,
    EXCHANGE,
    VERL,
    {**VERL, "uid": "u_0_0", "reward": 1.0},
    AGL,
    {**CONVERSATION, "task_id": "t", "reward": 1, "model": "m", "tools": [{"name": "f"}], "created": 1e9},
    {"resourceSpans": [{"resource": {"attributes": [], "entityRefs": [{"idKeys": ["a"]}]}, "schemaUrl": "u",
                        "scopeSpans": [{"scope": {"name": "n"}, "spans": [OTLP_SPAN]}]}]},
    json.loads(encode_record(Reward(id="r", trajectory_id="t", value=1, time_ns=1))),
    json.loads(encode_record(span({"a": 1}, events=[SpanEvent("e", 1, {"a": 1})]))),
    *(item for items in ITEMS.values() for item in items),
]  # fmt: skip
_files = st.lists(st.one_of(*map(damaged, _GOOD_ITEMS)), min_size=1, max_size=3)


def imports(lines: list[str]) -> None:
    try:
        records = read_file("\n".join(lines).encode(), "x").records
    except Unreadable:
        return
    assert [decode_record(encode_record(record)) for record in records] == records
    rows = [record for record in records if isinstance(record, SpanRow)]
    read(*rows)
    assert len(protobuf_spans(encode_protobuf(rows))) == len(rows)
    encode_json(rows)


@example([json.dumps(one) for one in (_GOOD_ITEMS[5], {**_GOOD_ITEMS[6], "start_ns": True})])
@settings(_quiet, max_examples=500)
@given(_files)
def test_no_file_ends_an_import_or_the_export_after_it(lines: list[str]) -> None:
    imports(lines)


@pytest.mark.full
@settings(_quiet, max_examples=5_000, derandomize=False)
@given(_files)
def test_none_of_thousands_of_files_ends_an_import_or_the_export_after_it(lines: list[str]) -> None:
    imports(lines)
