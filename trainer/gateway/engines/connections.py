"""HTTP to one server over persistent connections, with an answer's bytes passed on as they arrive.

On aiohttp, whose parser is compiled: every call of every agent passes here, and httpx took several times the CPU.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Mapping

import aiohttp

_IDLE_S = 3.0
"""vLLM closes idle connections after 5 s; closing them first avoids most meetings with a dead one."""

_CONNECT_S = 10.0
_PLACE_S = 0.01
_LOST = (aiohttp.ClientError, asyncio.TimeoutError)


class NotConnected(ConnectionError):
    """No connection was made: the server has seen nothing of the request."""


class BrokenOff(ConnectionError):
    """The server hung up, or sent what is no HTTP, before the answer was whole."""


class Connections:
    """Connections to the server at `url` (http://..., or unix:PATH for a socket in the file system), each with one
    request under way at most; `headers` go with every request."""

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        socket = url[len("unix:") :] if url.lower().startswith("unix:") else None
        self._url = url.rstrip("/") if socket is None else "http://localhost"
        self._session = aiohttp.ClientSession(
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
            if socket is None
            else aiohttp.UnixConnector(socket, limit=0, keepalive_timeout=_IDLE_S),
            auto_decompress=False,
        )

    async def request(self, method: str, path: str, body: bytes = b"") -> EngineResponse:
        """The answer, of which status and headers are there. Close it in any case: it may hold the connection.

        Raises NotConnected, or BrokenOff when the server hangs up without an answer: it may have done what was asked.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + _CONNECT_S
        while True:
            if self._session.closed:  # a request may have got here before the engine died and they were closed
                raise NotConnected("its connections were closed")
            try:
                return EngineResponse(
                    await self._session.request(method, self._url + path, data=body, allow_redirects=False)
                )
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
                # A socket in the file system refuses those for which its queue has no place; TCP lets them wait.
                full = isinstance(error, aiohttp.ClientConnectorError) and error.os_error.errno == errno.EAGAIN
                if not full or clock() >= until:
                    raise NotConnected(repr(error)) from error
            except _LOST as error:
                raise BrokenOff(repr(error)) from error
            await asyncio.sleep(_PLACE_S)

    async def close(self) -> None:
        """Close every connection; answers under way end with BrokenOff."""
        await self._session.close()


class EngineResponse:
    """One answer: `status`, `headers` (names in small letters), and its body, part by part."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._ending: asyncio.Future[None] | None = None
        connection = response.connection  # None when all of the answer came with its head
        if connection is not None and connection.protocol is not None:
            self._ending = connection.protocol.closed
            if self._ending is None:
                self._ended(None)
            else:
                self._ending.remove_done_callback(_noticed)
                self._ending.add_done_callback(_noticed)
                self._ending.add_done_callback(self._ended)
        self.status = response.status
        self.headers = [(name.lower(), value) for name, value in response.raw_headers]

    async def part(self) -> bytes:
        """What has come of the body since the last time, waited for; empty at its end. Raises BrokenOff."""
        try:
            return await self._response.content.readany()
        except _LOST as error:
            raise BrokenOff(repr(error)) from error

    def _ended(self, _: asyncio.Future[None] | None) -> None:
        """The connection ended: so does the body. Of chunks that are none, aiohttp notifies only the connection."""
        content = self._response.content
        if not content.is_eof() and content.exception() is None:
            content.set_exception(aiohttp.ClientPayloadError("the body broke off"))

    def close(self) -> None:
        """Be done with it. Before its end this closes the connection, which makes an engine stop generating."""
        if self._ending is not None:
            self._ending.remove_done_callback(self._ended)
        if self._response.content.is_eof():
            self._response.release()
        else:
            self._response.close()

    def __enter__(self) -> EngineResponse:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _noticed(ending: asyncio.Future[None]) -> None:
    """How a kept connection ended is nobody's business any more; asyncio logs what nobody has asked about."""
    ending.exception()
