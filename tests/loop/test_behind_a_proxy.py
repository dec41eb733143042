"""A server that is reached through a proxy, which answers in its place while it is away."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from arttrace.loop.remote.connection import ServerConnection
from arttrace.system.errors import ServingError, TrainingError

PAGE = b"<html><h1>Bad Gateway</h1></html>"


class _Proxy(BaseHTTPRequestHandler):
    """Plays these answers one after the other: a status, and a text or a document."""

    protocol_version = "HTTP/1.1"
    answers: list[tuple[int, Any]]

    def log_message(self, *_: Any) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        status, said = self.answers.pop(0)
        body = said if isinstance(said, bytes) else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def answers() -> list[tuple[int, Any]]:
    return []


@pytest.fixture
def connection(answers: list[tuple[int, Any]]) -> Iterator[ServerConnection]:
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Proxy", (_Proxy,), {"answers": answers})) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield ServerConnection(f"http://127.0.0.1:{server.server_port}", "key")
        server.shutdown()


async def test_a_step_outlasts_a_proxy_that_says_that_the_server_is_away(
    answers: list[tuple[int, Any]], connection: ServerConnection
) -> None:
    answers += [(200, {"state": "running"}), (502, PAGE), (504, b""), (200, {"state": "done"})]
    assert await connection.train(None, {}) == []
    assert not answers


async def test_one_that_never_reached_it_is_reported_at_once(
    answers: list[tuple[int, Any]], connection: ServerConnection
) -> None:
    answers += [(502, PAGE)]
    with pytest.raises(ServingError, match="answered 502: is it arttrace's server"):
        await connection.train(None, {})


async def test_one_that_stays_without_it_is_reported_in_the_end(
    answers: list[tuple[int, Any]], connection: ServerConnection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("arttrace.loop.remote.connection._PATIENCE_S", 0.0)
    answers += [(200, {"state": "running"}), (502, PAGE), (502, PAGE)]
    with pytest.raises(ServingError, match="does not answer: a proxy before it answers 502"):
        await connection.train(None, {})


async def test_what_the_server_itself_refuses_is_not_asked_again(
    answers: list[tuple[int, Any]], connection: ServerConnection
) -> None:
    answers += [(200, {"state": "running"}), (503, {"error": {"message": "the server is being stopped"}})]
    with pytest.raises(TrainingError, match="the server is being stopped"):
        await connection.train(None, {})
