"""HTTP/1.1 to one server over kept connections, an answer's bytes given on as they come.

Every call of every agent passes here. This does no more than the gateway needs, on the compiled parser that uvicorn
has too: general clients took most of a call's CPU.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools

_IDLE_S = 3.0
"""vLLM closes idle connections after 5 s; closing them first avoids most meetings with a dead one."""

_CONNECT_S = 10.0
_MAX_HELD_BYTES = 1 << 20
"""Of one answer no more than about this lies here unread; then the server has to wait."""


class NotConnected(ConnectionError):
    """No connection was made: the server has seen nothing of the request."""


class BrokenOff(ConnectionError):
    """The server hung up, or sent what is no HTTP, before the answer was whole."""


class Connections:
    """Connections to the server at `url`, each with one request under way at most; `headers` go with every request."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        self.closed = False
        self._https = parts.scheme == "https"
        self._host = parts.hostname or "localhost"
        self._port = parts.port or (443 if self._https else 80)
        self._prefix = parts.path.rstrip("/").encode()
        lines = {"host": parts.netloc.rpartition("@")[2], **headers}
        self._head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode("latin-1")
        self._all: set[_Connection] = set()
        self._idle: list[_Connection] = []

    async def request(self, method: bytes, path: bytes, body: bytes = b"") -> Answer:
        """The answer, of which status and headers are there. Close it in any case: it may hold the connection.

        Raises NotConnected, or BrokenOff when the server hangs up without an answer: it may have done what was asked.
        """
        connection = self._kept() or await self._connected()
        if self.closed:  # while the connection was made
            connection.transport.abort()
            raise NotConnected("its connections were closed")
        answer = Answer(connection)
        connection.answer = answer
        try:
            connection.transport.write(
                b"%b %b%b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n%b"
                % (method, self._prefix, path, self._head, len(body), body)
            )
            await answer.headed()
        except BaseException:
            answer.close()
            raise
        return answer

    def close(self) -> None:
        """Close every connection; answers under way end with BrokenOff."""
        self.closed = True
        for connection in list(self._all):
            connection.transport.abort()

    def _kept(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.transport.is_closing():
                if connection.loop.time() - connection.idle_since < _IDLE_S:
                    return connection
                connection.transport.abort()
        return None

    async def _connected(self) -> _Connection:
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, connection = await asyncio.get_running_loop().create_connection(
                    lambda: _Connection(self._all, self._idle), self._host, self._port, ssl=self._https or None
                )
        except (OSError, TimeoutError) as error:
            raise NotConnected(f"{self._host}:{self._port}: {error or 'no connection in time'}") from error
        return connection


class Answer:
    """One answer: `status`, `headers` (names in small letters), and its body, part by part."""

    __slots__ = (
        "_connection",
        "_ended",
        "_error",
        "_framed",
        "_held",
        "_keep",
        "_parser",
        "_parts",
        "_waiter",
        "headers",
        "status",
    )

    def __init__(self, connection: _Connection) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._connection: _Connection | None = connection
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._held = 0
        self._framed = False
        self._ended = False
        self._keep = False
        self._error: BrokenOff | None = None
        self._waiter: asyncio.Future[None] | None = None

    async def headed(self) -> None:
        """Wait for status and headers. Raises BrokenOff."""
        while not self.status:
            await self._more()

    async def part(self) -> bytes:
        """What has come of the body since the last time, waited for; empty at its end. Raises BrokenOff."""
        while not self._parts:
            if self._ended:
                return b""
            await self._more()
        parts, self._parts = self._parts, []
        if self._held > _MAX_HELD_BYTES and self._connection is not None:
            self._connection.transport.resume_reading()
        self._held = 0
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def close(self) -> None:
        """Be done with it. Before its end this closes the connection, which makes an engine stop generating."""
        connection, self._connection = self._connection, None
        if connection is not None:
            unread = self._held > _MAX_HELD_BYTES  # its reading is paused
            connection.answered(keep=self._keep and not unread)

    def __enter__(self) -> Answer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def feed(self, data: bytes) -> None:
        """Bytes came."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.lost(error)

    def lost(self, error: Exception | None) -> None:
        """Nothing further will come."""
        if not self._ended:
            if self.status and not self._framed and error is None:
                self._ended = True  # a body without a length ends with the connection
            else:
                self._error = BrokenOff(str(error or "the connection was closed before the answer was whole"))
            self._wake()

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a header."""
        name = name.lower()
        self._framed |= name in (b"content-length", b"transfer-encoding")
        self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The parser found the last one."""
        if (status := self._parser.get_status_code()) < 200:
            self.headers.clear()  # the real answer is still to come
        else:
            self.status = status
            self._wake()

    def on_body(self, body: bytes) -> None:
        """The parser found a part of the body."""
        self._parts.append(body)
        before, self._held = self._held, self._held + len(body)
        if before <= _MAX_HELD_BYTES < self._held and self._connection is not None:
            self._connection.transport.pause_reading()
        self._wake()

    def on_message_complete(self) -> None:
        """The parser found the end."""
        if self.status:
            self._ended = True
            self._keep = self._parser.should_keep_alive()
            self._wake()

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class _Connection(asyncio.Protocol):
    transport: asyncio.Transport

    def __init__(self, everyone: set[_Connection], idle: list[_Connection]) -> None:
        self.answer: Answer | None = None
        self.idle_since = 0.0
        self.loop = asyncio.get_running_loop()
        self._all = everyone
        self._idle = idle

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self._all.add(self)

    def data_received(self, data: bytes) -> None:
        if self.answer is None:
            self.transport.abort()  # nothing was asked
        else:
            self.answer.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.discard(self)
        if self in self._idle:
            self._idle.remove(self)
        if self.answer is not None:
            self.answer.lost(exc)

    def answered(self, *, keep: bool) -> None:
        """Its request is done with."""
        self.answer = None
        if keep and not self.transport.is_closing():
            self.idle_since = self.loop.time()
            self._idle.append(self)
        else:
            self.transport.abort()
