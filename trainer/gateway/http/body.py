"""The body of a request, read within bounds, and the wait for a client that goes away."""

from __future__ import annotations

from collections.abc import Callable

from starlette.types import Receive, Scope

from trainer.gateway.errors import Refusal


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
