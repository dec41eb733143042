"""A collector that is sent spans and log records some of which it refuses, and the runs in the store behind it."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from starlette.testclient import TestClient

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.otlp.responses import PROTOBUF
from arttrace.collector.spool import Spool
from arttrace.formats.otlp.protobuf_fields import encode_bytes
from arttrace.store import Store
from arttrace.store.server.auth import Authorizer
from arttrace.system.paths import DataDir

TRACE, ROOT, LEAF = b"\x01" * 16, b"\x0a" * 8, b"\x0c" * 8


class Site:
    """A collector's application over a spool, and the runs in the store behind it."""

    def __init__(self, data: DataDir) -> None:
        self.data = data
        self._start()

    def _start(self) -> None:
        self.sink = Spool(self.data)
        self.app = CollectorApp(
            self.sink, Forward(self.data), Authorizer("k"), max_body_bytes=1 << 20, in_flight_bytes=1 << 22
        )
        self.client = TestClient(self.app, base_url="http://localhost", raise_server_exceptions=False)

    def send(self, *items: bytes, path: str = "/v1/traces") -> int:
        """How many of these spans, or log records, are refused."""
        content = encode_bytes(b"".join(encode_bytes(one, 2) for one in items), 2, 1)
        answer = self.client.post(path, content=content, headers={"content-type": PROTOBUF})
        assert answer.status_code == 200, answer.content
        return int(ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans)

    def send_logs(self, *records: bytes) -> int:
        return self.send(*records, path="/v1/logs")

    def send_json(self, *spans: Any) -> int:
        return self._json("/v1/traces", {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]})

    def send_json_logs(self, *records: Any) -> int:
        return self._json("/v1/logs", {"resourceLogs": [{"scopeLogs": [{"logRecords": list(records)}]}]})

    def _json(self, path: str, document: dict[str, Any]) -> int:
        answer = self.client.post(path, json=document)
        assert answer.status_code == 200, answer.content
        partial = answer.json().get("partialSuccess", {})
        return int(partial.get("rejectedSpans", partial.get("rejectedLogRecords", 0)))

    def incomplete(self) -> list[str]:
        """Why each run is not complete, as lists and as itself."""
        self.sink.close()
        self._start()
        with Store.open(self.data) as store:
            listed = [one.incomplete for one in store.summaries()]
            assert sorted(one.incomplete for one in store.trajectories()) == sorted(listed)
        return listed


def span(id: bytes, operation: str, parent: bytes = ROOT, **more: Any) -> Span:
    made = Span(
        **{
            "trace_id": TRACE,
            "span_id": id,
            "parent_span_id": parent,
            "name": f"{operation} it",
            "start_time_unix_nano": 1_700_000_000_000_000_000 + id[0],
            "end_time_unix_nano": 1_700_000_000_000_001_000 + id[0],
            **more,
        }
    )
    made.attributes.add(key="gen_ai.operation.name").value.string_value = operation
    return made


def run() -> list[bytes]:
    """An agent with a call, which came as they should."""
    return [one.SerializeToString() for one in (span(ROOT, "invoke_agent", b""), span(b"\x0b" * 8, "chat"))]
