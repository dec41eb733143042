"""Our own OTLP encoder against the official parser: what goes in is what a receiver reads."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from arttrace.capture.export.shipping.otlp import encode_request
from arttrace.formats.evaluations import reward_span, rewards_of
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.records.reward import Reward
from arttrace.records.span import SpanEvent, SpanLink, SpanRow

text = st.text(st.characters(codec="utf-8"), max_size=20)
scalar = (
    text | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
value = st.recursive(scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3))
attributes = st.dictionaries(text, value, max_size=4)
times = st.integers(1, (1 << 63) - 1)


def hexes(digits: int) -> st.SearchStrategy[str]:
    return st.integers(1, (1 << 4 * digits) - 1).map(lambda number: f"{number:0{digits}x}")


spans = st.builds(
    SpanRow,
    trace_id=hexes(32),
    span_id=hexes(16),
    name=text,
    start_ns=times,
    end_ns=st.just(0) | times,
    parent_span_id=st.none() | hexes(16),
    kind=st.integers(0, 5),
    status_code=st.integers(0, 2),
    status_message=text,
    attributes=attributes,
    events=st.lists(st.builds(SpanEvent, text, times, attributes), max_size=2),
    links=st.lists(st.builds(SpanLink, hexes(32), hexes(16), attributes), max_size=2),
    trace_state=text,
    resource=st.sampled_from([{}, {"service.name": "a"}, {"service.name": "b", "n": 1}]),
    scope_name=st.sampled_from(["", "arttrace"]),
    scope_version=st.sampled_from(["", "1"]),
)


@given(st.lists(spans, max_size=4))
def test_every_span_is_read_as_it_was(sent: list[SpanRow]) -> None:
    assert protobuf_spans(encode_request(sent)) == sent


def test_doubles_that_are_no_numbers_are_sent_as_doubles() -> None:
    sent = SpanRow("0" * 31 + "1", "0" * 15 + "1", "s", 1, 2, attributes={"x": float("inf"), "y": float("nan")})
    request = ExportTraceServiceRequest.FromString(encode_request([sent]))
    values = [each.value.double_value for each in request.resource_spans[0].scope_spans[0].spans[0].attributes]
    assert values[0] == float("inf")
    assert math.isnan(values[1])


@pytest.mark.parametrize(
    "bad",
    [
        {"trace_id": "no hex"},
        {"start_ns": -1},
        {"attributes": {"half a pair": "\ud83d"}},
        {"attributes": {"deep": (deep := [])}},
    ],
    ids=["id", "time", "text", "depth"],
)
def test_what_otlp_cannot_hold_is_a_value_error(bad: dict[str, Any]) -> None:
    if not deep:
        deep.append(deep)
    whole: dict[str, Any] = {"trace_id": "1" * 32, "span_id": "2" * 16, "name": "x", "start_ns": 1, "end_ns": 2}
    with pytest.raises(ValueError, match=r".+"):
        encode_request([SpanRow(**{**whole, **bad})])


def test_a_number_beyond_64_bits_is_kept_as_text() -> None:
    [span] = protobuf_spans(encode_request([SpanRow("1" * 32, "2" * 16, "x", 1, 2, attributes={"big": 1 << 70})]))
    assert span.attributes == {"big": str(1 << 70)}


@pytest.mark.parametrize(
    "reward",
    [
        Reward("r1", "t1", 0.75, name="resolved", agent_id="a", explanation="because", time_ns=5),
        Reward("r2", "t1", -1.0, source="judge", time_ns=6),
    ],
)
def test_a_reward_comes_back_from_its_span(reward: Reward) -> None:
    [span] = protobuf_spans(encode_request([reward_span(reward)]))
    assert list(rewards_of(span)) == [reward]
    assert reward_span(reward) == reward_span(reward)
