"""The gateway's connections to an engine: how they are made, how long they are kept, and what an engine may send."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import ssl
import sys
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


async def test_where_a_server_hung_up_on_one_request_its_other_connections_are_not_used_again() -> None:
    """One that is killed closes its sockets one after the other, first that on which it listens: what is sent to it
    meanwhile may have been done, and what meets nobody may go to another."""
    writers: list[asyncio.StreamWriter] = []
    late: list[bytes] = []

    async def dying(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        while len(writers) < 2:  # two at once, so that two connections are kept
            await asyncio.sleep(0)
        writer.write(HELLO)
        late.append(await reader.readuntil(b"\r\n\r\n"))
        server.close()
        writer.close()

    server = await asyncio.start_server(dying, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with asyncio.timeout(120), connected(f"http://127.0.0.1:{port}") as connections:
        assert await asyncio.gather(asked(connections), asked(connections)) == [b"hello", b"hello"]
        with pytest.raises(BrokenOff):
            await connections.request("POST", "/x", b"1")
        with pytest.raises(NotConnected):
            await connections.request("POST", "/x", b"2")
        for writer in writers:
            writer.close()
    assert len(late) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says that a server ended with something unread")
@pytest.mark.parametrize("left", [None, 100_000, 1, 0])
async def test_a_request_that_a_server_ended_without_reading_may_go_to_another(
    tmp_path: Path, left: int | None
) -> None:
    """A process that is killed ends so with connections that it never took, and with those that it kept."""
    body = bytes(100_000)

    def end() -> None:
        with listener:
            if left is None:
                return
            connection, _ = listener.accept()
        with connection:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += connection.recv(1)
            rest = len(body) - left
            while rest:
                rest -= len(connection.recv(rest))

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    async with asyncio.timeout(120), connected(f"unix:{tmp_path / 's'}") as connections:
        asking = asyncio.create_task(connections.request("POST", "/x", body))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(end)
        with pytest.raises(NotConnected if left != 0 else BrokenOff):
            await asking


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says that a server ended with something unread")
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_a_kept_connection_left_unread_is_sent_once_more(tmp_path: Path, method: str) -> None:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(tmp_path / "s"))
    listener.listen()
    listener.settimeout(60)

    def answer() -> socket.socket:
        connection, _ = listener.accept()
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += connection.recv(1)
        connection.sendall(HELLO)
        return connection

    async with asyncio.timeout(120), connected(f"unix:{tmp_path / 's'}") as connections:
        first = asyncio.create_task(asked(connections))
        kept = await asyncio.to_thread(answer)
        assert await first == b"hello"
        again = asyncio.create_task(connections.request(method, "/x"))
        await asyncio.sleep(0.1)
        kept.close()
        with listener, await asyncio.to_thread(answer), await again as response:
            assert await read(response) == b"hello"


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


async def test_every_request_says_who_asks() -> None:
    engine = Engine()
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        await asked(connections)
        with await connections.request("POST", "/x", b""):
            pass
    assert [head.count(b"\r\nUser-Agent: arttrace\r\n") for head in engine.heads] == [1, 1]


async def test_an_answer_to_head_has_no_body_whatever_it_says() -> None:
    engine = Engine(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        for _ in range(2):
            with await connections.request("HEAD", "/x") as response:
                assert (response.status, await read(response)) == (200, b"")
        engine.content = HELLO
        assert await asked(connections) == b"hello"
        assert engine.made == 1
        with await connections.request("HEAD", "/x") as response:
            assert await read(response) == b""
        assert await asked(connections) == b"hello"
        assert engine.made == 2, "a body behind that answer was no part of another"


class Tired:
    """A server that answers each connection's first `requests`, and hangs up on the next as it is told to."""

    def __init__(self, requests: int = 1, *, said: bytes = b"", resets: bool = False) -> None:
        self.requests = requests
        self.said = said
        self.resets = resets
        self.heads: list[bytes] = []
        self.made = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server, asyncio.timeout(120):
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.made += 1
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            for number in range(self.requests + 1):
                self.heads.append(await reader.readuntil(b"\r\n\r\n"))
                writer.write(HELLO if number < self.requests else self.said)
                await writer.drain()
        if self.resets:
            writer.transport.abort()
        writer.close()


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("resets", [True, False])
async def test_a_get_that_meets_the_end_of_a_kept_connection_is_sent_once_more(method: str, resets: bool) -> None:
    server = Tired(resets=resets)
    async with server.listening() as url, connected(url) as connections:
        assert await asked(connections) == b"hello"
        with await connections.request(method, "/x") as response:
            assert await read(response) == (b"hello" if method == "GET" else b"")
    assert (len(server.heads), server.made) == (3, 2)


