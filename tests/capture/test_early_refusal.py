"""Receivers that refuse a request before they have read it, and close: what they say is heard."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from arttrace.capture.base.receiver import Receiver
from arttrace.capture.base.settings import Settings
from arttrace.capture.export.recorder import Recorder
from arttrace.capture.export.shipping.otlp_client import OtlpClient
from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.records.span import SpanRow
from arttrace.system.paths import DataDir

LIMIT = 256 << 10
SPANS = 24


class _Limited(BaseHTTPRequestHandler):
    """Takes what is no longer than the limit, and looks at nothing else."""

    protocol_version = "HTTP/1.1"
    answer = 413
    taken: list[SpanRow]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        length = int(self.headers["content-length"])
        self.close_connection = True
        fits = length <= LIMIT
        if fits:
            body = self.rfile.read(length)
            self.taken.extend(protobuf_spans(body))
        self.send_response(200 if fits else self.answer)
        self.send_header("content-length", "0")
        self.end_headers()


@pytest.fixture
def site() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Limited", (_Limited,), {"taken": []})) as server:
        server.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 << 10)  # else the system may take it all
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_batch_that_is_too_large_arrives_in_parts(site: ThreadingHTTPServer, tmp_path: Any) -> None:
    receiver = Receiver(f"http://127.0.0.1:{site.server_port}", compression="none")
    recorder = Recorder(Settings(DataDir(tmp_path), receivers=(receiver,)))
    noise = random.Random(1)
    spans = [
        SpanRow(
            trace_id=f"{number + 1:032x}",
            span_id=f"{number + 1:016x}",
            name="span",
            start_ns=1,
            end_ns=2,
            attributes={"noise": noise.randbytes(100_000).hex()},
        )
        for number in range(SPANS)
    ]
    for span in spans:
        recorder.record(span)
    recorder.close()
    assert recorder.deliver(60)
    recorder.stop()
    assert {span.span_id for span in site.RequestHandlerClass.taken} == {span.span_id for span in spans}  # type: ignore[attr-defined]


def test_what_is_taken_without_having_been_read_is_not_taken(site: ThreadingHTTPServer) -> None:
    site.RequestHandlerClass.answer = 200  # type: ignore[attr-defined]
    client = OtlpClient(Receiver(f"http://127.0.0.1:{site.server_port}", compression="none"))
    with pytest.raises(OSError, match=r"Broken pipe|reset by peer"):
        client.post(bytes(64 << 20))
