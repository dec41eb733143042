"""Who may send to the collector and ask it."""

from __future__ import annotations

import socket

import httpx
import pytest
from served_app import served
from starlette.testclient import TestClient
from trace_requests import HEADERS, request

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.store.server import other_protocols
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.owner import http_server
from arttrace.system.paths import DataDir


def test_a_host_of_another_name_is_no_friend(client: TestClient) -> None:
    for path in ("/health", "/metrics", "/api/summaries", "/v1/traces"):
        assert client.get(path, headers={"host": "evil.example:4318"}).status_code == 403
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:4318", "[::1]:4318"):
        assert client.get("/health", headers={"host": host}).status_code == 200
    assert client.get("/health", headers={f"x-{n}": "y" for n in range(200)}).status_code == 431
    assert client.get("/health", headers={"x": "y" * 40_000}).status_code == 431


def test_with_a_key_nothing_is_taken_or_reported_without_it(sink: Spool, data: DataDir) -> None:
    said: list[str] = []
    app = CollectorApp(sink, Forward(data), Authorizer("token", api_key="key"), say=said.append)
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
    assert 'arttrace_collector_answers_total{status="401"} 4' in client.get("/metrics", headers=key).text
    assert [line.partition(":")[0] for line in said] == ["what is sent to /v1/traces is refused with 401"]


def test_what_was_captured_is_reported_to_the_token_alone(client: TestClient) -> None:
    assert client.get("/api/summaries").status_code == 401
    assert client.get("/api/summaries", headers={"authorization": "Bearer tokem"}).status_code == 401


@pytest.mark.parametrize(
    ("first", "helps"), [(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "--grpc-port"), (b"\x16\x03\x01\x02\x00", "http://")]
)
def test_a_client_of_another_protocol_is_told_of_once(
    first: bytes, helps: str, app: CollectorApp, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """gRPC's and TLS's clients try for ever, and their programs often say nothing."""
    monkeypatch.setattr(other_protocols, "_said", set())
    with served(app) as url:
        for _ in range(3):
            with socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2])), 10) as client:
                client.sendall(first)
                assert client.recv(100).startswith(b"HTTP/1.1 400")
        assert httpx.get(f"{url}/health").status_code == 200
    (line,) = capfd.readouterr().err.splitlines()
    assert helps in line


def test_an_idle_connection_is_kept_for_longer_than_clients_pause(sink: Spool, data: DataDir) -> None:
    """OpenTelemetry's exporters send every 5 s and httpx keeps a connection for 5 s, which is uvicorn's default, too:
    what is sent just then would meet a connection that is being closed."""
    server = http_server(CollectorApp(sink, Forward(data), Authorizer("token")))
    assert server.config.timeout_keep_alive >= 60
