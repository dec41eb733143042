"""Sends chosen model calls of an unmodified program to the policy being trained, and asks it for token ids.

Applied to the HTTP request, below the model client: its address, the model in its body and its credentials are
replaced, every other byte stays. The user's client and its settings are not touched, and each attempt is routed anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, cast
from urllib.parse import urlsplit

from msgspec.structs import replace

from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow, current_flow, set_flow
from arttrace.capture.export import lifecycle, summary
from arttrace.errors import ArttraceError
from arttrace.wire.request_body import read_model, with_fields, with_model
from arttrace.wire.sampling_fields import body_as_the_policy

Sampling = Literal["request", "policy"]
ANY_MODEL = "*"
_ENDPOINTS = ("/chat/completions", "/responses", "/completions")
# Completions take a number: of alternatives beside the sampled token, where none is needed.
_WISHES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"logprobs": True, "return_token_ids": True},
    "/completions": {"logprobs": 0, "return_token_ids": True},
}
# What identifies the user to the server that the call was meant for.
_KEY_HEADERS = (b"authorization", b"api-key", b"x-api-key")
_PRIVATE_HEADERS = (*_KEY_HEADERS, b"cookie", b"openai-organization", b"openai-project")
_ENTRY = re.compile(r"(?P<model>[^\[\]=]+)(?:\[(?P<agent>[^\]]+)\])?=(?P<to>.+?)@(?P<url>https?://[^,]+)")

_routing = Guard("routing a call")


@dataclass(frozen=True, slots=True)
class Route:
    """Which calls go where. `model` "*" means every model, `agent` None every agent, `sampling` "policy" that fields
    that change the policy's own sampling are left out."""

    model: str
    to: str
    base_url: str
    api_key: str | None = field(default=None, repr=False)
    agent: str | None = None
    sampling: Sampling = "request"

    @property
    def text(self) -> str:
        """Which calls it is for, as ARTTRACE_ROUTE has it."""
        return self.model if self.agent is None else f"{self.model}[{self.agent}]"

    def takes(self, model: str, agent: str | None) -> bool:
        """Whether a call of this model by this agent is meant."""
        return self.model in (ANY_MODEL, model) and self.agent in (None, agent)


