"""The query API at the collector's own address: each request is forwarded to the store's present owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import httpx
import msgspec

from arttrace.store.access.client import Failure, timeout_for
from arttrace.store.access.owner_file import read_owner
from arttrace.store.file.read_so_far import read_so_far, reading_message
from arttrace.store.server.asgi import Receive, Scope, Send
from arttrace.store.server.responses import JSON, RequestRefused
from arttrace.store.server.timeouts import BodyReader
from arttrace.system.paths import DataDir

_HEADERS = ("content-type", "accept")


class Forward:
    """An application that asks the owner, as `owner.json` names it, and passes its answer on as it comes. Once
    `ending` is set it waits for none, but for that to records."""

    def __init__(self, data: DataDir, ending: asyncio.Event | None = None) -> None:
        self._data = data
        self._ending = ending or asyncio.Event()
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not scope["path"].startswith("/api/"):
            await _fail(send, 404, Failure("there is no such address here"))
            return
        owner = read_owner(self._data)
        if owner is None:
            await _fail(send, 503, _not_owned(read_so_far(self._data.store)))
            return
        if self._client is None:
            self._client = httpx.AsyncClient(trust_env=False, verify=False)  # noqa: S501 - plain HTTP
        given = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        headers = {name: given[name] for name in _HEADERS if name in given}
        try:
            body = await _body(receive)
        except RequestRefused as refused:
            await _fail(send, refused.status, Failure(str(refused)), close=refused.close)
            return
        if body is None:
            return
        request = self._client.build_request(
            scope["method"],
            f"{owner.url}{scope['raw_path'].decode('latin-1')}?{scope['query_string'].decode('latin-1')}".rstrip("?"),
            headers={**headers, "authorization": f"Bearer {owner.token}"},
            content=body,
            timeout=timeout_for(scope["path"]),
        )
        try:
            asking = self._client.send(request, stream=True)
            answer = await _unless_gone(asking, receive, None if scope["path"] == "/api/records" else self._ending)
        except httpx.TransportError:
            await _fail(send, 503, Failure("the owner of the store does not answer at the moment: ask again"))
            return
        if answer is None:
            await _fail(send, 503, Failure("the collector ends: ask again"))
            return
        try:
            kind = answer.headers.get("content-type", JSON).encode("latin-1")
            length = answer.headers.get("content-length", "0").encode("latin-1")
            head = [(b"content-type", kind), (b"content-length", length)]
            await send({"type": "http.response.start", "status": answer.status_code, "headers": head})
            async for chunk in answer.aiter_raw():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b""})
        finally:
            await answer.aclose()


async def _unless_gone(
    asking: Coroutine[Any, Any, httpx.Response], receive: Receive, ending: asyncio.Event | None
) -> httpx.Response | None:
    """The answer. None when whoever asked leaves before it is there, or `ending` is set: the owner is then left, too,
    and stops."""
    answer, ends = asyncio.create_task(asking), [asyncio.create_task(_disconnected(receive))]
    if ending is not None:
        ends.append(asyncio.create_task(_set(ending)))
    try:
        await asyncio.wait((answer, *ends), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else None
    finally:
        for task in (answer, *ends):
            task.cancel()


async def _set(event: asyncio.Event) -> None:
    await event.wait()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _body(receive: Receive) -> bytes | None:
    """None when whoever asked left before the end of it."""
    body = bytearray()
    coming = BodyReader(receive)
    while True:
        message = await coming.next()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")  # the owner bounds it again, and says so
        if not message.get("more_body") or len(body) > 128 << 20:
            return bytes(body)


def _not_owned(reading: tuple[int, int] | None) -> Failure:
    if reading is None:
        return Failure("nobody owns the store at the moment: ask again")
    return Failure(f"{reading_message(*reading)}: ask again", reading=reading)


async def _fail(send: Send, status: int, failure: Failure, *, close: bool = False) -> None:
    body = msgspec.json.encode(failure)
    head = [(b"content-type", JSON.encode()), (b"content-length", str(len(body)).encode())]
    head += [(b"connection", b"close")] if close else []
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
