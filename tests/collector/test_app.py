"""What the collector answers to a trace request, and what it keeps of it."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.group_commit import GroupCommit
from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.formats.journal_entry import decode_payload
from arttrace.formats.otlp import check_protobuf
from arttrace.formats.otlp.protobuf_fields import encode_bytes
from arttrace.records.span import SpanRest, SpanRow
from arttrace.store import Store
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.responses import JSON
from arttrace.system.journal import JournalWriter, list_segments, read_segment
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    return DataDir(tmp_path)


@pytest.fixture
def sink(data: DataDir) -> Iterator[Spool]:
    sink = Spool(data)
    yield sink
    sink.close()


@pytest.fixture
def app(sink: Spool, data: DataDir) -> CollectorApp:
    return CollectorApp(sink, Forward(data), Authorizer("token"), max_body_bytes=100_000, in_flight_bytes=250_000)


@pytest.fixture
def client(app: CollectorApp) -> TestClient:
    return TestClient(app, base_url="http://localhost", raise_server_exceptions=False)


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


HEADERS = {"content-type": PROTOBUF}


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
    payloads = [payload for segment in list_segments(data.spool) for _, payload in read_segment(segment.path)]
    return [record for payload in payloads for record in decode_payload(payload) if isinstance(record, SpanRow)]


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


def test_nothing_is_acknowledged_whose_flush_failed_while_its_segment_was_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushing, go_on = threading.Event(), threading.Event()
    outcomes = iter([None, OSError(5, "Input/output error")])

    def flush(_fd: int) -> None:
        flushing.set()
        assert go_on.wait(60)
        error = next(outcomes, None)
        if error is not None:
            raise error

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", flush)
    commit = GroupCommit(JournalWriter(tmp_path, max_segment_bytes=300, fsync_interval_s=None))
    first = commit.append(b"1" * 10)
    assert flushing.wait(60)
    second, third = commit.append(b"2" * 200), commit.append(b"3" * 200)  # the third seals the second's segment
    go_on.set()
    assert first.result(60) is None
    assert isinstance(second.exception(60), OSError)
    assert isinstance(third.exception(60), OSError)
    assert commit.append(b"4" * 10).result(60) is None
    commit.close()


def test_what_comes_after_the_end_is_answered_and_is_to_be_sent_again(tmp_path: Path) -> None:
    commit = GroupCommit(JournalWriter(tmp_path, fsync_interval_s=None))
    assert commit.append(b"1").result(60) is None
    commit.close()
    assert isinstance(commit.append(b"2").exception(10), OSError)
    commit.close()
    [segment] = list_segments(tmp_path)
    assert [payload for _, payload in read_segment(segment.path, 0)] == [b"1"]


def test_a_request_that_is_given_up_costs_the_others_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushing, go_on = threading.Event(), threading.Event()

    def flush(_fd: int) -> None:
        flushing.set()
        assert go_on.wait(60)

    monkeypatch.setattr("arttrace.system.journal.writer._datasync", flush)
    commit = GroupCommit(JournalWriter(tmp_path, fsync_interval_s=None))
    first = commit.append(b"1")
    assert flushing.wait(60)
    given_up, other = commit.append(b"2"), commit.append(b"3")
    first.cancel()  # as the task that waits for it is
    given_up.cancel()
    go_on.set()
    assert other.result(60) is None
    assert commit.append(b"4").result(60) is None
    commit.close()


def test_a_bad_span_is_refused_alone(client: TestClient, sink: Spool) -> None:
    body = request(b"\x02" * 8, b"short", b"\x00" * 8).SerializeToString()
    answer = client.post("/v1/traces", content=body, headers={"content-type": PROTOBUF})
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 2)
    assert "span id" in partial.error_message
    document = as_json("02" * 8)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"] += [{"traceId": 5}, "no span", {"attributes": {"a": 1}}]
    answer = client.post("/v1/traces", json=document)
    assert answer.json()["partialSuccess"]["rejectedSpans"] == "3"
    assert (sink.acknowledged, sink.refused) == (2, 5)


@pytest.mark.parametrize("name", ["start_time_unix_nano", "end_time_unix_nano"])
def test_a_time_that_no_column_holds_is_refused_and_the_latest_one_is_stored(
    client: TestClient, sink: Spool, data: DataDir, name: str
) -> None:
    in_json = {"start_time_unix_nano": "startTimeUnixNano", "end_time_unix_nano": "endTimeUnixNano"}[name]
    for number, (time_ns, refused) in enumerate(((2**63, 1), (2**64 - 1, 1), (2**63 - 1, 0)), 2):
        message, document = request(bytes([number]) * 8), as_json(f"{number + 16:02x}" * 8)
        setattr(message.resource_spans[0].scope_spans[0].spans[0], name, time_ns)
        document["resourceSpans"][0]["scopeSpans"][0]["spans"][0][in_json] = str(time_ns)
        answer = client.post("/v1/traces", content=message.SerializeToString(), headers={"content-type": PROTOBUF})
        partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
        assert (answer.status_code, partial.rejected_spans) == (200, refused)
        answer = client.post("/v1/traces", json=document)
        assert int(answer.json().get("partialSuccess", {}).get("rejectedSpans", 0)) == refused
    assert (sink.acknowledged, sink.refused) == (2, 4)
    sink.close()
    with Store.open(data) as store:
        column = f"CAST(json_extract(document, '$.{name.split('_')[0]}_ns') AS BIGINT)"
        assert store.sql(f"SELECT count(*) FROM span_records WHERE {column} = {2**63 - 1}")[1] == [(2,)]
        for view in ("trajectories", "spans", "calls", "groups"):
            store.sql(f"SELECT * FROM {view}")


def test_a_parent_of_all_zeros_is_none(client: TestClient, sink: Spool, data: DataDir) -> None:
    """Exporters in the wild send it for a root."""
    message = request(b"\x02" * 8)
    message.resource_spans[0].scope_spans[0].spans[0].parent_span_id = b"\x00" * 8
    headers = {"content-type": PROTOBUF}
    assert client.post("/v1/traces", content=message.SerializeToString(), headers=headers).status_code == 200
    document = as_json("03" * 8)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["parentSpanId"] = "0" * 16
    assert client.post("/v1/traces", json=document).status_code == 200
    assert (sink.acknowledged, sink.refused) == (2, 0)
    sink.close()
    with Store.open(data) as store:
        rows = store.sql("SELECT span_id, parent_span_id FROM spans ORDER BY span_id")[1]
        assert rows == [("02" * 8, None), ("03" * 8, None)]
        assert [one.incomplete for one in store.summaries()] == [""]


def test_broken_text_is_refused_alone(client: TestClient, sink: Spool, data: DataDir) -> None:
    body = request(b"\x02" * 8, b"\x03" * 8, b"\x04" * 8).SerializeToString()
    broken = body.replace(b"chat m", b"ch\xfft m", 1)  # no UTF-8: protobuf does not parse the whole
    answer = client.post("/v1/traces", content=broken, headers={"content-type": PROTOBUF})
    partial = ExportTraceServiceResponse.FromString(answer.content).partial_success
    assert (answer.status_code, partial.rejected_spans) == (200, 1)
    assert "UTF-8" in partial.error_message
    answer = client.post(
        "/v1/traces", content=body.replace(b"svc", b"\xff\xff\xff"), headers={"content-type": PROTOBUF}
    )
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 3
    sink.close()
    with Store.open(data) as store:
        assert sorted(row.span_id for row in store.spans("01" * 16) if not is_stand_in(row)) == [
            "03" * 8,
            "04" * 8,
        ]


def test_a_value_nested_beyond_what_protobuf_parses_is_refused_alone(
    client: TestClient, sink: Spool, data: DataDir
) -> None:
    def with_value(depth: int, span_id: bytes) -> bytes:
        value = encode_bytes(b"\x18\x01", *[1, 5] * depth)  # the number 1 in arrays in arrays
        attribute = encode_bytes(encode_bytes(b"deep", 1) + encode_bytes(value, 2), 9)
        span = request(span_id).resource_spans[0].scope_spans[0].spans[0].SerializeToString()
        return encode_bytes(span + attribute, 2)

    def send(*spans: bytes) -> int:
        content = encode_bytes(b"".join(spans), 2, 1)
        answer = client.post("/v1/traces", content=content, headers=HEADERS)
        assert answer.status_code == 200
        return int(ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans)

    assert send(with_value(30, b"\x02" * 8)) == 0
    assert send(with_value(60, b"\x03" * 8), with_value(1, b"\x04" * 8)) == 1
    sink.close()
    with Store.open(data) as store:
        assert sorted(row.span_id for row in store.spans("01" * 16) if not is_stand_in(row)) == [
            "02" * 8,
            "04" * 8,
        ]


def test_spans_and_attributes_are_counted(client: TestClient, sink: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_protobuf, "MAX_SPANS", 2)
    body = request(*(bytes([n]) * 8 for n in range(1, 4))).SerializeToString()
    assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 413
    monkeypatch.setattr(check_protobuf, "_COUNTED_FROM", 0)  # as a large body, which is not parsed to be counted
    assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 413
    monkeypatch.undo()
    monkeypatch.setattr(check_protobuf, "MAX_ATTRIBUTES", 4)
    message = request(b"\x02" * 8, b"\x03" * 8)
    message.resource_spans[0].scope_spans[0].spans[1].attributes.add(key="one more").value.bool_value = True
    answer = client.post("/v1/traces", content=message.SerializeToString(), headers=HEADERS)
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 1
    assert sink.acknowledged == 1


@pytest.mark.parametrize(
    ("content", "kind"),
    [(b"\xff\xfe garbage", PROTOBUF), (b"{", JSON), (b"[]", JSON), (b'{"resourceSpans": 5}', JSON), (b"\xff", JSON)],
)
def test_garbage_is_400(client: TestClient, content: bytes, kind: str) -> None:
    answer = client.post("/v1/traces", content=content, headers={"content-type": kind})
    assert (answer.status_code, answer.headers["content-type"]) == (400, kind)
    assert b"OTLP trace request" in answer.content


def test_encodings_and_content_types(client: TestClient, sink: Spool) -> None:
    body = request(b"\x02" * 8).SerializeToString()
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip"}
    assert client.post("/v1/traces", content=gzip.compress(body), headers=headers).status_code == 200
    assert client.post("/v1/traces", content=gzip.compress(body)[:-4], headers=headers).status_code == 400
    assert client.post("/v1/traces", content=b"no gzip", headers=headers).status_code == 400
    assert client.post("/v1/traces", content=body, headers={**headers, "content-encoding": "br"}).status_code == 415
    zstd = {**headers, "content-encoding": "zstd"}
    for packed in (zstandard.compress(body), zstd_without_size(body)):
        assert client.post("/v1/traces", content=packed, headers=zstd).status_code == 200
        assert client.post("/v1/traces", content=packed[:-4], headers=zstd).status_code == 400
    assert client.post("/v1/traces", content=b"no zstd", headers=zstd).status_code == 400
    assert client.post("/v1/traces", content=body, headers={"content-type": "text/plain"}).status_code == 415
    assert client.get("/v1/traces").status_code == 405
    assert sink.acknowledged == 3


def zstd_without_size(body: bytes) -> bytes:
    streamed = zstandard.ZstdCompressor().compressobj()
    packed: bytes = streamed.compress(body) + streamed.flush()
    return packed


PACKED = {"gzip": gzip.compress, "zstd": zstandard.compress, "zstd without its size": zstd_without_size}


@pytest.mark.parametrize("pack", PACKED.values(), ids=PACKED)
def test_a_body_of_several_members_is_read_to_its_end(
    client: TestClient, sink: Spool, data: DataDir, pack: Callable[[bytes], bytes]
) -> None:
    """Senders that compress batch by batch put several gzip members, or zstd frames, behind each other."""
    headers = {"content-type": PROTOBUF, "content-encoding": "gzip" if pack is gzip.compress else "zstd"}
    ids = [bytes([number]) * 8 for number in range(1, 4)]
    members = [pack(request(id).SerializeToString()) for id in ids]
    assert client.post("/v1/traces", content=b"".join(members), headers=headers).status_code == 200
    assert [span.span_id for span in spooled(data)] == [id.hex() for id in ids]
    assert sink.acknowledged == 3
    for bad in (b"".join(members)[:-4], members[0] + b"no member", b"".join(members)[:-4] + members[0]):
        assert client.post("/v1/traces", content=bad, headers=headers).status_code == 400
    assert sink.acknowledged == 3
    bomb = b"".join(members) + pack(b"\0" * 50_000_000)
    assert client.post("/v1/traces", content=bomb, headers=headers).status_code == 413
    flood = pack(b"") * 70_000
    app = CollectorApp(sink, Forward(data), Authorizer("token"))
    answer = TestClient(app, base_url="http://localhost").post("/v1/traces", content=flood, headers=headers)
    assert (answer.status_code, b"more than 65536 members" in answer.content) == (400, True)


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_the_bound_counts_decompressed_bytes(client: TestClient, app: CollectorApp, encoding: str) -> None:
    pack = gzip.compress if encoding == "gzip" else zstandard.compress
    bomb = pack(b"\x00" * 50_000_000)
    assert len(bomb) < 100_000
    headers = {"content-type": PROTOBUF, "content-encoding": encoding}
    assert client.post("/v1/traces", content=bomb, headers=headers).status_code == 413
    assert client.post("/v1/traces", content=b"\x00" * 100_001, headers={"content-type": PROTOBUF}).status_code == 413
    assert app.budget.used == 0


def test_a_body_that_unpacks_to_hundreds_of_times_its_size_is_a_bomb(sink: Spool, data: DataDir) -> None:
    client = TestClient(CollectorApp(sink, Forward(data), Authorizer("token")), base_url="http://localhost")
    headers = {"content-type": PROTOBUF, "content-encoding": "zstd"}
    answer = client.post("/v1/traces", content=zstandard.compress(b"\x00" * 50_000_000), headers=headers)
    assert answer.status_code == 413
    assert b"500 times" in answer.content


def test_over_the_budget_of_bytes_in_flight_is_asked_to_wait(client: TestClient, app: CollectorApp) -> None:
    app.budget.take(249_990)
    body = request(b"\x02" * 8).SerializeToString()
    answer = client.post("/v1/traces", content=body, headers=HEADERS)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    app.budget.give_back(249_990)
    assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 200
    assert app.budget.used == 0


def test_nesting_is_bounded(client: TestClient) -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(70):
        value = {"arrayValue": {"values": [value]}}
    document = as_json("02" * 8)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [{"key": "k", "value": value}]
    assert client.post("/v1/traces", json=document).json()["partialSuccess"]["rejectedSpans"] == "1"
    deep = '{"resourceSpans":' + "[" * 100_000
    assert client.post("/v1/traces", content=deep[:90_000], headers={"content-type": JSON}).status_code == 400


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
    told = client.get("/metrics").text
    for line in (
        "arttrace_collector_spans_acknowledged_total 1",
        "arttrace_collector_spans_refused_total 1",
        'arttrace_collector_answers_total{status="200"} 1',
        'arttrace_collector_answers_total{status="400"} 1',
        "arttrace_collector_in_flight_bytes 0",
    ):
        assert line in told.splitlines()


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
def test_genai_events_of_log_records_are_taken(
    kind: str, client: TestClient, app: CollectorApp, sink: Spool, data: DataDir
) -> None:
    """Under the limits, the encodings and the answers of traces; other log records are accepted and not kept."""
    message = ExportLogsServiceRequest()
    records = message.resource_logs.add().scope_logs.add().log_records
    for name, span_id in (("gen_ai.choice", b"\x02" * 8), ("gen_ai.choice", b""), ("http.request", b"\x02" * 8)):
        record = records.add(trace_id=b"\x01" * 16, span_id=span_id, event_name=name, observed_time_unix_nano=7)
        record.body.string_value = "x"
    body = message.SerializeToString()
    if kind == JSON:
        document = MessageToDict(message)
        for each in document["resourceLogs"][0]["scopeLogs"][0]["logRecords"]:
            each.update(traceId="01" * 16, spanId="02" * 8 if each.get("spanId") else "")
        body = msgspec.json.encode(document)
    headers = {"content-type": kind, "content-encoding": "gzip"}
    answer = client.post("/v1/logs", content=gzip.compress(body), headers=headers)
    assert answer.status_code == 200
    if kind == JSON:
        assert answer.json()["partialSuccess"]["rejectedLogRecords"] == "1"
    else:
        assert ExportLogsServiceResponse.FromString(answer.content).partial_success.rejected_log_records == 1
    span, instead = spooled(data)
    assert (instead.trace_id, is_stand_in(instead)) == ("01" * 16, True)
    assert (span.trace_id, span.parent_span_id, span.start_ns) == ("01" * 16, "02" * 8, 7)
    assert (span.events[0].name, span.events[0].attributes) == ("gen_ai.choice", {"gen_ai.event.content": "x"})
    assert client.post("/v1/logs", content=b"\xff\xff", headers={"content-type": kind}).status_code == 400
    assert client.post("/v1/logs", content=b"x" * 100_001, headers={"content-type": kind}).status_code == 413
    keyed = TestClient(CollectorApp(sink, Forward(data), Authorizer("token", "key")), base_url="http://localhost")
    assert keyed.post("/v1/logs", content=body, headers={"content-type": kind}).status_code == 401


@pytest.mark.parametrize("kind", [PROTOBUF, JSON])
@pytest.mark.parametrize("damage", ["text", "depth", "form"])
def test_a_damaged_log_record_is_refused_alone(
    kind: str, damage: str, client: TestClient, sink: Spool, data: DataDir
) -> None:
    """Counted and named, as spans are; the records beside it are kept."""
    message = ExportLogsServiceRequest()
    records = message.resource_logs.add().scope_logs.add().log_records
    for words in ("one", "two", "three"):
        record = records.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, event_name="gen_ai.choice", time_unix_nano=7)
        value = record.body
        for _ in range(200 if (damage, kind, words) == ("depth", PROTOBUF, "two") else 0):
            value = value.array_value.values.add()
        value.string_value = words
    if kind == JSON:
        document = MessageToDict(message)
        written = document["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
        for each in written:
            each.update(traceId="01" * 16, spanId="02" * 8)
        if damage == "form":
            written[1] = "two"
        if damage == "depth":
            for _ in range(200):
                written[1]["body"] = {"arrayValue": {"values": [written[1]["body"]]}}
        if damage == "text":
            written[1]["timeUnixNano"] = "soon"
        body = msgspec.json.encode(document)
    else:
        body = message.SerializeToString()
        if damage != "depth":
            body = body.replace(b"two", b"\xffwo" if damage == "text" else b"two", 1)
        if damage == "form":  # the body's text has a tag of no kind that protobuf knows
            body = body.replace(b"\x0a\x03two", b"\x0f\x03two", 1)
    answer = client.post("/v1/logs", content=body, headers={"content-type": kind})
    assert answer.status_code == 200, answer.content
    if kind == JSON:
        partial = answer.json()["partialSuccess"]
        refused, reason = int(partial["rejectedLogRecords"]), partial["errorMessage"]
    else:
        partial = ExportLogsServiceResponse.FromString(answer.content).partial_success
        refused, reason = partial.rejected_log_records, partial.error_message
    assert refused == sink.refused == 1
    assert reason
    kept = [span.events[0].attributes["gen_ai.event.content"] for span in spooled(data) if not is_stand_in(span)]
    assert sorted(kept) == ["one", "three"]


def test_a_host_of_another_name_is_no_friend(client: TestClient) -> None:
    for path in ("/health", "/metrics", "/api/summaries", "/v1/traces"):
        assert client.get(path, headers={"host": "evil.example:4318"}).status_code == 403
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:4318", "[::1]:4318"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    assert client.get("/health", headers={f"x-{n}": "y" for n in range(200)}).status_code == 431
    assert client.get("/health", headers={"x": "y" * 40_000}).status_code == 431


def test_with_a_key_nothing_is_taken_or_told_without_it(sink: Spool, data: DataDir) -> None:
    app = CollectorApp(sink, Forward(data), Authorizer("token", api_key="key"))
    client = TestClient(app, base_url="http://collector.example")
    body = request(b"\x02" * 8).SerializeToString()
    for bad in ({}, {"authorization": "Bearer nope"}, {"authorization": "Basic key"}, {"authorization": "key"}):
        answer = client.post("/v1/traces", content=body, headers=HEADERS | bad)
        assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert client.get("/metrics", headers=bad).status_code == 401
    key = {"authorization": "Bearer key"}
    assert client.post("/v1/traces", content=body, headers=HEADERS | key).status_code == 200
    assert client.get("/metrics", headers=key).status_code == 200
    assert client.get("/health").status_code == 200
    assert sink.acknowledged == 1


def test_what_was_captured_is_told_to_the_token_alone(client: TestClient) -> None:
    assert client.get("/api/summaries").status_code == 401
    assert client.get("/api/summaries", headers={"authorization": "Bearer tokem"}).status_code == 401