class Routing:
    """What `arttrace.route` returns: the route holds until `remove()`, or for the length of a `with` block.

    In a `with` block it holds for what the block calls, its tasks and threads included, and for nothing beside it.
    """

    def __init__(self, route: Route) -> None:
        self.route = route
        _routes.append(route)

    def remove(self) -> None:
        """Calls go where they were meant to go again. The second time does nothing."""
        _routes[:] = [route for route in _routes if route is not self.route]

    def __enter__(self) -> Routing:
        self.remove()
        flow = current_flow()
        set_flow(replace(flow, routes=(*flow.routes, self.route)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        flow = current_flow()
        set_flow(replace(flow, routes=tuple(route for route in flow.routes if route is not self.route)))


_routes: list[Route] = []
_from_environment: tuple[str, list[Route]] = ("", [])
_reported: set[str] = set()


def route(
    model: str,
    *,
    to: str,
    base_url: str | None = None,
    api_key: str | None = None,
    agent: str | None = None,
    sampling: Sampling | None = None,
) -> Routing:
    """Send the calls of `model` to the model `to` of the OpenAI-compatible server at `base_url`.

    Args:
        model: The model's name as the program asks for it, or "*" for every model.
        to: The name it is asked for instead: "policy:latest" at arttrace's gateway.
        base_url: The server, "/v1" included; ARTTRACE_POLICY_URL by default.
        api_key: Its key; ARTTRACE_POLICY_API_KEY by default. The program's own key is never sent to it.
        agent: Only the calls that the agent of this name makes itself.
        sampling: "policy" leaves out what changes the policy's own sampling (temperature, top_p, penalties, forced tool
            calls, forced JSON), so that the calls can be trained on; "request" sends it on. ARTTRACE_POLICY_SAMPLING by
            default, else "request".

    Of several routes for one call the latest counts. Raises ArttraceError where the server is not named.
    """
    address = base_url or os.environ.get("ARTTRACE_POLICY_URL", "")
    if not address.startswith(("http://", "https://")):
        raise ArttraceError(
            f"the route of {model!r} names no server: {address!r}",
            'Give it: arttrace.route(model, to="policy:latest", base_url="http://127.0.0.1:8000/v1")',
        )
    from arttrace.capture.patches import hooks  # it installs the hook that calls `apply`

    hooks.install()
    key = api_key or os.environ.get("ARTTRACE_POLICY_API_KEY") or None
    return Routing(Route(model, to, address.rstrip("/"), key, agent, sampling_of(sampling)))


def sampling_of(given: str | None) -> Sampling:
    """What a route's `sampling` means. Raises ArttraceError for another word."""
    word = given or os.environ.get("ARTTRACE_POLICY_SAMPLING") or "request"
    if word not in ("request", "policy"):
        raise ArttraceError(f"{word!r} is no way of sampling", 'Write "policy" or "request".')
    return cast("Sampling", word)


def parse_routes(text: str) -> list[Route]:
    """Routes as ARTTRACE_ROUTE has them: `model=policy@url`, `model[agent]=policy@url`, several with commas between.

    Raises ArttraceError for anything else.
    """
    key = os.environ.get("ARTTRACE_POLICY_API_KEY") or None
    found = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        match = _ENTRY.fullmatch(entry)
        if match is None:
            raise ArttraceError(
                f"{entry!r} is no route", "Write model=policy@url: gpt-4o=policy:latest@http://127.0.0.1:8000/v1"
            )
        url = match["url"].rstrip("/")
        found.append(Route(match["model"], match["to"], url, key, match["agent"], sampling_of(None)))
    return found


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What goes out in place of a request: the address, the body and, where `route` is one, other credentials.

    `model` is the one that the program asked for, None where only token ids are asked for in addition.
    """

    url: str
    body: bytes
    route: Route | None = None
    model: str | None = None

    def headers(self, given: Iterable[tuple[bytes, bytes]], host: bytes) -> list[tuple[bytes, bytes]]:
        """The headers in their order, with the length of this body and, by a route, its key and `host`."""
        headers: list[tuple[bytes, bytes]] = []
        routed = self.route is not None
        secret = None if self.route is None else self.route.api_key
        key = None if secret is None else (b"Authorization", f"Bearer {secret}".encode())
        for name, value in given:
            lower = name.lower()
            if routed and lower in _PRIVATE_HEADERS:
                if lower in _KEY_HEADERS and key is not None and key not in headers:
                    headers.append(key)
            elif routed and lower == b"host":
                headers.append((name, host))
            elif lower == b"content-length":
                headers.append((name, str(len(self.body)).encode()))
            else:
                headers.append((name, value))
        if key is not None and key not in headers:
            headers.append(key)
        return headers


def known() -> set[str]:
    """Which calls the routes of this process are for, those of blocks aside."""
    return {route.text for route in [*_environment_routes(lifecycle.recorder().settings.route), *_routes]}


def active() -> bool:
    """Whether any call may have to be rewritten."""
    settings = lifecycle.recorder().settings
    return bool(settings.route or settings.trainable or _routes or current_flow().routes)


def rewrite(url: str, body: bytes | None, *, client: str) -> Rewrite | None:
    """What goes out in place of a POST of `body` to `url`, None where it goes out as it is.

    `body` is None where it cannot be read before it is sent; that such a call of `client` is not routed is said once.
    """
    settings = lifecycle.recorder().settings
    parts = urlsplit(url)
    endpoint = next((path for path in _ENDPOINTS if parts.path.endswith(path)), None)
    if endpoint is None:
        return None
    routes = [*_environment_routes(settings.route), *_routes, *current_flow().routes]
    asked = any(url.startswith(base.rstrip("/") + "/") for base in settings.trainable)
    if body is None:
        if routes or asked:
            not_reached(
                f"a call by {client} whose body cannot be read before it is sent", "send the body as bytes or JSON"
            )
        return None
    if routes:
        model, agent = read_model(body) or "", _agent()
        chosen = next((route for route in reversed(routes) if route.takes(model, agent)), None)
        if chosen is not None:
            summary.matched(chosen.text)
            target = chosen.base_url + endpoint + _query(parts.query)
            if chosen.sampling == "policy":
                body = body_as_the_policy(body)
            return Rewrite(target, _asking(with_model(body, chosen.to), endpoint), chosen, model)
    if asked:
        asking = _asking(body, endpoint)
        return None if asking == body else Rewrite(url, asking)
    return None


def not_reached(what: str, remedy: str) -> None:
    """Say once, for each kind of call, that routes and requests for token ids do not reach it."""
    if what not in _reported:
        _reported.add(what)
        logger.warning("arttrace: %s is neither routed nor asked for token ids; %s", what, remedy)


def plain_call_passed(http_client: Any) -> None:
    """An HTTP client makes a model call that is not captured: say so where it might have been one to route."""
    flow = current_flow()
    settings = (lifecycle.recorder() if flow.scope is None else flow.scope.recorder).settings
    if not (settings.disabled or settings.capture_http or flow.muted) and active():
        library = type(http_client).__module__.partition(".")[0]
        not_reached(
            f"a model call by {library} alone", "set ARTTRACE_CAPTURE_HTTP=1 to capture and route those as well"
        )


def apply(request: Any, options: dict[str, Any]) -> tuple[Any, str | None]:
    """The request that goes out instead, and the model that the program asked for where a route changed it.

    Args:
        request: The `Request` of httpx or httpx2 that the model client made. It is not changed.
        options: The keyword arguments of `send`; a routed call is sent without the HTTP client's own `auth`.
    """
    try:
        if not active():
            return request, None
        read = getattr(request, "_content", None) is not None  # else its content is a stream
        made = rewrite(
            str(request.url), request.content if read else None, client=type(request).__module__.split(".")[0]
        )
        if made is None:
            return request, None
        kind = type(request)
        url = request.url if made.route is None else type(request.url)(made.url)
        headers = made.headers(request.headers.raw, url.netloc)
        rebuilt = kind(request.method, url, headers=headers, content=made.body, extensions=request.extensions)
        if made.route is not None:
            options["auth"] = None
        return rebuilt, made.model
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _routing.caught(error)
    return request, None


def _agent() -> str | None:
    """The name of the agent that the caller runs in."""
    scope = calling_flow().scope or program.scope()
    while scope is not None and scope.kind == "tool":
        scope = scope.parent
    return None if scope is None else scope.name


def _query(query: str) -> str:
    """The query of a call's address, without Azure's."""
    kept = [item for item in query.split("&") if item and not item.startswith("api-version=")]
    return "?" + "&".join(kept) if kept else ""


def _asking(body: bytes, endpoint: str) -> bytes:
    """The body asking for what training needs, in the APIs that give it."""
    return with_fields(body, _WISHES.get(endpoint, {}))


def _environment_routes(text: str) -> list[Route]:
    """The routes of ARTTRACE_ROUTE, each text of it read once; one that cannot be read is logged and left out."""
    global _from_environment
    if text != _from_environment[0]:
        try:
            routes = parse_routes(text)
        except ArttraceError as error:
            logger.warning("arttrace: ARTTRACE_ROUTE routes nothing: %s", error)
            routes = []
        _from_environment = (text, routes)
    return _from_environment[1]
