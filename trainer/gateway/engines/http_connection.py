"""One kept HTTP/1.1 connection of a client: requests one after the other, each one's answer parsed as it arrives.

On httptools, whose parser is compiled, and nothing else: every call of every agent passes here, and what a general
client does around the same parser (cookies, redirects, tracing, timers) took three times the CPU of all that is here.
"""

from __future__ import annotations

import asyncio
from typing import cast

import httptools

_MAX_HEAD_BYTES = 64 << 10
_MAX_UNREAD_BYTES = 128 << 10
"""With more of an answer than this unread, no more of it is taken from the network."""


class BrokenOff(ConnectionError):
    """The server hung up, or sent what is no HTTP, before the answer was whole."""


class HttpConnection(asyncio.Protocol):
    """One connection, with one request under way at most: `ask`, then `part` until it is empty.

    `status` and `headers` (names in small letters) are those of the answer. `idle_since` is for who keeps it.
    """

    def __init__(self) -> None:
        self.idle_since = 0.0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._asked = False
        self._head_is_there = False
        self._head_bytes = 0
        self._whole = False
        self._stays = False
        self._failure = ""
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._news: asyncio.Future[None] | None = None

    async def ask(self, request: bytes, body: bytes) -> None:
        """Send a request; returns when the head of its answer is there. Raises BrokenOff."""
        self.status, self.headers = 0, []
        self._asked, self._head_is_there, self._head_bytes, self._whole = True, False, 0, False
        self._transport.writelines((request, body) if body else (request,))
        while not self._head_is_there:
            if self._failure:
                raise BrokenOff(self._failure)
            await self._wait()

    async def part(self) -> bytes:
        """What has come of the body since the last time, waited for; empty at its end. Raises BrokenOff."""
        while not (parts := self._unread):
            if self._whole:
                return b""
            if self._failure:
                raise BrokenOff(self._failure)
            await self._wait()
        self._unread, self._unread_bytes = [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def can_be_kept(self) -> bool:
        """Whether request and answer are whole, and the server takes another request."""
        sent = not self._transport.get_write_buffer_size()
        return self._whole and self._stays and sent and not self._unread and not self.is_closing

    @property
    def is_closing(self) -> bool:
        """Whether it is closed, or about to be."""
        return bool(self._failure) or self._transport.is_closing()

    def close(self) -> None:
        """Close it at once: what is left of a request is not sent, and a server stops working on its answer."""
        self._give_up("the connection was closed")

    async def _wait(self) -> None:
        self._news = asyncio.get_running_loop().create_future()
        try:
            await self._news
        finally:
            self._news = None

    def _tell(self) -> None:
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    def _fail(self, why: str) -> None:
        self._failure = self._failure or why
        self._tell()

    def _give_up(self, why: str) -> None:
        self._fail(why)
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The server is there."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer came; of one that nobody has asked for, the connection is of no use."""
        if not self._asked or self._whole:
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._give_up(f"what came is no answer: {error!r}")
            return
        if not self._head_is_there:
            self._head_bytes += len(data)
            if self._head_bytes > _MAX_HEAD_BYTES:
                self._give_up(f"the answer's head is longer than {_MAX_HEAD_BYTES} bytes")
        elif self._unread_bytes > _MAX_UNREAD_BYTES and not self._paused and not self._whole:
            self._paused = True
            self._transport.pause_reading()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended. So does an answer that says nothing of its length."""
        framed = any(
            name == b"content-length" or (name == b"transfer-encoding" and value.lower().endswith(b"chunked"))
            for name, value in self.headers
        )
        if self._head_is_there and not framed and exc is None and not self._failure:
            self._whole = True
        self._fail("the server hung up" if exc is None else repr(exc))

    def on_message_begin(self) -> None:
        """The parser found an answer: the one that was asked for, or one more, of which nothing is known."""
        if self._whole:
            self._stays = False
            self._failure = self._failure or "the server sent more than one answer"

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a header, or a trailer, which says nothing to anybody here."""
        if not self._head_is_there:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The parser found the end of a head; one that only says that more will come is passed over."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers = []
        elif not self._whole:
            self.status = status
            self._head_is_there = True
            self._stays = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """The parser found a part of the body."""
        if not self._whole:
            self._unread.append(body)
            self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        """The parser found the end of an answer."""
        if self._head_is_there:
            self._whole = True
