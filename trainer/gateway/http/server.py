"""The HTTP server in front of the gateway: uvicorn, with bounds on clients that send without end, or too slowly."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD_BYTES = 64 << 10
"""A request's line and headers, and what comes beside its body: trailers and the like; one read more may pass."""

REQUEST_WITHIN_S = 120.0
"""A request must have come whole within so many seconds."""

TAKEN_WITHIN_S = 600.0
"""A client that has stopped reading its answer must go on within so many seconds."""

_TOO_LONG = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"  # before any body
)


def gateway_server(app: ASGIApp) -> uvicorn.Server:
    """The server for `app`, not yet running. Signals are left to whoever runs it."""
    return _QuietServer(
        uvicorn.Config(
            app,
            http=GatewayProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=75,  # longer than the idle time after which OpenAI's clients drop a connection
            timeout_graceful_shutdown=3,
        )
    )


class _QuietServer(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours to handle: vLLM must be stopped as well."""
        yield


class _HeadWithBody:
    """A connection's transport, on which an answer's head waits for what comes behind it in the same turn of the event
    loop: apart, each of them is a system call here, a packet, and a turn of the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Write, or keep what begins as a head does: a part of a body may, too, and is written a turn later."""
        if self._head:
            head, self._head = self._head, b""
            # Of an empty part asyncio is never rid where it has no uvloop: it tries to write it for ever.
            self._transport.writelines((head, data) if data else (head,))
        elif data.startswith(b"HTTP/1.1 "):
            self._head = data
            self._loop.call_soon(self._flush)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close it, after what was written."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._head and not self._transport.is_closing():
            self._transport.write(self._head)
        self._head = b""

    def __getattr__(self, name: str) -> Any:
        """Everything else is the transport's."""
        return getattr(self._transport, name)


class GatewayProtocol(HttpToolsProtocol):
    """One client's connection. It ends when a request does not come whole in time, its head is endless, or its answer
    is not read: each of them would otherwise hold a place, or a version of the policy, for ever."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._coming = True
        self._in_head = True
        self._unread = b""
        self._beside_body = 0
        self._slow: asyncio.TimerHandle | None = None
        self._stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there; it has to ask something."""
        super().connection_made(cast("asyncio.Transport", _HeadWithBody(transport, self.loop)))
        self._slow = self.loop.call_later(REQUEST_WITHIN_S, self._too_slow)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        super().connection_lost(exc)
        self._taken()
        self._whole()

    def data_received(self, data: bytes) -> None:
        """Bytes of a request came."""
        self._beside_body += len(data)
        self._unread = data
        while feed := self._unread:
            super().data_received(feed)
            if self._unread is feed:  # no request in it is to be read again
                self._unread = b""
        if not self._coming:
            self._whole()
        elif self._slow is None:
            self._slow = self.loop.call_later(REQUEST_WITHIN_S, self._too_slow)
        if self._beside_body > MAX_HEAD_BYTES and not self.transport.is_closing():
            if self._in_head and (self.cycle is None or self.cycle.response_complete):
                self.transport.write(_TOO_LONG)
                self.transport.close()
            else:
                self.transport.abort()  # an answer is under way, or these are trailers, whose request was answered

    def on_message_begin(self) -> None:
        """The parser found a request."""
        super().on_message_begin()
        self._coming = self._in_head = True
        self._beside_body = 0

    def on_headers_complete(self) -> None:
        """The parser found the end of its head."""
        if not self._offers_upgrade():
            self._in_head = False
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """The parser found a part of its body."""
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """The parser found the end of its body."""
        if not self._offers_upgrade():
            self._coming = False
            self._beside_body = 0
            super().on_message_complete()

    def _offers_upgrade(self) -> bool:
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def _unsupported_upgrade_warning(self) -> None:
        """A client may offer another protocol, and we need not take it up; but the parser stops after the head of such
        a request. It gets the same head again, without the offer, and what came after it."""
        stopped = sys.exception()
        if not isinstance(stopped, httptools.HttpParserUpgrade) or not self._offers_upgrade():
            return
        headers = [b"%b: %b\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        version = self.parser.get_http_version().encode()
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, b"".join(headers))
        self._unread = head + self._unread[stopped.args[0] :]

    def pause_writing(self) -> None:
        """The client does not take what is written."""
        super().pause_writing()
        if self._stuck is None:
            self._stuck = self.loop.call_later(TAKEN_WITHIN_S, self.transport.abort)

    def resume_writing(self) -> None:
        """The client has taken it."""
        super().resume_writing()
        self._taken()

    def _too_slow(self) -> None:
        if self.flow.read_paused:  # a next request on this connection, which we let wait ourselves
            self._slow = self.loop.call_later(REQUEST_WITHIN_S, self._too_slow)
        else:
            self.transport.abort()

    def _whole(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _taken(self) -> None:
        if self._stuck is not None:
            self._stuck.cancel()
            self._stuck = None
