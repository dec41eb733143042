"""A run of which the collector refused a log record that holds a GenAI event is not complete: it lacks a message."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from refusing_site import TRACE, Site, run

from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.formats.otlp import check_protobuf, decode_json
from arttrace.formats.otlp.protobuf_fields import encode_bytes

CALL = b"\x0b" * 8
TIME = 1_700_000_000_000_000_050


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (check_protobuf, decode_json):
        monkeypatch.setattr(module, "MAX_SPAN_BYTES", 4000)


def record(said: str = "hello", **more: Any) -> LogRecord:
    about = {"trace_id": TRACE, "span_id": CALL, "time_unix_nano": TIME, "event_name": "gen_ai.user.message"}
    made = LogRecord(**{**about, **more})
    made.body.kvlist_value.values.add(key="content").value.string_value = said
    return made


def written(said: str = "hello", **more: Any) -> bytes:
    return record(said, **more).SerializeToString()


def broken(**more: Any) -> bytes:
    """Its body is no UTF-8."""
    return written(**more).replace(b"hello", b"h\xffllo")


def old_broken(name: str) -> bytes:
    """One that has its name in an attribute, as before there was a field for it."""
    made = record(event_name="")
    made.attributes.add(key="event.name").value.string_value = name
    return made.SerializeToString().replace(b"hello", b"h\xffllo")


def deep(levels: int) -> bytes:
    value = AnyValue(string_value="x")
    for _ in range(levels):
        value = AnyValue(array_value={"values": [value]})
    made = record()
    made.body.CopyFrom(value)
    return made.SerializeToString()


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "body": (broken, "no UTF-8"),
    "name in an attribute": (lambda: old_broken("gen_ai.choice"), "no UTF-8"),
    "broken name": (lambda: written().replace(b"gen_ai.user", b"gen_ai.\xffser"), "no UTF-8"),
    "cut before its name": (lambda: written()[: -len("gen_ai.user.message") - 2] + b"\x62\x7f", "damaged bytes"),
    "too large": (lambda: written("x" * 5000), "over 4000 bytes"),
    "nested too deep": (lambda: deep(49), "nested too deep"),
    "nested too deep for a span": (lambda: deep(48), "nested too deep"),
    "no span": (lambda: written(span_id=b""), "names no span"),
    "a span that is none": (lambda: written(span_id=b"ab"), "span id"),
    "times": (lambda: written(time_unix_nano=0), "nanoseconds since 1970"),
}


@pytest.mark.parametrize(("kind", "first"), [("times", True), *((kind, False) for kind in REFUSED)])
def test_a_run_of_which_a_log_record_was_refused_is_not_complete(site: Site, kind: str, first: bool) -> None:
    make, why = REFUSED[kind]
    if not first:
        site.send(*run())
    assert site.send_logs(make(), written()) == 1
    if first:
        site.send(*run())
    [said] = site.incomplete()
    assert said.startswith("a log record was refused: ")
    assert why in said
    assert site.sink.refused == 0  # counted by the collector that was there before the restart
    assert site.send_logs(make()) == 1  # again: it is the same one
    assert site.sink.refused == 1
    assert site.incomplete() == [said]


JSON_RECORD = {
    "traceId": TRACE.hex(),
    "spanId": CALL.hex(),
    "timeUnixNano": str(TIME),
    "eventName": "gen_ai.user.message",
    "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "hello"}}]}},
}
NAME = {"key": "event.name", "value": {"stringValue": "gen_ai.choice"}}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"body": "hello"}, "expected an object"),
        ({"body": {"intValue": "many"}}, "not a whole number"),
        ({"body": {"stringValue": "x" * 5000}}, "over 4000 bytes"),
        ({"timeUnixNano": "soon"}, "timeUnixNano"),
        ({"timeUnixNano": None}, "nanoseconds since 1970"),
        ({"traceId": TRACE.hex().upper(), "spanId": None}, "names no span"),
        ({"spanId": 7}, "spanId is no text"),
        ({"spanId": "zz"}, "span id"),
        ({"eventName": 7}, "eventName is no text"),
        ({"attributes": 7}, "attributes is no array"),
        ({"eventName": None, "attributes": 7}, "attributes is no array"),
        ({"eventName": None, "attributes": [NAME], "body": 7}, "expected an object"),
        ({"eventName": None, "attributes": [7, NAME]}, "expected an object"),
    ],
)
def test_the_same_holds_for_json(site: Site, change: dict[str, Any], why: str) -> None:
    site.send(*run())
    bad = {**JSON_RECORD, **change}
    assert site.send_json_logs(bad, JSON_RECORD) == 1
    assert site.sink.refused == 1
    [said] = site.incomplete()
    assert said.startswith("a log record was refused: ")
    assert why in said
    assert site.send_json_logs(bad) == 1  # again: it is the same one
    assert site.incomplete() == [said]


def test_a_record_that_names_no_trace_is_only_counted(site: Site) -> None:
    site.send(*run())
    assert site.send_logs(broken(trace_id=b""), broken(trace_id=b"short"), written(trace_id=b"")) == 3
    assert site.send_json_logs({**JSON_RECORD, "traceId": None}, {**JSON_RECORD, "traceId": "zz"}, 7) == 3
    assert site.sink.refused == 6
    assert site.incomplete() == [""]


def test_logs_that_are_no_genai_events_are_missed_by_no_run(site: Site) -> None:
    site.send(*run())
    for name in ("", "http.request"):
        site.send_logs(broken(event_name=name), old_broken(name), written("x" * 5000, event_name=name))
        site.send_json_logs(
            {**JSON_RECORD, "eventName": name, "body": 7},
            {**JSON_RECORD, "eventName": name, "timeUnixNano": "soon"},
            {**JSON_RECORD, "eventName": name, "body": {"stringValue": "x" * 5000}},
        )
    assert site.incomplete() == [""]


def test_records_under_a_resource_that_cannot_be_read_are_each_missed(site: Site) -> None:
    site.send(*run())
    other = {**JSON_RECORD, "eventName": "gen_ai.choice"}
    scopes = [{"logRecords": [JSON_RECORD, other, {**JSON_RECORD, "eventName": "http.request"}]}]
    answer = site.client.post("/v1/logs", json={"resourceLogs": [{"resource": {"attributes": 5}, "scopeLogs": scopes}]})
    assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "2"
    [said] = site.incomplete()
    assert said == "2 log records were refused: attributes is no array"


def test_several_refused_records_about_one_span_are_counted_each_once(site: Site) -> None:
    site.send(*run())
    several = [written(word).replace(b"hello", b"\xffello") for word in ("hello one", "hello two", "hello six")]
    for _ in range(2):
        assert site.send_logs(*several) == 3
    for one in several:  # in other batches
        site.send_logs(one)
    [said] = site.incomplete()
    assert said.startswith("3 log records were refused: ")


@pytest.mark.parametrize("make", [broken, lambda: deep(48), lambda: written("x" * 5000)])
def test_the_answer_speaks_of_a_log_record(site: Site, make: Callable[[], bytes]) -> None:
    content = encode_bytes(make(), 2, 2, 1)
    answer = site.client.post("/v1/logs", content=content, headers={"content-type": PROTOBUF})
    said = ExportLogsServiceResponse.FromString(answer.content).partial_success.error_message
    assert ("log record" in said, "a span" in said) == (True, False)
