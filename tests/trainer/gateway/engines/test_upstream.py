"""The gateway's connections to an engine: kept, one that is being replaced, and answers in every framing."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from arttrace.system.errors import ServingError
from trainer.gateway.engines.connections import BrokenOff, Connections, NotConnected
from trainer.gateway.engines.upstream import Upstream
from trainer.gateway.engines.vllm.engine import EngineAddress
from trainer.gateway.engines.vllm.model import Probe


def test_a_closed_engine_is_an_engine_that_does_not_answer() -> None:
    async def use() -> None:
        upstream = Upstream(EngineAddress("http://127.0.0.1:9", None))
        await upstream.close()
        with pytest.raises(NotConnected):
            await upstream.forward("/v1/chat/completions", b"{}")
        with pytest.raises(ServingError, match="did not answer /v1/models"):
            await upstream.models()
        assert not await upstream.healthy()

    asyncio.run(use())


Answering = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@contextlib.asynccontextmanager
async def listening(answering: Answering) -> AsyncIterator[str]:
    """The URL of a server that does as the test says."""

    async def each(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await answering(reader, writer)
        writer.close()

    server = await asyncio.start_server(each, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@contextlib.asynccontextmanager
async def server(answering: Answering) -> AsyncIterator[Connections]:
    """Connections to such a server."""
    async with listening(answering) as url:
        connections = Connections(f"{url}/base", {"x-mine": "yes"})
        yield connections
        await connections.close()


async def whole(connections: Connections, body: bytes = b"{}") -> tuple[int, bytes]:
    with await connections.request("POST", "/path", body) as answer:
        parts = []
        while part := await answer.part():
            parts.append(part)
        return answer.status, b"".join(parts)


FRAMINGS = {
    "length": b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    "chunks": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n",
    "to the end": b"HTTP/1.1 200 OK\r\n\r\nhello",
    "after a 100": b"HTTP/1.1 100 Continue\r\nx: y\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello",
}


@pytest.mark.parametrize("framing", FRAMINGS)
@pytest.mark.parametrize("size", [7, 1000])
async def test_an_answer_in_any_framing_and_in_parts_of_any_size(framing: str, size: int) -> None:
    heads = []

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        await reader.readexactly(2)
        content = FRAMINGS[framing]
        for start in range(0, len(content), size):
            writer.write(content[start : start + size])
            await writer.drain()
            await asyncio.sleep(0)

    async with server(answering) as connections, asyncio.timeout(120):
        assert await whole(connections) == (200, b"hello")
    assert heads[0].startswith(b"POST /base/path HTTP/1.1\r\nHost: 127.0.0.1:")
    assert b"\r\nx-mine: yes\r\n" in heads[0]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel",
        b"no http at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        FRAMINGS["chunks"].replace(b"3\r", b"zz"),
    ],
)
async def test_an_answer_that_is_not_whole_is_an_error(content: bytes) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(content)
        await writer.drain()

    async with server(answering) as connections, asyncio.timeout(120):
        with pytest.raises(BrokenOff):
            await whole(connections)


@pytest.mark.parametrize("hangs_up", [True, False])
async def test_chunks_that_are_none_in_the_middle_of_an_answer_are_an_error(hangs_up: bool) -> None:
    begun = asyncio.Event()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n")
        await begun.wait()
        writer.write(b"ZZZ\r\nx\r\n")
        await writer.drain()
        if not hangs_up:
            await reader.read()

    async with server(answering) as connections, asyncio.timeout(120):
        with await connections.request("POST", "/path", b"{}") as answer:
            assert await answer.part() == b"hello"
            begun.set()
            with pytest.raises(BrokenOff):
                await answer.part()


async def test_a_kept_connection_that_is_reset_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    reset = asyncio.Event()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhello")
        await asyncio.sleep(0.02)
        writer.write(b"hello")
        await reset.wait()
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    async with server(answering) as connections, asyncio.timeout(120):
        assert await whole(connections) == (200, b"hellohello")
        reset.set()
        await asyncio.sleep(0.05)
        gc.collect()
        await asyncio.sleep(0)
    # Clients of the openai package that other tests dropped close themselves in whatever loop is running.
    lost = [record.getMessage() for record in caplog.records if "never retrieved" in record.getMessage()]
    assert not [text for text in lost if "AsyncClient.aclose()" not in text]


ODD = [
    b"<html>the proxy's page</html>",
    b"",
    b"[]",
    b'{"data": "x", "choices": "x"}',
    b'{"data": [{"root": "x"}], "choices": [{"index": 0}]}',
    b'{"data": [{"id": 7}], "choices": [{"index": 0, "logprobs": {"token_logprobs": []}}]}',
    b'{"data": [{"id": "a"}, 7], "choices": [{"index": 0, "logprobs": {"token_logprobs": [null]}}]}',
    b'{"data": [{"id": "\xff"}], "choices": [{"index": 0, "logprobs": {"token_logprobs": [-1.0]}}',
    b'{"data": [' + b"[" * 100_000,
]


@pytest.mark.parametrize("content", ODD)
async def test_an_answer_that_no_engine_gives_is_a_clear_error(content: bytes) -> None:
    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := (await reader.readuntil(b"\r\n\r\n")).lower():
            await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(content), content))

    async with listening(answering) as url, asyncio.timeout(120):
        upstream = Upstream(EngineAddress(url))
        with pytest.raises(ServingError, match="/v1/models"):
            await upstream.models()
        with pytest.raises(ServingError, match="/v1/completions"):
            await upstream.probe("base", Probe([[1], [2]], 3))
        assert await upstream.sleeps() is None
        await upstream.close()


async def test_connections_are_kept_and_dropped_where_the_server_says_so() -> None:
    made = 0

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal made
        made += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            body = await reader.readexactly(2)
            writer.write(
                FRAMINGS["length"].replace(b"200 OK", b"200 OK\r\nconnection: close") if body == b"[]" else b""
            )
            writer.write(FRAMINGS["length"] if body == b"{}" else b"")

    async with server(answering) as connections, asyncio.timeout(120):
        for _ in range(3):
            assert await whole(connections) == (200, b"hello")
        assert made == 1
        assert await whole(connections, b"[]") == (200, b"hello")
        assert await whole(connections) == (200, b"hello")
        assert made == 2
        with await connections.request("POST", "/path", b"{}"):
            pass  # left unread: what comes of it must not be taken for the next answer
        assert await whole(connections) == (200, b"hello")


async def test_an_answer_that_nobody_reads_makes_the_server_wait() -> None:
    sent = 0
    stuck = asyncio.Event()

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (64 << 20))
        try:
            while sent < 64 << 20:
                writer.write(b"x" * (1 << 20))
                sent += 1 << 20
                async with asyncio.timeout(1.0 if not stuck.is_set() else 20):
                    await writer.drain()
        except TimeoutError:
            stuck.set()
            await writer.drain()
            writer.write(b"x" * ((64 << 20) - sent))
            await writer.drain()
            await reader.read()

    async with server(answering) as connections, asyncio.timeout(30):
        with await connections.request("POST", "/path", b"{}") as answer:
            await stuck.wait()
            assert sent < 32 << 20
            size = 0
            while part := await answer.part():
                size += len(part)
        assert size == 64 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a full queue refuses, as an engine that is gone does")
def test_a_burst_beyond_the_queue_of_a_socket_waits_for_its_place(tmp_path: Path) -> None:
    """Older kernels queue 128 connections: an engine that is busy for a moment was taken for one that is gone."""
    uvloop = pytest.importorskip("uvloop", reason="asyncio's own loop takes a full queue for a connection")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok")
        await writer.drain()
        writer.close()

    async def burst() -> list[int]:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(tmp_path / "s"))
            listener.listen(2)
            listener.setblocking(False)
            connections = Connections(f"unix:{tmp_path / 's'}", {})

            async def ask() -> int:
                with await connections.request("POST", "/x", b"{}") as response:
                    while await response.part():
                        pass
                    return response.status

            asking = [asyncio.create_task(ask()) for _ in range(40)]
            await asyncio.sleep(0.1)
            server = await asyncio.start_unix_server(answer, sock=listener, backlog=2)
            try:
                return await asyncio.gather(*asking)
            finally:
                await connections.close()
                server.close()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(burst()) == [200] * 40
