"""The gateway's connections to an engine: how they are made, how long they are kept, and what an engine may send."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from own_certificate import own_certificate

from trainer.gateway.engines import connections as module
from trainer.gateway.engines.connections import BrokenOff, Connections, EngineResponse, NotConnected

HELLO = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Engine:
    """A server that answers each request on a connection with `content`, and keeps the heads that it was sent."""

    def __init__(self, content: bytes = HELLO) -> None:
        self.content = content
        self.heads: list[bytes] = []
        self.made = 0

    @contextlib.asynccontextmanager
    async def listening(self, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
        server = await asyncio.start_server(self._serve, host, 0, ssl=tls)
        async with server, asyncio.timeout(120):
            yield server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(self.content)
                await writer.drain()
        writer.close()


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[Connections]:
    connections = Connections(url, {})
    yield connections
    await connections.close()


async def read(response: EngineResponse) -> bytes:
    parts = []
    while part := await response.part():
        parts.append(part)
    return b"".join(parts)


async def asked(connections: Connections) -> bytes:
    with await connections.request("GET", "/x") as response:
        return await read(response)


async def test_an_engine_behind_tls_is_asked_when_its_certificate_is_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate, key = own_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    engine = Engine()
    async with engine.listening(tls=tls) as port:
        async with connected(f"https://127.0.0.1:{port}") as strangers:
            with pytest.raises(NotConnected, match="CERTIFICATE_VERIFY_FAILED"):
                await asked(strangers)
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        async with connected(f"HTTPS://127.0.0.1:{port}") as trusting:
            assert [await asked(trusting) for _ in range(3)] == [b"hello"] * 3
    assert len(engine.heads) == 3


async def test_a_name_with_several_addresses_is_asked_at_the_one_that_answers() -> None:
    engine = Engine()
    async with engine.listening() as port, connected(f"http://localhost:{port}") as connections:  # ::1 comes first
        assert await asked(connections) == b"hello"
    assert engine.heads[0].startswith(b"GET /x HTTP/1.1\r\nHost: localhost:%d\r\n" % port)


async def test_a_password_in_an_address_is_sent_and_the_way_below_it_is_kept() -> None:
    engine = Engine()
    async with engine.listening() as port, connected(f"http://me:p%40ss@127.0.0.1:{port}/a b/") as connections:
        await asked(connections)
    assert engine.heads[0].startswith(b"GET /a%20b/x HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nauthorization: Basic %b\r\n" % b64encode(b"me:p@ss") in engine.heads[0]


@pytest.mark.parametrize("url", ["http://localhost:none", "http://", "http://h:0", "http://ex\nample"])
async def test_an_address_that_is_none_is_not_connected(url: str) -> None:
    async with connected(url) as connections:
        with pytest.raises(NotConnected, match="the address"):
            await asked(connections)


async def test_a_key_that_no_header_can_have_is_not_sent() -> None:
    connections = Connections("http://localhost:1", {"authorization": "Bearer a\r\nx: y"})
    with pytest.raises(NotConnected, match="the key has letters"):
        await asked(connections)


async def test_connections_that_were_idle_for_long_are_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine()
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        for _ in range(2):
            responses = await asyncio.gather(*(connections.request("GET", "/x") for _ in range(20)))
            for response in responses:
                assert await read(response) == b"hello"
                response.close()
        assert engine.made == 20
        monkeypatch.setattr(module, "_IDLE_S", -1.0)  # any time is long
        assert await asked(connections) == b"hello"
        assert engine.made == 21


async def test_a_kept_connection_that_the_engine_closed_is_not_used_again() -> None:
    engine = Engine()
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        assert await asked(connections) == b"hello"
        engine.content = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nconnection: close\r\n\r\nhello"
        assert await asked(connections) == b"hello"
        engine.content = HELLO
        assert await asked(connections) == b"hello"
        assert engine.made == 2


@pytest.mark.parametrize("more", [HELLO, b"\r\nHTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n", b"x"])
async def test_what_comes_behind_an_answer_is_never_taken_for_the_next(more: bytes) -> None:
    engine = Engine(HELLO + more)
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        assert [await asked(connections) for _ in range(3)] == [b"hello"] * 3
        assert engine.made == 3


@pytest.mark.parametrize(
    "content",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"y" * (256 << 10),
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (64 << 10),
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
    ],
    ids=["one endless header", "headers without end", "another protocol"],
)
async def test_a_head_that_no_engine_sends_is_an_error(content: bytes) -> None:
    engine = Engine(content)
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        with pytest.raises(BrokenOff):
            await asked(connections)


async def test_an_answer_without_a_body_and_trailers_are_read_for_what_they_are() -> None:
    engine = Engine(b"HTTP/1.1 204 No Content\r\nX-Mine: a\r\n\r\n")
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        with await connections.request("GET", "/x") as response:
            assert (response.status, response.headers, await read(response)) == (204, [(b"x-mine", b"a")], b"")
        chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n0\r\nx: y\r\n\r\n"
        engine.content = chunked
        with await connections.request("GET", "/x") as response:
            assert await read(response) == b"hello"
            assert response.headers == [(b"transfer-encoding", b"chunked")]
        assert engine.made == 1


async def test_a_request_that_is_given_up_closes_its_connection() -> None:
    engine = Engine(b"")
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asked(connections)
        engine.content = HELLO
        assert await asked(connections) == b"hello"
        assert engine.made == 2


async def test_no_more_of_a_request_is_sent_once_it_is_given_up() -> None:
    """An engine would be asked for what nobody waits for, and one that hangs would keep each body in memory."""
    size = 64 << 20  # beyond what the system keeps for a connection
    begun, given_up = asyncio.Event(), asyncio.Event()
    came: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    async def hanging(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        begun.set()
        await given_up.wait()
        taken = 0
        with contextlib.suppress(ConnectionError):
            while part := await reader.read(1 << 20):
                taken += len(part)
        came.set_result(taken)
        writer.close()

    server = await asyncio.start_server(hanging, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, asyncio.timeout(120), connected(f"http://127.0.0.1:{port}") as connections:
        asking = asyncio.create_task(connections.request("POST", "/x", bytes(size)))
        await begun.wait()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        given_up.set()
        assert await came < size


async def test_closing_the_connections_ends_the_answers_under_way() -> None:
    engine = Engine(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        with await connections.request("GET", "/x") as response:
            assert await response.part() == b"hello"
            reading = asyncio.create_task(response.part())
            await asyncio.sleep(0)
            await connections.close()
            with pytest.raises(BrokenOff):
                await reading
        with pytest.raises(NotConnected, match="closed"):
            await asked(connections)
