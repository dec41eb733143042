"""What is asked at the collector's address is what the owner of the store is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from served_app import served
from simulated_agent import research_run

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.formats.journal_entry import encode_records
from arttrace.store import Store
from arttrace.store.server import timeouts
from arttrace.store.server.asgi import Message
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.owner import answering
from arttrace.system.paths import DataDir

KEY = {"authorization": "Bearer key"}


@pytest.fixture
def owned(data: DataDir) -> Iterator[Store]:
    with Store.open(data, create=True) as store, answering(store):
        yield store


def sent_through(data: DataDir, path: str, *messages: Message) -> list[Message]:
    """The messages of an answer to a request, of whose body these come and then nothing."""
    coming, answered = list(messages), list[Message]()

    async def receive() -> Message:
        if not coming:
            await asyncio.Event().wait()
        return coming.pop(0)

    async def send(message: Message) -> None:
        answered.append(message)

    headers = [(b"content-type", b"application/x-ndjson")]
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode()}
    asyncio.run(Forward(data)({**scope, "query_string": b"", "headers": headers}, receive, send))
    return answered


@pytest.mark.parametrize("id", ["task#1", "task?1", "task 1", "100%25", "zwölf", "a&b=c", "a/b"])
def test_an_id_is_asked_for_as_it_was_written(owned: Store, data: DataDir, sink: Any, id: str) -> None:
    for each in ("task", "100%", id):
        owned.append(research_run(each))
    with served(CollectorApp(sink, Forward(data), Authorizer("token", "key"))) as url:
        answer = httpx.get(f"{url}/api/trajectories/{quote(id, safe='')}", headers=KEY)
    assert answer.json().get("id", answer.text) == id


def test_what_is_not_sent_to_its_end_is_not_passed_on(owned: Store, data: DataDir) -> None:
    begun = encode_records(research_run("run"))
    whole = {"type": "http.request", "body": begun, "more_body": False}
    sent_through(data, "/api/records", {**whole, "more_body": True}, {"type": "http.disconnect"})
    assert owned.summaries() == []
    assert sent_through(data, "/api/records", whole)[0]["status"] == 200
    assert [one.id for one in owned.summaries()] == ["run"]


def test_who_sends_too_slowly_is_answered_and_left(
    owned: Store, data: DataDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(timeouts, "BODY_S", 0.01)
    begin, *_ = sent_through(data, "/api/records", {"type": "http.request", "body": b"{", "more_body": True})
    assert begin["status"] == 408
    assert (b"connection", b"close") in begin["headers"]
