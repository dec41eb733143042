"""The query API behind its guard, and how an answer is sent: what every process serves that owns the store."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from arttrace.store.server.asgi import App, Message, Receive, Scope, Send
from arttrace.store.server.auth import Authorizer, Headers
from arttrace.store.server.responses import JSON, METRICS, RETRY_AFTER_S, HttpResponse, RequestRefused, json_failure


class OwnerApp:
    """The query API behind its guard: what a process serves that owns the store for long. `metrics` gives its numbers
    for Prometheus, if it has any."""

    def __init__(self, api: App, guard: Authorizer, metrics: Callable[[], bytes] | None = None) -> None:
        self._api = api
        self._guard = guard
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        is_answered = False

        async def sending(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        try:
            await self._answer(scope, receive, sending)
        except asyncio.CancelledError:  # the server ends, and has waited
            if not is_answered:
                await send_answer(send, json_failure(503, "the server ends: send it again", close=True))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = self._guard.headers(scope["headers"])
            self._guard.check(scope["path"], headers)
            answer = await self.answer(scope, headers, receive)
        except RequestRefused as refused:
            answer = json_failure(refused.status, str(refused), close=refused.close)
            self.refused(scope, refused)
        if answer is None:
            await self._api(scope, receive, send)
        else:
            await send_answer(send, answer)

    def refused(self, scope: Scope, reason: RequestRefused) -> None:
        """Called with a request whose sender may not ask, or is too slow."""

    async def answer(self, scope: Scope, headers: Headers, receive: Receive) -> HttpResponse | None:
        """The answer to a request that is not the API's, None for the API's."""
        if scope["path"] in ("/health", "/ready"):
            return HttpResponse(200, JSON, b'{"status":"ok"}')
        if scope["path"] == "/metrics" and self._metrics is not None:
            return HttpResponse(200, METRICS, self._metrics())
        return None


async def send_answer(send: Send, answer: HttpResponse) -> None:
    """Sends an answer whole, with the headers its status asks for."""
    headers = [
        (b"content-type", answer.kind.encode()),
        (b"content-length", str(len(answer.body)).encode()),
        (b"x-arttrace-collector", b"1"),
    ]
    if answer.close:
        headers.append((b"connection", b"close"))
    if answer.status == 503:
        headers.append((b"retry-after", str(RETRY_AFTER_S).encode()))
    elif answer.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})
    await send({"type": "http.response.body", "body": answer.body})
