"""How long a sender may take over a request: over its head, and over its body in proportion to what came of it."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from arttrace.store.server.asgi import Message, Receive
from arttrace.store.server.other_protocols import hint, is_other_protocol
from arttrace.store.server.responses import RequestRefused

HEAD_S = 10.0
"""From the connection, or the first byte of a further request, to the end of the head."""
BODY_S = 20.0
"""For which nothing of a body may come."""
MIN_BYTES_PER_S = 20_000
"""What a slower sender is behind with counts against BODY_S."""
MAX_HEAD_BYTES = 64 << 10
MAX_WITHOUT_HEAD = 256
"""Connections at a time that have not sent a head; the one that has waited longest gives way to a new one."""

_without_head: dict[HeadDeadlineProtocol, None] = {}


class HeadDeadlineProtocol(HttpToolsProtocol):
    """uvicorn's protocol, which closes a connection whose head does not come to its end."""

    _head_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _is_new = True
    """Whether nothing of the connection has come yet."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_there()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_new and is_other_protocol(data):
            if said := hint(data):
                self.logger.warning(said)
            self.send_400_response("this port answers HTTP/1.1")  # by which clients know what it is
            return
        self._is_new = False
        super().data_received(data)
        if self._head_timer is not None:
            self._head_bytes += len(data)
            if self._head_bytes > MAX_HEAD_BYTES:
                self._give_up()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_head()

    def on_headers_complete(self) -> None:
        self._head_is_there()
        super().on_headers_complete()

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._give_up)
            self._head_bytes = 0
            _without_head[self] = None
            if len(_without_head) > MAX_WITHOUT_HEAD:
                next(iter(_without_head))._give_up()

    def _head_is_there(self) -> None:
        _without_head.pop(self, None)
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        self._head_is_there()
        self.transport.abort()


class BodyReader:
    """The messages of a request's body, as long as they come fast enough."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._left = BODY_S

    async def next(self) -> Message:
        """Raises RequestRefused (408) when the sender is too slow; its connection is then to be closed."""
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            async with asyncio.timeout(self._left):
                message = await self._receive()
        except TimeoutError:
            raise RequestRefused(408, "the request's body did not arrive in time", close=True) from None
        earned = len(message.get("body", b"")) / MIN_BYTES_PER_S
        self._left = min(BODY_S, self._left - (clock() - began) + earned)
        return message
