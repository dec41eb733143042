"""A run of which the collector refused a span is not complete, until that span is sent as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from refusing_site import LEAF, ROOT, TRACE, Site, run, span

from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.formats.otlp import check_protobuf, decode_json
from arttrace.store import Store


def good_leaf() -> bytes:
    return span(LEAF, "chat").SerializeToString()


def with_attributes() -> bytes:
    leaf = span(LEAF, "chat")
    for number in range(9):
        leaf.attributes.add(key=f"a{number}").value.int_value = 1
    return leaf.SerializeToString()


def broken_text() -> bytes:
    return good_leaf().replace(b"chat it", b"ch\xfft it")


def truncated() -> bytes:
    return good_leaf()[:-4]


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "too many attributes": (with_attributes, "more than 8 attributes"),
    "times": (lambda: span(LEAF, "chat", start_time_unix_nano=0).SerializeToString(), "nanoseconds since 1970"),
    "too large": (lambda: span(LEAF, "chat", trace_state="x" * 5000).SerializeToString(), "over 4000 bytes"),
    "parent": (lambda: span(LEAF, "chat", parent_span_id=b"short").SerializeToString(), "parent span id"),
    "text": (broken_text, "no UTF-8"),
    "damaged bytes": (truncated, "damaged bytes"),
}


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_protobuf, "MAX_ATTRIBUTES", 8)
    monkeypatch.setattr(check_protobuf, "MAX_SPAN_BYTES", 4000)
    monkeypatch.setattr(decode_json, "MAX_ATTRIBUTES", 8)


@pytest.mark.parametrize(("kind", "together"), [("times", False), *((kind, True) for kind in REFUSED)])
def test_a_run_of_which_a_span_was_refused_is_not_complete(site: Site, kind: str, together: bool) -> None:
    make, why = REFUSED[kind]
    if together:
        assert site.send(*run(), make()) == 1
    else:
        assert [site.send(make()), site.send(*run())] == [1, 0]
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")
    assert why in said
    assert site.send(make()) == 1  # again: it is the same one
    assert site.incomplete() == [said]
    assert site.send(good_leaf()) == 0
    assert site.incomplete() == [""]
    assert site.send(make()) == 1  # what came as it should is there
    assert site.incomplete() == [""]


JSON_LEAF = {
    "traceId": TRACE.hex(),
    "spanId": LEAF.hex(),
    "parentSpanId": ROOT.hex(),
    "name": "chat it",
    "startTimeUnixNano": "1700000000000000012",
    "endTimeUnixNano": "1700000000000001012",
    "attributes": [{"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}}],
}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"attributes": [{"key": "n", "value": {"intValue": "many"}}]}, "not a whole number"),
        ({"attributes": [{"key": str(n), "value": {}} for n in range(9)]}, "more than 8 attributes"),
        ({"startTimeUnixNano": None}, "nanoseconds since 1970"),
        ({"name": 5}, "name is no text"),
        ({"traceId": TRACE.hex().upper(), "parentSpanId": "zz"}, "parent span id"),
        ({"spanId": "zz"}, "span id"),
    ],
)
def test_the_same_holds_for_json(site: Site, change: dict[str, Any], why: str) -> None:
    site.send(*run())
    assert site.send_json({**JSON_LEAF, **change}) == 1
    [said] = site.incomplete()
    assert said.startswith("a span was refused: ")
    assert why in said
    assert site.send_json(JSON_LEAF) == 0
    assert site.incomplete() == ([said] if "spanId" in change else [""])  # without its id none is known to be it


def test_of_spans_under_a_resource_that_cannot_be_read_each_is_missed(site: Site) -> None:
    site.send(*run())
    document = {
        "resourceSpans": [{"resource": {"attributes": 5}, "scopeSpans": [{"spans": [JSON_LEAF]}]}],
    }
    answer = site.client.post("/v1/traces", json=document)
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "1"
    request = ExportTraceServiceRequest()
    of_resource = request.resource_spans.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "svc"
    of_resource.scope_spans.add().spans.append(span(b"\x0d" * 8, "chat"))
    body = request.SerializeToString().replace(b"svc", b"\xff\xff\xff")
    answer = site.client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 1
    [said] = site.incomplete()
    assert said.count("a span was refused") == 2


def test_what_stands_in_is_small_and_shown_as_no_part_of_the_run(site: Site) -> None:
    huge = span(LEAF, "chat", name="n" * 3000, trace_state="x" * 3000)
    huge.attributes.add(key="arttrace.trajectory.id").value.string_value = "t" * 3000
    site.send(*run(), huge.SerializeToString())
    assert len(site.incomplete()[0]) < 500
    with Store.open(site.data) as store:
        [stands_in] = [one for one in store.spans(TRACE.hex()) if one.span_id == LEAF.hex()]
        assert len(json.dumps(stands_in.attributes)) < 200
        assert (len(stands_in.name) <= 100, len(stands_in.status_message) <= 200) == (True, True)
        [run_of_it] = store.trajectories()
        assert len(run_of_it.calls) == 1
        for view in ("spans", "calls", "trajectories", "agents"):
            assert LEAF.hex() not in str(store.sql(f"SELECT * FROM {view}")[1])
        assert store.sql("SELECT calls FROM trajectories")[1] == [(1,)]


def test_refused_spans_alone_are_no_run(site: Site) -> None:
    site.send(truncated())
    assert site.incomplete() == []
    with Store.open(site.data) as store:
        assert store.sql("SELECT * FROM trajectories")[1] == []
        assert store.recorded_ids(limit=5) == []


def without_id(said: str) -> bytes:
    made = span(b"\x0d" * 8, "chat", span_id=b"")
    made.attributes.add(key="said").value.string_value = said
    return made.SerializeToString()


def test_what_has_no_id_is_missed_once_however_often_and_in_whatever_batches_it_is_sent(site: Site) -> None:
    """Nothing tells whether what comes later is it: the run stays incomplete."""
    site.send(*run())
    three = [without_id("a"), without_id("b"), without_id("a").replace(b"said", b"s\xffid")]
    assert site.send(*three) == 3
    assert site.send(three[0], three[0]) == 2
    assert [site.send(*reversed(three)), site.send(three[2])] == [3, 1]
    [said] = site.incomplete()
    assert said.count("2 spans were refused: ") == said.count("a span was refused: ") == 1
    assert site.send(good_leaf()) == 0
    assert site.incomplete() == [said]


def test_the_same_of_json(site: Site) -> None:
    site.send(*run())
    two = [{**JSON_LEAF, "spanId": "zz", "status": {"message": word}} for word in "ab"]
    assert site.send_json(*two) == 2
    assert [site.send_json(*reversed(two)), site.send_json(dict(reversed(two[0].items())))] == [2, 1]
    [said] = site.incomplete()
    assert said.startswith("2 spans were refused: ")
