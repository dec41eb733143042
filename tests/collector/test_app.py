from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient

from arttrace.collector import app as app_module
from arttrace.collector.app import JSON, PROTOBUF, create_app
from arttrace.collector.sink import Sink
from arttrace.journal import list_segments, read_segment
from arttrace.paths import DataDir
from arttrace.records.record import decode_record
from arttrace.records.span import SpanRow
from arttrace.store import Store


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


@pytest.fixture
def sink(data: DataDir) -> Iterator[Sink]:
    sink = Sink(data)
    yield sink
    sink.close()


@pytest.fixture
def client(sink: Sink) -> TestClient:
    return TestClient(create_app(sink, max_body_bytes=100_000), raise_server_exceptions=False)


def request(*span_ids: bytes) -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    resource = message.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = "svc"
    scope = resource.scope_spans.add()
    scope.scope.name = "lib"
    for span_id in span_ids:
        span = scope.spans.add(
            trace_id=b"\x01" * 16, span_id=span_id, name="chat m", kind=3, start_time_unix_nano=5, end_time_unix_nano=9
        )
        span.attributes.add(key="gen_ai.operation.name").value.string_value = "chat"
        span.attributes.add(key="n").value.int_value = 2**53 + 1
        numbers = span.attributes.add(key="list").value.array_value
        numbers.values.add().double_value = 0.5
        numbers.values.add().bool_value = True
        span.attributes.add(key="map").value.kvlist_value.values.add(key="k").value.bytes_value = b"\xff"
    return message


EXPECTED = {"gen_ai.operation.name": "chat", "n": 2**53 + 1, "list": [0.5, True], "map": {"k": "/w=="}}


def as_json(span_id: Any) -> dict[str, Any]:
    attributes = [
        {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
        {"key": "n", "value": {"intValue": str(2**53 + 1)}},
        {"key": "list", "value": {"arrayValue": {"values": [{"doubleValue": 0.5}, {"boolValue": True}]}}},
        {"key": "map", "value": {"kvlistValue": {"values": [{"key": "k", "value": {"bytesValue": "/w=="}}]}}},
    ]
    span = {
        "traceId": "01" * 16,
        "spanId": span_id,
        "name": "chat m",
        "kind": 3,
        "startTimeUnixNano": "5",
        "endTimeUnixNano": 9,
        "attributes": attributes,
    }
    resource = {"attributes": [{"key": "service.name", "value": {"stringValue": "svc"}}]}
    return {"resourceSpans": [{"resource": resource, "scopeSpans": [{"scope": {"name": "lib"}, "spans": [span]}]}]}


def spooled(data: DataDir) -> list[SpanRow]:
    """What is durable now: in the spool, or already in the store."""
    found = [
        decode_record(payload) for segment in list_segments(data.spool) for _, payload in read_segment(segment.path)
    ]
    return [record for record in found if isinstance(record, SpanRow)]


def test_protobuf_and_json_give_the_same_rows(client: TestClient, data: DataDir, sink: Sink) -> None:
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
    )


def test_an_answer_comes_only_when_the_spans_are_in_the_spool(
    client: TestClient, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sink, "_load", lambda self: None)
    client.post("/v1/traces", content=request(b"\x02" * 8).SerializeToString(), headers={"content-type": PROTOBUF})
    assert [span.span_id for span in spooled(data)] == ["02" * 8]


def test_a_bad_span_is_refused_alone(client: TestClient, sink: Sink) -> None:
    body = request(b"\x02" * 8, b"short", b"\x00" * 8).SerializeToString()
    answer = client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 2)
    assert "span id" in partial.error_message
    document = as_json("02" * 8)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"] += [{"traceId": 5}, "no span", {"attributes": {"a": 1}}]
    answer = client.post("/v1/traces", json=document)
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "3"
    assert sink.acknowledged == 2


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"\xff\xfe garbage", PROTOBUF), (b"{", JSON), (b"[]", JSON), (b'{"resourceSpans": 5}', JSON), (b"\xff", JSON)],
)
def test_garbage_is_400(client: TestClient, content: bytes, kind: str) -> None:
    answer = client.post("/v1/traces", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (400, kind)
    assert b"OTLP trace request" in answer.content


def test_encodings_and_content_types(client: TestClient, sink: Sink) -> None:
    body = request(b"\x02" * 8).SerializeToString()
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
    assert client.post("/v1/traces", content=gzip.compress(body), headers=headers).status_code == 200
    assert client.post("/v1/traces", content=gzip.compress(body)[:-4], headers=headers).status_code == 400
    assert client.post("/v1/traces", content=b"no gzip", headers=headers).status_code == 400
    assert client.post("/v1/traces", content=body, headers={**headers, "content-encoding": "br"}).status_code == 415
    assert client.post("/v1/traces", content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert sink.acknowledged == 1


def test_the_bound_counts_decompressed_bytes(client: TestClient) -> None:
    bomb = gzip.compress(b"\x00" * 50_000_000)
    assert len(bomb) < 100_000
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
    assert client.post("/v1/traces", content=bomb, headers=headers).status_code == 413
    assert client.post("/v1/traces", content=b"\x00" * 100_001, headers={"content-type": PROTOBUF}).status_code == 413


def test_nesting_is_bounded(client: TestClient) -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(40):
        value = {"arrayValue": {"values": [value]}}
    document = as_json("02" * 8)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [{"key": "k", "value": value}]
    assert client.post("/v1/traces", json=document).json()["partialSuccess"]["rejectedSpans"] == "1"
    deep = '{"resourceSpans":' + "[" * 100_000
    assert client.post("/v1/traces", content=deep[:90_000], headers={"content-type": JSON}).status_code == 400


def test_a_full_disk_asks_to_try_again(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(app_module.Sink, "take", full)
    body = request(b"\x02" * 8).SerializeToString()
    answer = client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    assert b"No space left on device" in answer.content


def test_health(client: TestClient, data: DataDir) -> None:
    assert client.get("/health").json() == {"status": "ok", "directory": str(data.root), "acknowledged_spans": 0}
    assert json.dumps(client.get("/nowhere").status_code) == "404"
