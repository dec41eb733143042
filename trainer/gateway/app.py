"""The gateway's routes: generation passed through with the version stamped on it, models, publishing, status."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from arttrace.errors import ServingError
from arttrace.semconv import POLICY_VERSION_HEADER
from trainer.gateway.errors import Refusal, engine_down
from trainer.gateway.policies import Policies, Version
from trainer.gateway.publish import Publisher
from trainer.gateway.upstream import Upstream, UpstreamError
from trainer.serving.report import EngineStatus, GatewayStatus

MAX_BODY_BYTES = 64 << 20

_RawObject = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRUE, _ZERO, _ABSENT = msgspec.Raw(b"true"), msgspec.Raw(b"0"), (b"null", b"false")


class Gateway:
    """One gateway in front of one engine. `upstream` is None while there is none: requests then get 503."""

    def __init__(self, policies: Policies, publisher: Publisher, *, api_key: str | None = None) -> None:
        self.policies = policies
        self.publisher = publisher
        self.upstream: Upstream | None = None
        self.engine_state = "starting"
        self.restarts = 0
        self._api_key = None if api_key is None else f"Bearer {api_key}".encode()

    def app(self) -> ASGIApp:
        """The ASGI application."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", _Generation(self, "/v1/chat/completions", chat=True), methods=["POST"]),
                Route("/v1/completions", _Generation(self, "/v1/completions", chat=False), methods=["POST"]),
                Route("/v1/models", self._guarded(self._models)),
                Route("/arttrace/policies", self._guarded(self._publish), methods=["POST"]),
                Route("/arttrace/status", self._guarded(self._status)),
                Route("/health", self._health),
            ],
            exception_handlers={404: _not_found, 405: _not_found},
        )

    def authorize(self, scope: Scope) -> None:
        """Raises Refusal (401) unless the request carries the key, where one is set."""
        if self._api_key is not None:
            given = next((value for name, value in scope["headers"] if name == b"authorization"), b"")
            if not hmac.compare_digest(given, self._api_key):
                raise Refusal(401, "invalid_api_key", "the API key is missing or wrong")

    def engine(self) -> Upstream:
        """The engine. Raises Refusal (503) while there is none."""
        if self.upstream is None:
            raise engine_down(f"it is {self.engine_state}")
        return self.upstream

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
        # A web page in the user's browser can send any other type here without asking first.
        if "application/json" not in request.headers.get("content-type", ""):
            raise Refusal(415, "invalid_request_error", "publish with content-type application/json")
        body = await read_body(request.scope, request.receive, 1 << 16)
        try:
            order = msgspec.json.decode(body, type=_PublishOrder)
        except msgspec.DecodeError as error:
            raise Refusal(400, "invalid_request_error", f'expected {{"version": N, "path": DIR}}: {error}') from None
        return await self.publisher.publish(self.engine(), order.version, Path(order.path))

    async def _status(self, _request: Request) -> GatewayStatus:
        policies = self.policies
        return GatewayStatus(
            policy=policies.policy,
            current=policies.current.name,
            step=policies.current.step,
            base_model=policies.base_model,
            requests={version.name: version.requests for version in policies.versions()},
            engine=EngineStatus(self.engine_state, self.upstream.address.url if self.upstream else None, self.restarts),
        )

    async def _health(self, _request: Request) -> Response:
        return Response(status_code=200 if self.upstream is not None else 503)


class _PublishOrder(msgspec.Struct, frozen=True):
    version: int
    path: str


class _Generation:
    """POST of a completion: resolve the model, ask the engine for token truth too, pass its answer through."""

    def __init__(self, gateway: Gateway, path: str, *, chat: bool) -> None:
        self._gateway = gateway
        self._path = path
        self._chat = chat

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self._gateway.authorize(scope)
            body = await read_body(scope, receive, MAX_BODY_BYTES)
            version, patched = patch_request(body, self._gateway.policies, chat=self._chat)
            upstream = self._gateway.engine()
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
            return
        version.begin()
        try:
            answering = asyncio.ensure_future(self._answer(upstream, version, patched, scope, receive, send))
            leaving = asyncio.ensure_future(_disconnected(receive))
            try:
                # A client that has gone away frees the engine: closing our connection aborts its generation.
                await asyncio.wait((answering, leaving), return_when=asyncio.FIRST_COMPLETED)
            finally:
                leaving.cancel()
                if not answering.done():
                    answering.cancel()
                    await asyncio.wait((answering,))
            if not answering.cancelled():
                answering.result()
        finally:
            version.end()

    async def _answer(
        self, upstream: Upstream, version: Version, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        started = False
        try:
            async with upstream.forward(self._path, body) as response:
                headers = _response_headers(response, version)
                if not response.headers.get("content-type", "").startswith("text/event-stream"):
                    content = await response.read()
                    headers.append((b"content-length", str(len(content)).encode()))
                    await send({"type": "http.response.start", "status": response.status, "headers": headers})
                    await send({"type": "http.response.body", "body": content})
                    return
                started = True
                await send({"type": "http.response.start", "status": response.status, "headers": headers})
                async for chunk in response.content.iter_any():
                    await send({"type": "http.response.body", "body": chunk, "more_body": True})
                await send({"type": "http.response.body", "body": b""})
        except Refusal as refusal:
            await refusal.response()(scope, receive, send)
        except UpstreamError as error:
            death = engine_down(f"it died while answering ({error!r})")
            if started:
                # The stream may have broken off inside a line.
                await send({"type": "http.response.body", "body": b"\n\ndata: " + death.body() + b"\n\n"})
            else:
                await death.response()(scope, receive, send)


def patch_request(body: bytes, policies: Policies, *, chat: bool) -> tuple[Version, bytes]:
    """The version that a request's JSON names, and the JSON for the engine: the version's model, token ids and
    log-probabilities asked for, everything else byte for byte as it came. Raises Refusal (400, 404).
    """
    try:
        request = _RawObject.decode(body)
        model = msgspec.json.decode(request["model"], type=str)
    except KeyError:
        raise Refusal(400, "invalid_request_error", "the request names no model") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refusal(
            400, "invalid_request_error", f"the request is no JSON object with a model name: {error}"
        ) from None
    version = policies.resolve(model)
    for field in ("prompt_logprobs", "echo"):
        if bytes(request.get(field, b"null")) not in _ABSENT:
            # vLLM 0.32 dies of it, with every request under way, when an adapter is in use at the same time.
            raise Refusal(400, "invalid_request_error", f"{field} is not served here")
    request["model"] = msgspec.Raw(msgspec.json.encode(version.engine_model))
    request["return_token_ids"] = _TRUE
    asked = request.get("logprobs")
    if asked is None or bytes(asked) in _ABSENT:
        # Chat completions take a flag, completions the number of alternatives beside the sampled token.
        request["logprobs"] = _TRUE if chat else _ZERO
    return version, msgspec.json.encode(request)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body. Raises Refusal: 413 beyond `limit` bytes, 499 when the client went away."""
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
        parts.append(part)
        if not message.get("more_body", False):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _response_headers(response: aiohttp.ClientResponse, version: Version) -> list[tuple[bytes, bytes]]:
    # Hop-by-hop headers and the length are the server's business.
    kept = [(name, value) for name, value in response.raw_headers if name.lower() in _PASSED_HEADERS]
    return [*kept, (POLICY_VERSION_HEADER.encode(), version.name.encode())]


_PASSED_HEADERS = frozenset({b"content-type", b"retry-after", b"x-request-id"})


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _not_found(request: Request, _error: Exception) -> Response:
    return Refusal(404, "not_found", f"{request.method} {request.url.path} is not served here").response()
