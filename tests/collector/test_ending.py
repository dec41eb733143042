"""A server that is told to end does not wait for what it is asked, and says so to whoever asked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator

import httpx
import pytest
from served_app import served

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.spool import Spool
from arttrace.store import Store
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server import limits, owner
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.owner import answering
from arttrace.system.paths import DataDir

LONG = "SELECT count(*) FROM range(1000000) a, range(30000) b"
"""Half a minute: it comes to its end where nothing stops it."""
PATIENCE_S = 60.0


class AskedQuery:
    """A query asked in a thread, and what was answered."""

    def __init__(self, url: str, token: str) -> None:
        self.answer: httpx.Response | None = None
        self._where, self._headers = f"{url}/api/sql", {"authorization": f"Bearer {token}"}
        self._thread = threading.Thread(target=self._ask)
        self._thread.start()

    def _ask(self) -> None:
        self.answer = httpx.post(self._where, json={"query": LONG}, headers=self._headers, timeout=PATIENCE_S)

    def said(self) -> tuple[int, str]:
        self._thread.join()
        assert self.answer is not None
        return self.answer.status_code, self.answer.json()["message"]


def wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def store(data: DataDir) -> Iterator[Store]:
    with Store.open(data, create=True) as store:
        yield store


def test_an_owner_that_ends_stops_its_queries(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with answering(store):
        found = read_owner(store.data)
        assert found is not None
        asked = [AskedQuery(found.url, found.token) for _ in range(limits.QUERIES)]
        wait_for(lambda: store._file.readers == limits.QUERIES)
    assert [one.said() for one in asked] == [(503, "the owner of the store ends: ask again")] * len(asked)
    assert store._file.readers == 0
    assert not caplog.records


def test_a_collector_that_ends_leaves_the_owner(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    with answering(store):
        found = read_owner(store.data)
        assert found is not None
        ending = asyncio.Event()
        sink = Spool(store.data)
        front = CollectorApp(sink, Forward(store.data, ending), Authorizer(found.token))
        with contextlib.closing(sink), served(front, ending) as url:
            asked = AskedQuery(url, found.token)
            wait_for(lambda: store._file.readers == 1)
        assert asked.said() == (503, "the collector ends: ask again")
        wait_for(lambda: store._file.readers == 0)
    assert not caplog.records


def test_an_upload_that_does_not_come_to_its_end_is_refused(
    data: DataDir, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(owner, "GRACE_S", 0)
    sink = Spool(data)
    with contextlib.closing(sink):
        app = CollectorApp(sink, Forward(data), Authorizer("token"))
        with contextlib.ExitStack() as stack:
            host, _, port = stack.enter_context(served(app)).removeprefix("http://").rpartition(":")
            sender = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
            sender.sendall(
                b"POST /v1/traces HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 90000\r\n\r\nnot all of it"
            )
            wait_for(lambda: app.budget.used > 0)
        with sender:
            assert sender.recv(65536).startswith(b"HTTP/1.1 503 ")
    assert not any(record.exc_info for record in caplog.records)