async def test_what_may_have_been_done_is_asked_for_once() -> None:
    server = Tired()
    async with server.listening() as url, connected(url) as connections:
        assert await asked(connections) == b"hello"
        with pytest.raises(BrokenOff):
            await connections.request("POST", "/x", b"{}")
    assert (len(server.heads), server.made) == (2, 1)


@pytest.mark.parametrize(
    ("server", "heads"),
    [(Tired(0), 1), (Tired(1, said=b"HTTP/1.1 2"), 2), (Tired(1, said=HELLO[:-1]), 2)],
    ids=["on a new connection", "with a head begun", "with a body begun"],
)
async def test_a_get_is_sent_again_for_no_other_reason(server: Tired, heads: int) -> None:
    server.heads, server.made = [], 0
    async with server.listening() as url, connected(url) as connections:
        for _ in range(server.requests):
            await asked(connections)
        with pytest.raises(BrokenOff, match=url):
            await asked(connections)
    assert len(server.heads) == heads


async def test_a_get_is_sent_again_once() -> None:
    server = Tired()
    async with server.listening() as url, connected(url) as connections:
        assert await asked(connections) == b"hello"
        server.requests = 0
        kept = connections._kept[0]
        with pytest.raises(BrokenOff, match=url):
            await asked(connections)
        assert kept.is_closing
    assert (len(server.heads), server.made) == (3, 2)


async def test_a_get_whose_connections_are_closed_meanwhile_is_not_sent_again() -> None:
    engine = Engine()
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        assert await asked(connections) == b"hello"
        engine.content = b""
        asking = asyncio.create_task(asked(connections))
        while len(engine.heads) < 2:
            await asyncio.sleep(0.01)
        await connections.close()
        with pytest.raises(BrokenOff):
            await asking
    assert len(engine.heads) == 2


async def test_an_idle_connection_that_the_server_ends_is_not_used_again() -> None:
    """So even a POST, which is never sent again, meets no dead one."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(2 if head.startswith(b"POST") else 0)
        writer.write(HELLO)
        await writer.drain()
        await over.wait()
        writer.write_eof()  # FIN alone: it goes on reading
        await reader.read()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, asyncio.timeout(120), connected(url) as connections:
        assert await asked(connections) == b"hello"
        idle = connections._kept[0]
        over.set()
        while not idle.is_closing:
            await asyncio.sleep(0.01)
        with await connections.request("POST", "/x", b"{}") as response:
            assert await read(response) == b"hello"


def _served_by_tls(listener: socket.socket, tls: ssl.SSLContext, content: bytes, *, says_its_end: bool) -> None:
    """Answer one request, and end the connection with TLS's word for it or, as whoever cuts it would, without."""
    accepted, _ = listener.accept()
    with tls.wrap_socket(accepted, server_side=True) as encrypted:
        while not encrypted.recv(1 << 16).endswith(b"\r\n\r\n"):
            pass
        encrypted.sendall(content)
        if says_its_end:
            encrypted.unwrap().close()
            return
        with socket.socket(fileno=encrypted.detach()) as cut:
            cut.shutdown(socket.SHUT_WR)
            while cut.recv(1 << 16):
                pass


