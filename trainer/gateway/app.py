"""The gateway's routes: generation, models, publishing, trajectories of agents in any language, pause and status."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.units import quantity
from arttrace.system.addresses import is_loopback_authority
from arttrace.system.errors import ServingError
from arttrace.wire import Api
from trainer.gateway.engines.pool import Pool
from trainer.gateway.engines.upstream import EngineGone
from trainer.gateway.errors import Refusal
from trainer.gateway.gate import Gate
from trainer.gateway.generation.route import Generation
from trainer.gateway.http.body import disconnected, read_body
from trainer.gateway.http.routes import Routes
from trainer.gateway.messages.routes import CountTokens, MessagesTranslation, is_messages_path, messages_refusal
from trainer.gateway.policies import Policies
from trainer.gateway.publish import Publisher
from trainer.gateway.recording.recorder import GatewayRecorder
from trainer.gateway.recording.trajectories import EndOrder, RewardOrder
from trainer.gateway.sleep import Sleeper
from trainer.gateway.status import EngineStatus, GateStatus, GatewayStatus, RecordingStatus

_GENERATING: tuple[tuple[Api, str], ...] = (
    ("chat_completions", "/v1/chat/completions"),
    ("completions", "/v1/completions"),
    ("responses", "/v1/responses"),
)
_MAX_ORDER_BYTES = 8 << 20
_JSON = b"application/json"
_T = TypeVar("_T", bound=msgspec.Struct)

Names = Mapping[str, str]
"""What a URL names: `trajectory`, and `agent`."""

Handler = Callable[[Names, Scope, Receive, Send], Awaitable[None]]
_Answer = Callable[["AdminRequest"], Awaitable[Any]]
RouteTable = dict[str, dict[str, Handler]]


class Gateway:
    """One gateway in front of the engines of `publisher`'s pool; while none is ready, requests get 503.

    With an `api_key` everything asks for it. Without, only requests to a name of the loopback are answered, and of a
    web page's requests only those of a page from there: no other page that the user looks at can reach it. `recorder`
    records the calls that name their trajectory, where there is one; `joins_traceparents` makes a traceparent such a
    name, `reads_run_names` the field {"art": {"trajectory_id": ...}} of a request. With a `sleeper` its engines sleep
    on order. With `policy_sampling` requests lose the fields that change the policy's own sampling. `end_token` is
    that of the model's tokenizer. `routes` are further ones, by path and method.
    """

    def __init__(
        self,
        policies: Policies,
        publisher: Publisher,
        pool: Pool,
        *,
        api_key: str | None = None,
        gate: Gate | None = None,
        recorder: GatewayRecorder | None = None,
        joins_traceparents: bool = False,
        reads_run_names: bool = False,
        sleeper: Sleeper | None = None,
        policy_sampling: bool = False,
        max_lora_rank: int = 0,
        end_token: int | None = None,
        routes: RouteTable | None = None,
    ) -> None:
        self.policies = policies
        self.publisher = publisher
        self.pool = pool
        self.gate = gate or Gate()
        self.recorder = recorder
        self.joins_traceparents = joins_traceparents
        self.reads_run_names = reads_run_names
        self.sleeper = sleeper
        self.policy_sampling = policy_sampling
        self.max_lora_rank = max_lora_rank
        self.end_token = end_token
        self.routes = routes or {}
        self._api_key = None if api_key is None else f"Bearer {api_key}".encode()

    def app(self) -> ASGIApp:
        """The ASGI application. Requests are dispatched by hand: a framework's way took longer than all the rest."""
        everywhere: RouteTable = {path: {"POST": Generation(self, api, path)} for api, path in _GENERATING}
        everywhere["/v1/messages"] = {
            "POST": Generation(self, "chat_completions", "/v1/chat/completions", MessagesTranslation)
        }
        everywhere["/v1/messages/count_tokens"] = {"POST": CountTokens(self)}
        everywhere["/v1/models"] = {"GET": as_handler(self._models)}
        plain: RouteTable = {
            "/arttrace/policies": {"POST": as_handler(self._publish)},
            "/arttrace/status": {"GET": as_handler(self._status)},
            "/admin/pause": {"POST": as_handler(self._pause)},
            "/admin/resume": {"POST": as_handler(self._resume)},
            "/admin/drain": {"POST": as_handler(self._drain)},
            "/admin/sleep": {"POST": self._sleep},
            "/admin/wake": {"POST": as_handler(self._wake)},
            "/health": {"GET": self._health},
            **self.routes,
        }
        of_trajectories: RouteTable = {
            "/end": {"POST": as_handler(self._end)},
            "/reward": {"POST": as_handler(self._reward)},
        }
        routes = Routes({**everywhere, **plain}, {**everywhere, **of_trajectories}, everywhere)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http":
                return
            try:
                path: bytes = scope["raw_path"]
                if self._api_key is None:
                    _require_loopback(scope)
                elif path != b"/health":
                    self._authorize(scope)
                found = routes.find(path)
                method = "GET" if scope["method"] == "HEAD" else scope["method"]
                handler = None if found is None else found[0].get(method)
                if found is None or handler is None:
                    shown = path[:200].decode("latin-1")
                    raise Refusal(404, "not_found", f"{scope['method']} {shown} is not served here")
                await handler(found[1], scope, receive, send)
            except Refusal as refusal:
                form = messages_refusal if is_messages_path(scope["raw_path"]) else Refusal.response
                await form(refusal)(scope, receive, send)

        return app

    def _authorize(self, scope: Scope) -> None:
        """Raises Refusal (401) unless the request carries the key."""
        given = b""
        for name, value in scope["headers"]:
            if name == b"authorization":
                given = value
            elif name == b"x-api-key" and not given:  # so Anthropic's clients send it
                given = b"Bearer " + value
        if self._api_key is None or not hmac.compare_digest(given, self._api_key):
            raise Refusal(401, "invalid_api_key", "the API key is missing or wrong")

    async def _models(self, _order: AdminRequest) -> Any:
        # The fields of OpenAI's list and of Anthropic's, side by side: a client reads those that it knows.
        of_openai = {"object": "model", "created": 0, "owned_by": "arttrace"}
        of_anthropic = {"type": "model", "created_at": "1970-01-01T00:00:00Z"}
        names = self.policies.names()
        entries = [{"id": name, "display_name": name, **of_openai, **of_anthropic} for name in names]
        return {"object": "list", "data": entries, "has_more": False, "first_id": names[0], "last_id": names[-1]}

    async def _publish(self, order: AdminRequest) -> Any:
        said = await order.read(_PublishOrder, empty=False)
        return await self.publisher.publish(said.version, Path(said.path))

    async def _end(self, order: AdminRequest) -> Any:
        return await self._recording().end(order.names["trajectory"], await order.read(EndOrder))

    async def _reward(self, order: AdminRequest) -> Any:
        said = await order.read(RewardOrder, empty=False)
        return {"id": await self._recording().reward(order.names["trajectory"], said)}

    def _recording(self) -> GatewayRecorder:
        if self.recorder is None:
            raise Refusal(404, "not_found", "this gateway records no calls")
        return self.recorder

    async def _pause(self, order: AdminRequest) -> GateStatus:
        self.gate.pause(refuse=(await order.read(_PauseOrder)).refuse)
        return self._gate_status()

    async def _resume(self, order: AdminRequest) -> GateStatus:
        await order.read(_NoOrder)
        self.gate.resume()
        return self._gate_status()

    async def _drain(self, order: AdminRequest) -> GateStatus:
        said = await order.read(_DrainOrder)
        self.gate.pause(refuse=said.refuse)
        if not await self.gate.drained(said.timeout_s):
            raise Refusal(
                409,
                "not_drained",
                f"{quantity(self.gate.passed, 'request')} still being answered; the gateway stays paused",
            )
        return self._gate_status()

    async def _sleep(self, names: Names, scope: Scope, receive: Receive, send: Send) -> None:
        """The engines sleep from the head of this answer until it ends, by request or by the client's death."""
        said = await AdminRequest(names, scope, receive).read(_SleepOrder)
        sleeper = self._sleeping()

        async def sleep() -> None:
            await sleeper.fall_asleep(said.timeout_s)
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
            await send({"type": "http.response.body", "body": b"asleep\n", "more_body": True})
            await sleeper.until_asked_to_wake()
            await send({"type": "http.response.body", "body": b"asked to wake\n"})

        sleeping, leaving = asyncio.ensure_future(sleep()), asyncio.ensure_future(disconnected(receive))
        refused = False
        try:
            await asyncio.wait((sleeping, leaving), return_when=asyncio.FIRST_COMPLETED)
            if sleeping.done():
                refused = isinstance(sleeping.exception(), Refusal)
                sleeping.result()
        finally:
            leaving.cancel()
            sleeping.cancel()
            await asyncio.wait((sleeping,))
            if not refused:
                sleeper.wake_soon()

    async def _wake(self, order: AdminRequest) -> GateStatus:
        await order.read(_NoOrder)
        await self._sleeping().wake()
        return self._gate_status()

    def _sleeping(self) -> Sleeper:
        if self.sleeper is None:
            raise Refusal(
                409,
                "no_sleep",
                "the engines of this gateway never sleep",
                hint="Start it with `arttrace serve --sleep-while-training`.",
            )
        return self.sleeper

    def _gate_status(self) -> GateStatus:
        return GateStatus(self.gate.paused, self.gate.waiting, self.gate.passed)

    async def _status(self, _order: AdminRequest) -> GatewayStatus:
        policies, replicas = self.policies, self.pool.replicas
        engines = [
            EngineStatus(
                each.state, each.upstream.address.shown if each.upstream else None, each.restarts, each.requests
            )
            for each in replicas
        ]
        shown = next((each for each in engines if each.state == "ready"), engines[0])
        recorder = self.recorder
        return GatewayStatus(
            policy=policies.policy,
            current=policies.current.name,
            step=policies.current.step,
            passed_over=policies.passed_over,
            base_model=policies.base_model,
            requests={version.name: version.requests for version in policies.versions()},
            engine=EngineStatus(
                shown.state, shown.url, sum(each.restarts for each in engines), sum(each.requests for each in engines)
            ),
            replicas=engines,
            gate=self._gate_status(),
            sleeps=self.sleeper is not None,
            busy_s=self.gate.busy_s,
            max_lora_rank=self.max_lora_rank,
            recording=None
            if recorder is None
            else RecordingStatus(recorder.recorded, recorder.refused, recorder.trajectories.open),
        )

    async def _health(self, _names: Names, scope: Scope, receive: Receive, send: Send) -> None:
        await Response(status_code=200 if self.pool.ready() else 503)(scope, receive, send)


