"""POST of a generation: wait at the gate, resolve the model, ask an engine for token truth too, pass its answer on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import aiohttp
from starlette.types import Receive, Scope, Send

from arttrace.semconv import POLICY_VERSION_HEADER
from arttrace.wire import Api, Ending
from trainer.gateway.errors import Refusal, engine_down
from trainer.gateway.gate import MAX_BODY_BYTES
from trainer.gateway.identity import Owner, owner_of
from trainer.gateway.policies import Version
from trainer.gateway.pool import Replica
from trainer.gateway.recording import RecordedCall
from trainer.gateway.requests import read_request
from trainer.gateway.upstream import NotReached, UpstreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainer.gateway.app import Gateway

_PASSED_HEADERS = frozenset({b"content-type", b"retry-after", b"x-request-id"})


class Generation:
    """One generating route of the engine, as an ASGI application."""

    def __init__(self, gateway: Gateway, api: Api, path: str) -> None:
        self._gateway = gateway
        self._api = api
        self._path = path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gateway = self._gateway
        call: RecordedCall | None = None
        ending: Ending = "cancelled"
        try:
            gateway.authorize(scope)
            owner = owner_of(scope["path_params"], scope["headers"], traceparent=gateway.joins_traceparents)
            with gateway.gate.entered() as place:
                body = await read_body(scope, receive, MAX_BODY_BYTES, place.hold)
                if owner is not None and gateway.recorder is not None:
                    call = gateway.recorder.begin(owner, self._path, body)
                    send = call.tap(send)
                ending = await self._until_answered_or_left(body, owner, scope, receive, send)
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
        finally:
            if call is not None:
                call.end(ending)

    async def _until_answered_or_left(
        self, body: bytes, owner: Owner | None, scope: Scope, receive: Receive, send: Send
    ) -> Ending:
        answering = asyncio.ensure_future(self._answer(body, owner, scope, receive, send))
        leaving = asyncio.ensure_future(_disconnected(receive))
        try:
            # A client that has gone away frees the engine: closing our connection aborts its generation.
            await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
        finally:
            leaving.cancel()
            if not answering.done():
                answering.cancel()
                await asyncio.wait((answering,))
        return "closed" if answering.cancelled() else answering.result()

    async def _answer(self, body: bytes, owner: Owner | None, scope: Scope, receive: Receive, send: Send) -> Ending:
        gateway = self._gateway
        trajectory = None if owner is None else owner.trajectory or owner.trace_id
        tried: list[Replica] = []
        try:
            request = read_request(body, self._api)
            await gateway.gate.opened()
            while True:
                # Nothing is awaited from here until the version and the replica know of the request.
                version = gateway.policies.resolve(request.model)
                replica, upstream = gateway.pool.pick(version, trajectory, tried)
                with gateway.gate.passing(), version.answering(), replica.answering():
                    try:
                        async with upstream.forward(self._path, request.for_engine(version)) as response:
                            return await _pass_on(response, version, send)
                    except NotReached:  # it has seen nothing of the request, so that another may answer
                        tried.append(replica)
                        replica.lose()
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            return "complete"


async def _pass_on(response: aiohttp.ClientResponse, version: Version, send: Send) -> Ending:
    # Hop-by-hop headers and the length are the server's business.
    headers = [(name, value) for name, value in response.raw_headers if name.lower() in _PASSED_HEADERS]
    headers.append((POLICY_VERSION_HEADER.encode(), version.name.encode()))
    start = {"type": "http.response.start", "status": response.status, "headers": headers}
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        try:
            content = await response.read()
        except UpstreamError as error:
            raise engine_down(f"it died while answering ({error!r})") from error
        headers.append((b"content-length", str(len(content)).encode()))
        await send(start)
        await send({"type": "http.response.body", "body": content})
        return "complete"
    await send(start)
    try:
        async for chunk in response.content.iter_any():
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    except UpstreamError as error:
        # The stream may have broken off inside a line.
        event = b"\n\ndata: " + engine_down(f"it died while answering ({error!r})").body() + b"\n\n"
        await send({"type": "http.response.body", "body": event})
        return "error"
    await send({"type": "http.response.body", "body": b""})
    return "complete"


async def read_body(
    scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None] = lambda size: None
) -> bytes:
    """The request's body. Raises Refusal: 413 beyond `limit` bytes, 499 when the client went away.

    `hold` is told of every part that came, and may refuse.
    """
    too_large = Refusal(413, "invalid_request_error", f"the request is larger than {limit} bytes")
    length = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    if not length.isdigit() or int(length) > limit:
        raise too_large
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Refusal(499, "client_closed_request", "the client closed the connection")
        part: bytes = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise too_large
        hold(len(part))
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