@pytest.mark.parametrize("says_its_end", [True, False])
@pytest.mark.parametrize("body", [b"hello", b"hello" * 100_000], ids=["small", "large"])
async def test_an_answer_to_the_end_of_a_connection_by_tls_is_whole_if_tls_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says_its_end: bool, body: bytes
) -> None:
    certificate, key = own_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    content = b"HTTP/1.1 200 OK\r\n\r\n" + body
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        serving = asyncio.create_task(
            asyncio.to_thread(_served_by_tls, listener, tls, content, says_its_end=says_its_end)
        )
        async with asyncio.timeout(120), connected(url) as connections:
            if says_its_end:
                assert await asked(connections) == body
            else:
                with pytest.raises(BrokenOff, match=f"{url}: it broke off: TLS did not say that it ended"):
                    await asked(connections)
            await serving


@pytest.mark.parametrize("content", [b"", b"no http", HELLO[:-1], b"HTTP/1.1 200 OK\r\nx: " + b"y" * (65 << 10)])
async def test_an_error_names_the_server_without_its_login(content: bytes) -> None:
    server = Tired(0, said=content)
    async with server.listening() as url, connected(url.replace("//", "//me:S3CR3T@")) as connections:
        with pytest.raises(BrokenOff, match=f"^{url}: ") as broken:
            await asked(connections)
    with pytest.raises(NotConnected, match=f"^{url}: ") as unmet:
        await asked(connections)
    async with connected("http://me:S3CR3T@127.0.0.1:9") as connections:
        with pytest.raises(NotConnected, match=r"^http://127.0.0.1:9: ConnectionRefused") as refused:
            await asked(connections)
    assert "S3CR3T" not in f"{broken.value}{unmet.value}{refused.value}"


async def test_what_had_come_of_an_answer_can_be_read_when_its_connection_is_closed() -> None:
    """Also where no more was taken from the network, since there was enough that nobody had read."""
    size = 1 << 20
    engine = Engine(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (2 * size, b"x" * size))
    async with engine.listening() as port, connected(f"http://127.0.0.1:{port}") as connections:
        with await connections.request("GET", "/x") as response:
            await asyncio.sleep(0.1)
            await connections.close()
            await asyncio.sleep(0.05)
            assert 0 < len(await response.part()) < size
            with pytest.raises(BrokenOff, match="the connection was closed"):
                await response.part()


@pytest.mark.skipif(sys.platform != "linux", reason="open files are counted in /proc")
async def test_a_thousand_calls_that_end_in_any_way_leave_no_socket_and_no_task() -> None:
    """Whole, left unread, broken off, given up before the head and within the body."""
    contents = [
        HELLO,
        HELLO[:-1],
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nhello",
        b"no http",
        b"",
    ]
    hanging = itertools.cycle([True, False, False])

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := await reader.readuntil(b"\r\n\r\n"):
                content = contents[int(head.split(b" ")[1].removeprefix(b"/"))]
                writer.write(content)
                await writer.drain()
                if content is not HELLO:
                    if next(hanging):
                        await reader.read()
                    break
        writer.close()

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    async def call(connections: Connections, number: int) -> None:
        with contextlib.suppress(BrokenOff, TimeoutError):
            async with asyncio.timeout(0.1):
                with await connections.request(
                    "GET" if number % 2 else "POST", f"/{number % len(contents)}"
                ) as response:
                    if number % 5:
                        await read(response)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server, asyncio.timeout(240):
        before, tasks = open_files(), asyncio.all_tasks()
        connections = Connections(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", {})
        for start in range(0, 1000, 50):
            await asyncio.gather(*(call(connections, number) for number in range(start, start + 50)))
        assert not connections._busy
        await connections.close()
        while asyncio.all_tasks() != tasks or open_files() > before:
            await asyncio.sleep(0.02)