class _PublishOrder(msgspec.Struct, frozen=True):
    version: int
    path: str


class _PauseOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refuse: bool = False


class _DrainOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    refuse: bool = False
    timeout_s: float = 60.0


class _SleepOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    timeout_s: Annotated[float, msgspec.Meta(ge=0.0, le=3600.0)] = 600.0


class _NoOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class AdminRequest:
    """A request that is answered here, by JSON: the names in its URL, and what its body says."""

    def __init__(self, names: Names, scope: Scope, receive: Receive) -> None:
        self.names = names
        self._scope = scope
        self._receive = receive

    async def body(self, limit: int = _MAX_ORDER_BYTES, hold: Callable[[int], None] = lambda size: None) -> bytes:
        """The body as it came, each part of which `hold` may refuse. Raises Refusal (413)."""
        return await read_body(self._scope, self._receive, limit, hold)

    async def read(self, kind: type[_T], *, empty: bool = True) -> _T:
        """The JSON in the body; `empty` says that there may be none. Raises Refusal (400, 413, 415)."""
        headers = self._scope["headers"]
        content_type = next((value for name, value in headers if name == b"content-type"), _JSON if empty else b"")
        # A web page in the user's browser can send any other type here without asking first.
        if content_type.partition(b";")[0].strip().lower() != _JSON:
            raise Refusal(415, "invalid_request_error", "send it with content-type application/json")
        body = await self.body()
        try:
            return msgspec.json.decode(body or b"{}", type=kind)
        except UNREADABLE as error:
            fields = ", ".join(f'"{field.name}"' for field in msgspec.structs.fields(kind)) or "nothing"
            raise Refusal(
                400, "invalid_request_error", f"the order is not understood (it takes {fields}): {error}"
            ) from None


