"""What the collector answers to a trace request, when it does, and what it keeps of it."""

from __future__ import annotations

import gzip

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient
from trace_requests import EXPECTED, HEADERS, as_json, request, spooled

from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.records.span import SpanRest, SpanRow
from arttrace.store import Store
from arttrace.store.server.responses import JSON
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir


def test_protobuf_and_json_give_the_same_rows(client: TestClient, data: DataDir, sink: Spool) -> None:
    body = request(b"\x02" * 8).SerializeToString()
    answer = client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    assert (answer.status_code, answer.headers["content-type"]) == (200, PROTOBUF)
    assert ExportTraceServiceResponse.FromString(answer.content) == ExportTraceServiceResponse()
    answer = client.post("/v1/traces", json=as_json("02" * 8), headers={"content-type": JSON + "; charset=utf-8"})
    assert (answer.status_code, answer.json()) == (200, {})
    assert sink.acknowledged == 2
    sink.close()
    with Store.open(data) as store:
        [row] = store.spans("01" * 16)  # the two are one span
    assert row == SpanRow(
        trace_id="01" * 16,
        span_id="02" * 8,
        name="chat m",
        start_ns=5,
        end_ns=9,
        kind=3,
        attributes=EXPECTED,
        resource={"service.name": "svc"},
        scope_name="lib",
        rest=SpanRest(typed={"bytes": [("map", "k")]}),
    )


def test_an_opentelemetry_collector_in_front(client: TestClient, sink: Spool, data: DataDir) -> None:
    """Several services in one request, schema URLs, scope attributes, flags and counts of what was dropped, gzipped:
    the shape in which the OpenTelemetry Collector's otlphttp exporter passes batches on."""
    message = ExportTraceServiceRequest()
    for number, service in enumerate(("planner", "worker"), 1):
        batch = message.resource_spans.add(schema_url="https://opentelemetry.io/schemas/1.37.0")
        batch.resource.attributes.add(key="service.name").value.string_value = service
        batch.resource.dropped_attributes_count = 1
        for library in ("one", "two"):
            scope = batch.scope_spans.add(schema_url="https://opentelemetry.io/schemas/1.37.0")
            scope.scope.name, scope.scope.version = library, "2"
            scope.scope.attributes.add(key="x").value.bool_value = True
            span = scope.spans.add(
                trace_id=b"\x01" * 16,
                span_id=bytes([number, len(library) + ord(library[0])]) * 4,
                parent_span_id=b"\x09" * 8,
                trace_state="vendor=1",
                flags=0x101,
                name=library,
                start_time_unix_nano=5,
                end_time_unix_nano=9,
                dropped_attributes_count=2,
            )
            span.links.add(trace_id=b"\x02" * 16, span_id=b"\x03" * 8, flags=0x100)
            span.status.code, span.status.message = 2, "no"
    headers = {
        "content-type": PROTOBUF,
        "content-encoding": "gzip",
        "user-agent": "OpenTelemetry Collector Contrib/0.140.1 (linux/amd64)",
    }
    answer = client.post("/v1/traces", content=gzip.compress(message.SerializeToString()), headers=headers)
    assert (answer.status_code, answer.content) == (200, b"")
    sink.close()
    with Store.open(data) as store:
        rows = store.spans("01" * 16)
    assert sorted((row.resource["service.name"], row.scope_name, row.scope_version) for row in rows) == [
        (service, library, "2") for service in ("planner", "worker") for library in ("one", "two")
    ]
    for row in rows:
        assert (row.parent_span_id, row.trace_state, row.status_code, row.status_message) == (
            "09" * 8,
            "vendor=1",
            2,
            "no",
        )
        assert [(link.trace_id, link.span_id) for link in row.links] == [("02" * 16, "03" * 8)]


def test_an_answer_comes_only_when_the_spans_are_in_the_spool(
    client: TestClient, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[bool] = []
    sync = JournalWriter.sync
    monkeypatch.setattr(JournalWriter, "sync", lambda self: synced.append(True) or sync(self))  # type: ignore[func-returns-value]
    client.post("/v1/traces", content=request(b"\x02" * 8).SerializeToString(), headers={"content-type": PROTOBUF})
    assert [span.span_id for span in spooled(data)] == ["02" * 8]
    assert synced


@pytest.mark.parametrize("call", ["append", "sync"])
def test_a_full_disk_asks_to_try_again(
    client: TestClient, sink: Spool, data: DataDir, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, call, full)
        body = request(b"\x02" * 8).SerializeToString()
        answer = client.post("/v1/traces", content=body, headers=HEADERS)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert b"No space left on device" in answer.content
        assert client.get("/ready").status_code == 503
    assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 200
    assert sink.acknowledged == 1
    sink.close()
    with Store.open(data) as store:
        assert len(store.spans("01" * 16)) == 1


def test_health_and_metrics(client: TestClient, sink: Spool) -> None:
    assert client.get("/health").json() == {"status": "ok", "acknowledged_spans": 0}
    assert client.get("/nowhere").status_code == 404
    client.post("/v1/traces", content=request(b"\x02" * 8, b"bad").SerializeToString(), headers=HEADERS)
    client.post("/v1/traces", content=b"\xff", headers=HEADERS)
    shown = client.get("/metrics").text
    for line in (
        "arttrace_collector_spans_acknowledged_total 1",
        "arttrace_collector_spans_refused_total 1",
        'arttrace_collector_answers_total{status="200"} 1',
        'arttrace_collector_answers_total{status="400"} 1',
        "arttrace_collector_in_flight_bytes 0",
    ):
        assert line in shown.splitlines()
