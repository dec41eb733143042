"""Hooks the connections of `websockets`: calls of the Responses API are recorded, as openai's `responses.connect` and
the OpenAI Agents SDK make them. Other calls of models, as realtime's and those by aiohttp and websocket-client, are
counted, so that the program's end can say that they were not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.values import is_cancellation
from arttrace.capture.calls.socket_calls import SocketCalls, following
from arttrace.capture.export import summary
from arttrace.capture.patches.httpx import note_passed
from arttrace.capture.patches.registry import patch
from arttrace.system.addresses import with_plain_port
from arttrace.wire import api_of, provider_of

_FOLLOWED = "_arttrace_calls"
_counting = Guard("counting what is not captured")


def install_sync(module: ModuleType) -> None:
    """Hook `websockets.sync.client`."""
    if hasattr(module, "reconnect"):  # from websockets 17 on; `connect` is one
        patch(module.reconnect, "__init__", partial(_connect, read=True))
    else:
        patch(module, "connect", partial(_connect, read=True))
    for name, hook in (("send", _sync_send), ("recv", _sync_recv), ("close", _sync_close)):
        patch(module.ClientConnection, name, hook)


def install_async(module: ModuleType) -> None:
    """Hook `websockets.asyncio.client`."""
    patch(module.connect, "__init__", partial(_connect, read=True))
    for name, hook in (("send", _async_send), ("recv", _async_recv), ("close", _async_close)):
        patch(module.ClientConnection, name, hook)


def install_aiohttp(module: ModuleType) -> None:
    """Hook `aiohttp.ClientSession.ws_connect`."""
    patch(module.ClientSession, "_ws_connect", _connect)


def install_websocket_client(module: ModuleType) -> None:
    """Hook `websocket.WebSocket.connect`, of the package websocket-client."""
    patch(module.WebSocket, "connect", _connect)


def _connect(connect: Callable[..., Any], *, read: bool = False) -> Callable[..., Any]:
    @functools.wraps(connect)
    def hooked(*args: Any, **kwargs: Any) -> Any:
        with _counting:
            given = kwargs.get("uri") or kwargs.get("url") or next((each for each in args if "://" in str(each)), "")
            url = urlsplit(str(given))
            if not read or api_of(url.path) != "responses":
                note_passed(url.hostname, url.path, summary.BY_A_SOCKET)
        return connect(*args, **kwargs)

    return hooked


def _followed(connection: Any) -> SocketCalls | None:
    """The calls of a connection; None where it is one to something else."""
    known = vars(connection)
    if _FOLLOWED not in known:
        known[_FOLLOWED] = None
        protocol, request = connection.protocol, connection.request
        uri = protocol.uri if hasattr(protocol, "uri") else protocol.wsuri  # so before websockets 14
        if api_of(uri.path) == "responses":
            host = f"[{uri.host}]" if ":" in uri.host else uri.host
            url = f"{'https' if uri.secure else 'http'}://{host}:{uri.port}{uri.resource_name}"
            headers = {name.lower(): value for name, value in request.headers.raw_items()}
            known[_FOLLOWED] = SocketCalls(with_plain_port(url), uri.path, provider_of(uri.path, uri.host), headers)
    followed: SocketCalls | None = known[_FOLLOWED]
    return followed


@contextmanager
def _sending(connection: Any, message: Any) -> Iterator[None]:
    """What a message begins, while it is sent."""
    followed = asked = None
    with following:
        followed = _followed(connection)
        if followed is not None and isinstance(message, (str, bytes)):
            asked = followed.sent(message)
    try:
        yield
    except BaseException as error:
        with following:
            if followed is not None and asked is not None:
                followed.not_sent(asked, error)
        raise


@contextmanager
def _receiving(connection: Any) -> Iterator[None]:
    """What is told by the error of who waits for a message."""
    try:
        yield
    except BaseException as error:
        with following:
            followed = _followed(connection)
            if followed is not None and type(error).__name__.startswith("ConnectionClosed"):
                followed.ended(error)
            elif followed is not None and is_cancellation(error):  # the connection may be read on
                followed.is_cancelled = True
        raise


def _received(connection: Any, message: Any) -> None:
    with following:
        followed = _followed(connection)
        if followed is not None and isinstance(message, (str, bytes)):
            followed.received(message)


def _closing(connection: Any) -> None:
    with following:
        followed: SocketCalls | None = vars(connection).get(_FOLLOWED)
        if followed is not None:
            followed.ended(None)


def _sync_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        with _sending(self, message):
            return send(self, message, *args, **kwargs)

    return hooked


def _async_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, message: Any, *args: Any, **kwargs: Any) -> Any:
        with _sending(self, message):
            return await send(self, message, *args, **kwargs)

    return hooked


def _sync_recv(recv: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(recv)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _receiving(self):
            message = recv(self, *args, **kwargs)
        _received(self, message)
        return message

    return hooked


def _async_recv(recv: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(recv)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _receiving(self):
            message = await recv(self, *args, **kwargs)
        _received(self, message)
        return message

    return hooked


def _sync_close(close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        _closing(self)
        return close(self, *args, **kwargs)

    return hooked


def _async_close(close: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(close)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        _closing(self)
        return await close(self, *args, **kwargs)

    return hooked
