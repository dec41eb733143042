"""One kept HTTP/1.1 connection of a client: requests one after the other, each one's answer parsed as it arrives.

On httptools, whose parser is compiled, and nothing else: every call of every agent passes here, and what a general
client does around the same parser (cookies, redirects, tracing, timers) took three times the CPU of all that is here.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from typing import cast

import httptools

_MAX_HEAD_BYTES = 64 << 10
"""The longest head of an answer, and the most that may come without a byte of its body: trailers, heads of chunks."""

_MAX_UNREAD_BYTES = 128 << 10
"""With more of an answer than this unread, no more of it is taken from the network."""


_RESETS = (ConnectionResetError, BrokenPipeError)


class BrokenOff(ConnectionError):
    """The server hung up, or sent what is no HTTP, before the answer was whole."""


class HttpConnection(asyncio.Protocol):
    """One connection, with one request under way at most: `ask`, then `part` until it is empty.

    `status` and `headers` (names in small letters, values without white space around them) are those of the answer,
    whose body comes as it was sent, compressed where it was. `idle_since` is for who keeps it; errors call the server
    `peer`.
    """

    def __init__(self, peer: str) -> None:
        self._peer = peer
        self.idle_since = 0.0
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._asked = False
        self._has_body = True
        self._head_is_there = False
        self._is_framed = False
        self._bytes_without_body = 0
        self._whole = False
        self._stays = False
        self._failure = ""
        self._is_local = self._was_reset = False
        self._unread: list[bytes] = []
        self._unread_bytes = 0
        self._paused = False
        self._news: asyncio.Future[None] | None = None

    async def ask(self, request: bytes, body: bytes, *, answer_has_body: bool = True) -> None:
        """Send a request; returns when the head of its answer is there. Raises BrokenOff.

        Args:
            request: Its head.
            body: Its body.
            answer_has_body: Whether the answer may have a body: that to HEAD has none, whatever its head says.
        """
        self._parser = httptools.HttpResponseParser(self)  # the last one may wait for a body that does not come
        self.status, self.headers, self._asked, self._has_body = 0, [], True, answer_has_body
        self._head_is_there = self._is_framed = self._whole = False
        self._bytes_without_body = 0
        self._transport.writelines((request, body) if body else (request,))
        while not self._head_is_there:
            self._raise_failure()
            await self._wait()

    async def part(self) -> bytes:
        """What has come of the body since the last time, waited for; empty at its end. Raises BrokenOff."""
        while not (parts := self._unread):
            if self._whole:
                return b""
            self._raise_failure()
            await self._wait()
        self._unread, self._unread_bytes = [], 0
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    @property
    def can_be_kept(self) -> bool:
        """Whether request and answer are whole, and the server takes another request."""
        if self.is_closing or self._unread or self._transport.get_write_buffer_size():
            return False
        return self._whole and self._stays

    @property
    def is_unheard(self) -> bool:
        """Whether no byte of an answer has come to the last request."""
        return not self._head_is_there and not self._bytes_without_body

    @property
    def is_unread(self) -> bool:
        """Whether the server is known not to have read the last request to its end, and so did nothing of it: Linux
        resets a connection in the file system where it ends with something unread (unix(7): ECONNRESET), TCP on other
        occasions too."""
        return self._is_local and self._was_reset and self.is_unheard

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

    def _raise_failure(self) -> None:
        if self._failure:
            raise BrokenOff(f"{self._peer}: {self._failure}")

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
        kind = getattr(transport.get_extra_info("socket"), "family", None)
        self._is_local = sys.platform == "linux" and kind == socket.AF_UNIX

    def data_received(self, data: bytes) -> None:
        """Bytes of an answer came; of one that nobody has asked for, the connection is of no use."""
        if not self._asked or self._whole:
            self.close()
            return
        self._bytes_without_body += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"what came is no answer: {error!r}")
        if self._bytes_without_body > _MAX_HEAD_BYTES and not self._whole:
            self._fail(f"more than {_MAX_HEAD_BYTES} bytes came in a row that are none of the answer's body")
        if self._failure:
            self._transport.abort()
        elif self._unread_bytes > _MAX_UNREAD_BYTES and not self._paused and not self._whole:
            self._paused = True
            self._transport.pause_reading()
        self._tell()

    def connection_lost(self, exc: Exception | None) -> None:
        """It ended. So does an answer that says nothing of its length."""
        if self._head_is_there and not self._is_framed and exc is None and not self._failure:
            if self._ended_as_said():
                self._whole = True
            else:
                self._fail("it broke off: TLS did not say that it ended")
        self._was_reset = isinstance(exc, _RESETS)
        self._fail("the server hung up" if exc is None else repr(exc))

    def _ended_as_said(self) -> bool:
        """Whether it is the server that ended the connection, and nobody on the way: TLS has a word for it
        (close_notify), of which event loops say nothing."""
        encrypted: ssl.SSLObject | None = self._transport.get_extra_info("ssl_object")
        try:
            return encrypted is None or not encrypted.read(1)
        except ssl.SSLZeroReturnError:
            return True
        except ssl.SSLError:
            return False

    def on_message_begin(self) -> None:
        """The parser found an answer: the one that was asked for, or one more, of which nothing is known."""
        if self._whole:
            self._stays = False
            self._failure = self._failure or "the server sent more than one answer"

    def on_header(self, name: bytes, value: bytes) -> None:
        """The parser found a header, or a trailer, which says nothing to anybody here."""
        if self._head_is_there:
            return
        name = name.lower()
        if name == b"transfer-encoding" and (self._is_framed or value.strip(b" ").lower() != b"chunked"):
            # None was asked for, and of what else this may say the parser takes some for no chunks.
            self._fail(f"the answer's transfer coding is not understood: {value[:100]!r}")
        self._is_framed = self._is_framed or name in (b"transfer-encoding", b"content-length")
        self.headers.append((name, value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        """The parser found the end of a head; one that only says that more will come is passed over."""
        status = self._parser.get_status_code()
        if status < 200:
            self.headers, self._is_framed = [], False
        elif not self._whole and not self._failure:
            self.status = status
            self._head_is_there = True
            self._whole = not self._has_body
            self._stays = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        """The parser found a part of the body."""
        if self._whole:  # it was to have none
            self._stays = False
            return
        self._bytes_without_body = 0
        self._unread.append(body)
        self._unread_bytes += len(body)

    def on_message_complete(self) -> None:
        """The parser found the end of an answer."""
        if self._head_is_there:
            self._whole = True
