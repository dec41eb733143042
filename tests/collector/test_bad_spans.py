"""A span that is not valid is refused alone, and counted in the answer."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceResponse,
)
from starlette.testclient import TestClient
from trace_requests import HEADERS, as_json, request

from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.formats.otlp import check_protobuf
from arttrace.formats.otlp.protobuf_fields import encode_bytes
from arttrace.store import Store
from arttrace.store.server.responses import JSON
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in


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


def test_nesting_is_bounded(client: TestClient) -> None:
    value: dict[str, Any] = {"intValue": 1}
    for _ in range(70):
        value = {"arrayValue": {"values": [value]}}
    document = as_json("02" * 8)
    document["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["attributes"] = [{"key": "k", "value": value}]
    assert client.post("/v1/traces", json=document).json()["partialSuccess"]["rejectedSpans"] == "1"
    deep = '{"resourceSpans":' + "[" * 100_000
    assert client.post("/v1/traces", content=deep[:90_000], headers={"content-type": JSON}).status_code == 400
