"""The gateway's client before a server that is none, and before the file of one that is gone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from arttrace.system.errors import ServingError
from arttrace.system.journal.lock import acquire
from arttrace.system.paths import DataDir
from trainer.gateway.status import ServingFile
from trainer.serving.client import GatewayClient, find_serving


class SaysHello(BaseHTTPRequestHandler):
    """Answers everything with one page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-length", "5")
        self.end_headers()
        self.wfile.write(b"Hello")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), SaysHello) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_server_that_says_yes_to_everything_is_no_gateway(url: str, tmp_path: Path) -> None:
    client = GatewayClient(url)
    for ask in (client.status, lambda: client.publish(1, tmp_path)):
        with pytest.raises(ServingError, match="is no gateway of this version"):
            ask()
    client.close()


def test_a_killed_server_is_gone_even_if_another_process_has_its_number(tmp_path: Path) -> None:
    """As in a container that is started again. Its lock says so."""
    data = DataDir(tmp_path)
    record = ServingFile("http://127.0.0.1:9", "base", "policy", os.getpid(), "")
    data.serving.write_bytes(msgspec.json.encode(record))
    assert find_serving(data) == record, "there is no lock to ask"
    with data.serving_lock.open("w") as lock:
        assert acquire(lock.fileno())
        assert find_serving(data) == record
    assert find_serving(data) is None
