"""A listening address that passes a limited number of connections on to a server behind it, and closes further ones at
once.

gRPC's server has no limit on connections: each takes descriptors that the whole collector needs, for as long as it
lives. A sender that is turned away sees it as unavailable, and tries again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

_CHUNK_BYTES = 256 << 10
_LAST_WORDS_S = 1.0
DESCRIPTORS_EACH = 3
"""Of a connection: to the sender, to the server behind, and the server's own."""


class BoundedListener:
    """Relays between senders and `behind`, a path of a Unix socket or a port on loopback."""

    def __init__(self, behind: str | int, most: int) -> None:
        self._behind = behind
        self._most = most
        self._open: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.refused = 0

    async def start(self, host: str, port: int) -> int:
        """Listens, and gives the port. Raises OSError where that cannot be."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family, backlog=128)
        self._server = await asyncio.start_server(self._accepted, sock=listener)
        return int(listener.getsockname()[1])

    async def stop(self) -> None:
        """Accepts nothing more, and ends what is open when the server behind has not done so."""
        if self._server is not None:
            self._server.close()
        if self._open:
            await asyncio.wait(self._open, timeout=_LAST_WORDS_S)
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._open) >= self._most:
            self.refused += 1
            writer.transport.abort()
            return
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            with contextlib.suppress(OSError):
                await self._relay(reader, writer)
        finally:
            self._open.discard(task)
            writer.close()  # what was written goes out first

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if isinstance(self._behind, str):
            answers, sender = await asyncio.open_unix_connection(self._behind)
        else:
            answers, sender = await asyncio.open_connection("127.0.0.1", self._behind)
        try:
            directions = {asyncio.ensure_future(_copy(reader, sender)), asyncio.ensure_future(_copy(answers, writer))}
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
        finally:
            sender.close()


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK_BYTES):
        target.write(data)
        await target.drain()
