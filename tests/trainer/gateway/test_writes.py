"""How the gateway's server writes answers to a connection: what belongs together goes out together."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from uvicorn.server import ServerState

from trainer.gateway.http.server import gateway_server

ASKED = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n"


class Written(asyncio.Transport):
    """A transport that keeps each write for itself."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self.closed = False

    def write(self, data: Any) -> None:
        assert not self.closed
        if data:
            self.writes.append(bytes(data))

    def writelines(self, parts: Any) -> None:
        parts = list(parts)
        assert all(parts), "of an empty one asyncio of Python 3.12 and 3.13 is never rid: it tries for ever"
        super().writelines(parts)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


async def written(app: Any, *asked: bytes) -> list[bytes]:
    """The writes by which `app` answers what a client sends, once there is nothing more to do."""
    config = gateway_server(app).config
    config.load()
    protocol = config.http_protocol_class(config, ServerState(), {})  # type: ignore[operator,call-arg]
    transport = Written()
    protocol.connection_made(transport)
    for part in asked:
        protocol.data_received(part)
        for _ in range(20):
            await asyncio.sleep(0)
    protocol.connection_lost(None)
    return transport.writes


def answering(*parts: bytes, pause: bool = False, length: bool = True) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", b"%d" % sum(map(len, parts)))] if length else []
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if pause:
            for _ in range(5):
                await asyncio.sleep(0)
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return app


async def test_a_whole_answer_is_one_write() -> None:
    [answer] = await written(answering(b"hello"), ASKED)
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    assert answer.endswith(b"\r\n\r\nhello")


async def test_an_answer_without_a_body_is_its_head() -> None:
    [answer] = await written(answering(b""), ASKED)
    assert answer.endswith(b"content-length: 0\r\n\r\n")


async def test_a_head_is_not_kept_until_there_is_a_body() -> None:
    head, body = await written(answering(b"hello", pause=True), ASKED)
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert head.endswith(b"\r\n\r\n")
    assert body == b"hello"


@pytest.mark.parametrize("pause", [True, False])
async def test_a_body_that_looks_like_a_head_is_written_once_and_in_its_place(pause: bool) -> None:
    parts = (b"HTTP/1.1 ", b"HTTP/1.1 x", b"y", b"HTTP/1.1 z")
    answer = b"".join(await written(answering(*parts, pause=pause), ASKED))
    assert answer.partition(b"\r\n\r\n")[2] == b"".join(parts)


async def test_answers_on_one_connection_come_in_turn() -> None:
    answers = await written(answering(b"hello"), ASKED + ASKED, ASKED)
    assert b"".join(answers).count(b"\r\n\r\nhello") == 3 == len(answers)


async def test_what_is_refused_is_written_before_the_connection_closes() -> None:
    [answer] = await written(answering(), b"no http at all\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 400 ")