def as_handler(answer: _Answer) -> Handler:
    """A handler that sends what `answer` returns as JSON, or its refusal."""

    async def handle(names: Names, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            content = msgspec.json.encode(await answer(AdminRequest(names, scope, receive)))
        except EngineGone as error:
            raise Refusal(503, "engine_unavailable", error.message, hint=error.hint, retry_s=2) from error
        except ServingError as error:
            raise Refusal(409, "serving_error", error.message, hint=error.hint) from error
        await Response(content, media_type="application/json")(scope, receive, send)

    return handle


def _require_loopback(scope: Scope) -> None:
    """Raises Refusal for a request to another name (421), which a web page's own may have been made to lead here, and
    for one that a web page from elsewhere sends (403): browsers send it first, and ask later."""
    host = b""
    for name, value in scope["headers"]:
        if name == b"host":
            host = value
        elif name == b"origin" and not is_loopback_authority(value.partition(b"://")[2]):
            raise Refusal(
                403,
                "foreign_page",
                f"this gateway asks for no key, so it answers no web page from elsewhere: {value[:100]!r}",
                hint="Open the page from localhost, or start the gateway with --api-key-file.",
            )
    if not is_loopback_authority(host):
        raise Refusal(
            421,
            "wrong_host",
            f"this gateway asks for no key, so it answers only to localhost, not to {host[:100]!r}",
            hint="Call it by localhost, or start it with --api-key-file.",
        )
