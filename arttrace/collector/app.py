"""The collector's HTTP side. `POST /v1/traces` and `/v1/logs` are answered here without a framework; the query API lies
behind."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec

from arttrace.collector import metrics
from arttrace.collector.otlp.receiver import TraceReceiver
from arttrace.collector.otlp.request_bodies import MAX_BODY_BYTES, Budget
from arttrace.collector.otlp.responses import PROTOBUF, failure
from arttrace.collector.spool import Spool
from arttrace.collector.supervisor import StoreSupervisor
from arttrace.store.server.app import OwnerApp
from arttrace.store.server.asgi import App, Receive, Scope
from arttrace.store.server.auth import Authorizer, Headers
from arttrace.store.server.responses import JSON, METRICS, HttpResponse, RequestRefused
from arttrace.store.server.timeouts import BodyReader

IN_FLIGHT_BYTES = 256 << 20
_TRY_S = 2.0
_TAKEN = ("/v1/traces", "/v1/logs")
_KINDS = (PROTOBUF, JSON)
_NOT_OURS = ("/api/", "/v1/metrics", "/v1development/")
"""What has other paths and holds no spans: the API, metrics and profiles."""


class CollectorApp(OwnerApp):
    """The collector: traces in, and the API of whoever owns the store. `loader` None: nobody loads here."""

    def __init__(
        self,
        sink: Spool,
        api: App,
        guard: Authorizer,
        loader: StoreSupervisor | None = None,
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        in_flight_bytes: int = IN_FLIGHT_BYTES,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        super().__init__(api, guard)
        self._say = say
        self._said: set[int] = set()
        self._sink = sink
        self._loader = loader
        self._max_body_bytes = max_body_bytes
        self.budget = Budget(in_flight_bytes)
        self.traces = TraceReceiver(sink, self.budget, max_body_bytes)
        self.answers: Counter[int] = Counter()

    def refused(self, scope: Scope, reason: RequestRefused) -> None:
        """What may not be sent is counted, and the first of its kind said: senders often do not say it."""
        if scope["path"] in _TAKEN:
            self.answers[reason.status] += 1
            if reason.status not in self._said:
                self._said.add(reason.status)
                self._say(f"what is sent to {scope['path']} is refused with {reason.status}: {reason} (said once)")

    async def answer(self, scope: Scope, headers: Headers, receive: Receive) -> HttpResponse | None:
        """TraceReceiver, health, readiness and metrics."""
        match scope["path"]:
            case path if path in _TAKEN:
                answer = await self._received(scope, headers, receive)
                self.answers[answer.status] += 1
                return answer
            case "/health":
                return _json(200, {"status": "ok", "acknowledged_spans": self._sink.acknowledged})
            case "/ready":
                await self._try_again()
                trouble = self._sink.trouble or (self._loader.trouble if self._loader else "")
                return _json(503 if trouble else 200, {"status": trouble or "ok"})
            case "/metrics":
                await self._try_again()
                return HttpResponse(200, METRICS, metrics.render(self._sink, self._loader, self.budget, self.answers))
            case path if scope["method"] == "POST" and not path.startswith(_NOT_OURS) and _kind(headers) in _KINDS:
                self.answers[404] += 1
                where = f"spans are sent to /v1/traces, log records to /v1/logs, not to {path[:80]}"
                return self.traces.refused(_kind(headers), RequestRefused(404, where))
        return None

    async def _try_again(self) -> None:
        """A collector that says that it is not ready may be sent nothing, from which it would see that it is."""
        if self._sink.trouble:
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_TRY_S):
                    await asyncio.wrap_future(self._sink.try_again())

    async def _received(self, scope: Scope, headers: Headers, receive: Receive) -> HttpResponse:
        kind = _kind(headers)
        if scope["method"] != "POST":
            return failure(JSON, 405, "traces and logs are sent with POST")
        if kind not in _KINDS:
            not_these = f"send {PROTOBUF} or {JSON}, not {kind[:80] or 'a body without a content type'}"
            return self.traces.refused(JSON, RequestRefused(415, not_these))
        encoding = headers.get(b"content-encoding", b"").strip().lower().decode("latin-1")
        taken = 0
        try:
            body = b""
            chunks: list[bytes] = []
            coming = BodyReader(receive)
            while True:
                message = await coming.next()
                if message["type"] == "http.disconnect":
                    return failure(kind, 400, "the request was not sent to its end")
                chunk = message.get("body", b"")
                if taken + len(chunk) > self._max_body_bytes:
                    limit = self._max_body_bytes
                    raise RequestRefused(413, f"the body is over {limit} bytes: send smaller batches")
                self.budget.take(len(chunk))
                taken += len(chunk)
                chunks.append(chunk)
                if not message.get("more_body"):
                    break
            body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
            chunks.clear()
            return await self.traces.take(body, kind, encoding, logs=scope["path"] == "/v1/logs")
        except RequestRefused as refused:
            return self.traces.refused(kind, refused)
        finally:
            self.budget.give_back(taken)


def _kind(headers: Headers) -> str:
    return headers.get(b"content-type", b"").partition(b";")[0].strip().lower().decode("latin-1")


def _json(status: int, value: dict[str, Any]) -> HttpResponse:
    return HttpResponse(status, JSON, msgspec.json.encode(value))
