"""The body of a request, read within bounds, and the wait for a client that goes away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.types import Receive, Scope

from trainer.gateway.errors import Refusal

T = TypeVar("T")


async def read_body(
    scope: Scope, receive: Receive, limit: int, hold: Callable[[int], None] = lambda size: None
) -> bytes:
    """The request's body. Raises Refusal: 413 beyond `limit` bytes, 499 when the client went away.

    `hold` is called with every part that came, and may refuse.
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


async def disconnected(receive: Receive) -> None:
    """Wait until the client has gone away, or has its answer."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_left(receive: Receive, answer: Coroutine[Any, Any, T]) -> T | None:
    """What `answer` returns; where the client goes away before that, it is cancelled, and None is returned."""
    answering = asyncio.current_task()
    assert answering is not None
    left = False

    async def leave() -> None:
        nonlocal left
        await disconnected(receive)
        left = True
        answering.cancel()

    # Nothing is awaited between the end of an answer and the end of this watch, which would take that for a client that
    # has gone.
    watching = asyncio.create_task(leave())
    try:
        return await answer
    except asyncio.CancelledError:
        if not left or answering.uncancel():
            raise
        return None
    finally:
        watching.cancel()
