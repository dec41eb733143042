"""The gateway's routes: generation, models, publishing, trajectories of agents in any language, pause and status."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from arttrace.errors import ServingError
from arttrace.wire import Api
from trainer.gateway.errors import Refusal
from trainer.gateway.gate import Gate
from trainer.gateway.generation import Generation, read_body
from trainer.gateway.policies import Policies
from trainer.gateway.pool import Pool
from trainer.gateway.publish import Publisher
from trainer.gateway.recording import Recorder
from trainer.gateway.trajectories import EndOrder, RewardOrder
from trainer.serving.report import EngineStatus, GateStatus, GatewayStatus, RecordingStatus

_PATHS: tuple[tuple[Api, str], ...] = (
    ("chat_completions", "/v1/chat/completions"),
    ("completions", "/v1/completions"),
    ("responses", "/v1/responses"),
)
_PREFIXES = ("", "/r/{trajectory}", "/r/{trajectory}/{agent}")
_MAX_ORDER_BYTES = 8 << 20
_LOOPBACK_NAMES = frozenset({b"localhost", b"127.0.0.1", b"[::1]"})
_T = TypeVar("_T", bound=msgspec.Struct)


class Gateway:
    """One gateway in front of the engines of `publisher`'s pool; while none is ready, requests get 503.

    With an `api_key` everything asks for it. Without, only requests to a name of the loopback are answered: a web
    page whose own name was made to lead here is not. `recorder` records the calls that name their trajectory, where
    there is one; `joins_traceparents` makes a traceparent such a name.
    """

    def __init__(
        self,
        policies: Policies,
        publisher: Publisher,
        pool: Pool,
        *,
        api_key: str | None = None,
        gate: Gate | None = None,
        recorder: Recorder | None = None,
        joins_traceparents: bool = False,
    ) -> None:
        self.policies = policies
        self.publisher = publisher
        self.pool = pool
        self.gate = gate or Gate()
        self.recorder = recorder
        self.joins_traceparents = joins_traceparents
        self._api_key = None if api_key is None else f"Bearer {api_key}".encode()

    def app(self) -> ASGIApp:
        """The ASGI application."""
        routes: list[BaseRoute] = []
        for prefix in _PREFIXES:
            routes += [Route(prefix + path, Generation(self, api, path), methods=["POST"]) for api, path in _PATHS]
            routes.append(Route(f"{prefix}/v1/models", self._guarded(self._models)))
        app = Starlette(
            routes=[
                *routes,
                Route("/r/{trajectory}/end", self._guarded(self._end), methods=["POST"]),
                Route("/r/{trajectory}/reward", self._guarded(self._reward), methods=["POST"]),
                Route("/arttrace/policies", self._guarded(self._publish), methods=["POST"]),
                Route("/arttrace/status", self._guarded(self._status)),
                Route("/admin/pause", self._guarded(self._pause), methods=["POST"]),
                Route("/admin/resume", self._guarded(self._resume), methods=["POST"]),
                Route("/admin/drain", self._guarded(self._drain), methods=["POST"]),
                Route("/health", self._health),
            ],
            exception_handlers={404: _not_found, 405: _not_found},
        )
        return app if self._api_key is not None else _only_by_loopback_names(app)

    def authorize(self, scope: Scope) -> None:
        """Raises Refusal (401) unless the request carries the key, where one is set."""
        if self._api_key is not None:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._api_key):
                raise Refusal(401, "invalid_api_key", "the API key is missing or wrong")

    def _guarded(self, answer: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        async def guarded(request: Request) -> Response:
            try:
                self.authorize(request.scope)
                return Response(msgspec.json.encode(await answer(request)), media_type="application/json")
            except Refusal as refusal:
                return refusal.response()
            except ServingError as error:
                return Refusal(409, "serving_error", error.message, mend=error.mend).response()

        return guarded

    async def _models(self, _request: Request) -> Any:
        entries = [
            {"id": name, "object": "model", "created": 0, "owned_by": "arttrace"} for name in self.policies.names()
        ]
        return {"object": "list", "data": entries}

    async def _publish(self, request: Request) -> Any:
        order = await _order(request, _PublishOrder, empty=False)
        return await self.publisher.publish(order.version, Path(order.path))

    async def _end(self, request: Request) -> Any:
        order = await _order(request, EndOrder)
        return await self._recording().end(request.path_params["trajectory"], order)

    async def _reward(self, request: Request) -> Any:
        order = await _order(request, RewardOrder, empty=False)
        return {"id": await self._recording().reward(request.path_params["trajectory"], order)}

    def _recording(self) -> Recorder:
        if self.recorder is None:
            raise Refusal(404, "not_found", "this gateway records no calls")
        return self.recorder

    async def _pause(self, request: Request) -> GateStatus:
        order = await _order(request, _PauseOrder)
        self.gate.pause(refuse=order.refuse)
        return self._gate_status()

    async def _resume(self, request: Request) -> GateStatus:
        await _order(request, _NoOrder)
        self.gate.resume()
        return self._gate_status()

    async def _drain(self, request: Request) -> GateStatus:
        order = await _order(request, _DrainOrder)
        self.gate.pause(refuse=order.refuse)
        if not await self.gate.drained(order.timeout_s):
            raise Refusal(
                409, "not_drained", f"{self.gate.passed} requests are still being answered; the gateway stays paused"
            )
        return self._gate_status()

    def _gate_status(self) -> GateStatus:
        return GateStatus(self.gate.paused, self.gate.waiting, self.gate.passed)

    async def _status(self, _request: Request) -> GatewayStatus:
        policies, replicas = self.policies, self.pool.replicas
        engines = [
            EngineStatus(each.state, each.upstream.address.url if each.upstream else None, each.restarts, each.requests)
            for each in replicas
        ]
        shown = next((each for each in engines if each.state == "ready"), engines[0])
        recorder = self.recorder
        return GatewayStatus(
            policy=policies.policy,
            current=policies.current.name,
            step=policies.current.step,
            base_model=policies.base_model,
            requests={version.name: version.requests for version in policies.versions()},
            engine=EngineStatus(
                shown.state, shown.url, sum(each.restarts for each in engines), sum(each.requests for each in engines)
            ),
            replicas=engines,
            gate=self._gate_status(),
            recording=None
            if recorder is None
            else RecordingStatus(recorder.recorded, recorder.refused, recorder.trajectories.open),
        )

    async def _health(self, _request: Request) -> Response:
        return Response(status_code=200 if self.pool.ready() else 503)


class _PublishOrder(msgspec.Struct, frozen=True):
    version: int
    path: str


class _PauseOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refuse: bool = False


class _DrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refuse: bool = False
    timeout_s: float = 60.0


class _NoOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


async def _order(request: Request, kind: type[_T], *, empty: bool = True) -> _T:
    """The JSON in a request's body; `empty` says that there may be none. Raises Refusal (400, 413, 415)."""
    # A web page in the user's browser can send any other type here without asking first.
    if "application/json" not in request.headers.get("content-type", "application/json" if empty else ""):
        raise Refusal(415, "invalid_request_error", "send it with content-type application/json")
    body = await read_body(request.scope, request.receive, _MAX_ORDER_BYTES)
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        fields = ", ".join(f'"{field.name}"' for field in msgspec.structs.fields(kind)) or "nothing"
        raise Refusal(
            400, "invalid_request_error", f"the order is not understood (it takes {fields}): {error}"
        ) from None


def _only_by_loopback_names(app: ASGIApp) -> ASGIApp:
    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            host = next((value for name, value in scope["headers"] if name == b"host"), b"")
            name = host.lower() if host.endswith(b"]") else host.lower().rpartition(b":")[0] or host.lower()
            if name not in _LOOPBACK_NAMES and not name.endswith(b".localhost"):
                refusal = Refusal(
                    421,
                    "wrong_host",
                    f"this gateway asks for no key, so it answers only to localhost, not to {host[:100]!r}",
                    mend="Call it by localhost, or start it with --api-key.",
                )
                await refusal.response()(scope, receive, send)
                return
        await app(scope, receive, send)

    return checked


async def _not_found(request: Request, _error: Exception) -> Response:
    return Refusal(404, "not_found", f"{request.method} {request.url.path} is not served here").response()
