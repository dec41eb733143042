"""A stand-in for an OTLP/HTTP receiver on 127.0.0.1: answers as its script says, and keeps the spans it took."""

from __future__ import annotations

import gzip
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.records.span import SpanRow

Reply = tuple[int, dict[str, str], bytes]
Script = Callable[[list[SpanRow]], Reply | None]
OK: Reply = (200, {}, b"")


@dataclass
class Receiver:
    """`script` holds how to answer the next requests (None: the connection is cut without an answer).

    When it is empty, `always` answers. What it takes is in `spans`; each request's spans are in `requests`.
    """

    url: str = ""
    script: list[Script] = field(default_factory=list)
    always: Script = lambda _spans: OK
    requests: list[list[SpanRow]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    spans: list[SpanRow] = field(default_factory=list)
    ours: bool = False
    path: str = "/v1/traces"
    paths: list[str] = field(default_factory=list)

    def ids(self) -> set[str]:
        """The ids of the spans it took."""
        return {span.span_id for span in self.spans}

    def take(self, body: bytes) -> Reply | None:
        ExportTraceServiceRequest.FromString(body)
        spans = protobuf_spans(body)
        self.requests.append(spans)
        reply = (self.script.pop(0) if self.script else self.always)(spans)
        if reply is not None and reply[0] == 200:
            self.spans += spans
        return reply


@contextmanager
def receiving(port: int = 0, tls: ssl.SSLContext | None = None, **given: Any) -> Iterator[Receiver]:
    """A running stand-in, for the length of a `with` block."""
    receiver = Receiver(**given)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            receiver.headers.append({name.lower(): value for name, value in self.headers.items()})
            receiver.paths.append(self.path)
            if self.headers.get("content-encoding") == "gzip":
                body = gzip.decompress(body)
            reply = receiver.take(body) if self.path == receiver.path else (404, {}, b"")
            if reply is None:
                self.close_connection = True
                return
            status, headers, data = reply
            self.send_response(status)
            if "content-type" not in headers:
                self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", str(len(data)))
            if receiver.ours:
                self.send_header("x-arttrace-collector", "1")
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    server = Server(("127.0.0.1", port), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    receiver.url = f"http{'s' if tls else ''}://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield receiver
    finally:
        server.shutdown()
        server.server_close()
