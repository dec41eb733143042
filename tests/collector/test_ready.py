"""When a collector whose disk was full says that it is ready again."""

from __future__ import annotations

import pytest
from starlette.testclient import TestClient
from trace_requests import HEADERS, request

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.store import Store
from arttrace.store.server.auth import Authorizer
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir


@pytest.mark.parametrize("call", ["append", "sync"])
def test_it_is_ready_when_the_disk_has_room_again_though_nobody_sends_to_what_is_not_ready(
    client: TestClient, data: DataDir, sink: Spool, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def is_ready() -> tuple[int, bool]:
        return client.get("/ready").status_code, "\narttrace_collector_ready 1\n" in client.get("/metrics").text

    body = request(b"\x02" * 8).SerializeToString()
    with monkeypatch.context() as patch:
        patch.setattr(JournalWriter, call, full)
        assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 503
        assert is_ready() == (503, False)
    assert is_ready() == (200, True)
    client.post("/v1/traces", content=body, headers=HEADERS)
    assert sink.acknowledged == 1
    sink.close()
    with Store.open(data) as store:
        assert len(store.spans("01" * 16)) == 1
        assert store.unread().entries.count == 0


def test_a_spool_that_has_no_room_for_what_is_sent_is_not_ready(data: DataDir) -> None:
    sink = Spool(data, max_spool_bytes=1000)
    client = TestClient(CollectorApp(sink, Forward(data), Authorizer("token")), base_url="http://localhost")
    body = request(*(bytes([number]) * 8 for number in range(1, 40))).SerializeToString()
    assert client.post("/v1/traces", content=body, headers=HEADERS).status_code == 503
    for _ in range(2):
        assert "holds its limit of 1000 bytes" in client.get("/ready").text
    sink.close()
