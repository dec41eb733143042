"""Log records with GenAI events are taken as traces are."""

from __future__ import annotations

import gzip

import msgspec
import pytest
from google.protobuf.json_format import MessageToDict
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from starlette.testclient import TestClient
from trace_requests import spooled

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.responses import JSON
from arttrace.system.paths import DataDir
from arttrace.trajectories.identity.stand_ins import is_stand_in


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
