"""Kept HTTP connections to one server: one is found or made for each request, and kept for the next."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from collections.abc import Mapping
from urllib.parse import quote, urlsplit

import aiohappyeyeballs

from arttrace.system.addresses import login_of, verified, why_never_asked, without_login
from trainer.gateway.engines.http_connection import BrokenOff, HttpConnection

__all__ = ["BrokenOff", "Connections", "EngineResponse", "NotConnected"]

_IDLE_S = 3.0
"""vLLM closes idle connections after 5 s; closing them first avoids most meetings with a dead one."""

_SAFE = ("GET", "HEAD")
_CLOSED = "its connections were closed"
_CONNECT_S = 10.0
_PLACE_S = 0.01
_NEXT_ADDRESS_S = 0.25
"""After so long the next address of a host is tried beside the one before, as RFC 8305 has it."""


class NotConnected(ConnectionError):
    """No connection was made, or it ended before the server had read the request: it has done nothing of it."""


class Connections:
    """Connections to the server at `url` (http://..., https://..., or unix:PATH for a socket in the file system), each
    with one request under way at most; `headers` go with every request. Errors name the server, without a login."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._peer = without_login(url)
        self._socket = url[len("unix:") :] if url.lower().startswith("unix:") else None
        shown = "http://localhost" if self._socket is not None else url.rstrip("/")
        self._unusable = why_never_asked(shown, "".join(headers.values()))
        if not self._unusable:
            self._address(shown, headers)
        self._kept: deque[HttpConnection] = deque()
        self._busy: set[HttpConnection] = set()
        self._closed = False

    def _address(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna").decode()
        self._ssl = verified(url) or None
        self._host, self._port = host, parts.port or (80 if self._ssl is None else 443)
        self._path = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        if (login := login_of(parts)) is not None:
            headers = {"authorization": login, **headers}
        authority = (f"[{host}]" if ":" in host else host) + ("" if parts.port is None else f":{parts.port}")
        lines = [f"Host: {authority}", "User-Agent: arttrace", *(f"{name}: {value}" for name, value in headers.items())]
        self._headers = "".join(f"{line}\r\n" for line in lines)

    async def request(self, method: str, path: str, body: bytes = b"") -> EngineResponse:
        """The answer, of which status and headers are there. Close it in any case: it may hold the connection.

        Raises NotConnected, or BrokenOff when the server hangs up without an answer: it may have done what was asked.
        What meets the end of a kept connection goes once more, on a new one, where it is a GET or HEAD, or where the
        server has not read it (RFC 9110, 9.2.2).
        """
        kept = self._kept_one()
        while True:
            connection = kept or await self._made()
            try:
                return await self._asked(connection, method, path, body)
            except BrokenOff as error:
                may_go_again = connection.is_unread or (method in _SAFE and connection.is_unheard)
                if kept is None or not may_go_again or self._closed:
                    if connection.is_unread:
                        raise NotConnected(str(error)) from error
                    raise
            kept = None

    async def _asked(self, connection: HttpConnection, method: str, path: str, body: bytes) -> EngineResponse:
        if self._closed:  # a request may have got here before the engine died and they were closed
            connection.close()
            raise self._not_connected(_CLOSED)
        length = f"Content-Length: {len(body)}\r\n" if body or method not in _SAFE else ""
        self._busy.add(connection)
        try:
            await connection.ask(
                f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}{length}\r\n".encode("ascii"),
                body,
                answer_has_body=method != "HEAD",
            )
        except BaseException:
            self.give_back(connection)
            raise
        return EngineResponse(connection, self)

    def give_back(self, connection: HttpConnection) -> None:
        """Be done with a connection: keep it for another request, or close it where its answer is not whole."""
        self._busy.discard(connection)
        if not connection.can_be_kept or self._closed:
            if connection.is_closing:  # it broke: a server that dies may not have closed the others yet
                self._let_go()
            connection.close()
            return
        connection.idle_since = now = asyncio.get_running_loop().time()
        while self._kept and (self._kept[0].is_closing or self._kept[0].idle_since < now - _IDLE_S):
            self._kept.popleft().close()
        self._kept.append(connection)

    async def close(self) -> None:
        """Close every connection; answers under way end with BrokenOff."""
        self._closed = True
        self._let_go()
        for connection in tuple(self._busy):
            connection.close()

    def _let_go(self) -> None:
        """Close those that are kept."""
        while self._kept:
            self._kept.pop().close()

    def _kept_one(self) -> HttpConnection | None:
        """The connection that was used last, unless it has been idle for too long."""
        while self._kept:
            connection = self._kept.pop()
            if not connection.is_closing and connection.idle_since >= asyncio.get_running_loop().time() - _IDLE_S:
                return connection
            connection.close()
        return None

    async def _made(self) -> HttpConnection:
        if self._unusable:
            raise self._not_connected(self._unusable)
        loop = asyncio.get_running_loop()
        until = loop.time() + _CONNECT_S
        while not self._closed:
            try:
                async with asyncio.timeout(_CONNECT_S):
                    return await self._connected(loop)
            except OSError as error:
                # A socket in the file system refuses those for which its queue has no place; TCP lets them wait.
                if error.errno != errno.EAGAIN or loop.time() >= until:
                    raise self._not_connected(repr(error)) from error
            await asyncio.sleep(_PLACE_S)
        raise self._not_connected(_CLOSED)

    def _not_connected(self, why: str) -> NotConnected:
        return NotConnected(f"{self._peer}: {why}")

    def _new(self) -> HttpConnection:
        return HttpConnection(self._peer)

    async def _connected(self, loop: asyncio.AbstractEventLoop) -> HttpConnection:
        """A new connection. Raises OSError, and TimeoutError, which is one."""
        if self._socket is not None:
            return (await loop.create_unix_connection(self._new, self._socket))[1]
        addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        connected = await aiohappyeyeballs.start_connection(addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, loop=loop)
        try:
            return (
                await loop.create_connection(
                    self._new,
                    sock=connected,
                    ssl=self._ssl,
                    server_hostname=None if self._ssl is None else self._host,
                )
            )[1]
        except BaseException:
            connected.close()
            raise


class EngineResponse:
    """One answer: `status`, `headers` (names in small letters), and its body, part by part."""

    def __init__(self, connection: HttpConnection, connections: Connections) -> None:
        self.status = connection.status
        self.headers = connection.headers
        self.part = connection.part
        self._connection = connection
        self._connections = connections
        self._is_closed = False

    def close(self) -> None:
        """Be done with it. Before its end this closes the connection, which makes an engine stop generating."""
        if not self._is_closed:
            self._is_closed = True
            self._connections.give_back(self._connection)

    def __enter__(self) -> EngineResponse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
