"""What the stand-ins for Anthropic's, Gemini's and Bedrock's servers share: they listen on 127.0.0.1, keep what they
were sent, and keep the connection."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol, TypeVar

NONE: Mapping[str, str] = {}


class ServerSide(Protocol):
    """The server's side of a test. `cut` breaks the next streams off after so many parts."""

    url: str
    sent: list[tuple[str, dict[str, str], dict[str, Any]]]
    cut: list[int]


SideT = TypeVar("SideT", bound=ServerSide)


class StandIn(BaseHTTPRequestHandler):
    """One connection of a client. Each kind of server says in `do_POST` what it answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement
    state: Any

    def log_message(self, *_: Any) -> None:
        pass

    def read_request(self) -> Any:
        request = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.state.sent.append((self.path, {name.lower(): value for name, value in self.headers.items()}, request))
        return request

    def send_json(self, status: int, body: Any, headers: Mapping[str, str] = NONE) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        usual = {"content-type": "application/json", "content-length": str(len(data)), "retry-after": "0"}
        for name, value in {**usual, **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def stream(self, parts: Iterator[bytes], content_type: str) -> None:
        self.send_response(200)
        self.send_header("content-type", content_type)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        cut = self.state.cut.pop(0) if self.state.cut else None
        for number, part in enumerate(parts):
            if number == cut:
                self.close_connection = True
                return
            self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def stand_in(handler: type[StandIn], state: SideT) -> Iterator[SideT]:
    """A running stand-in on a free port, for the length of a `with` block: `state`, whose `url` is set."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (handler,), {"state": state}))
    server.daemon_threads = True
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
