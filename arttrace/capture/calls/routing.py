"""Sends chosen model calls of an unmodified program to the policy being trained, and asks it for token ids.

Applied to the HTTP request, below the model client: its address, the model in its body and its credentials are
replaced, every other byte stays. The user's client and its settings are not touched, and each attempt is routed anew.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.base.routes import Route, parse_routes
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow, current_flow, routes_in_force
from arttrace.capture.export import lifecycle, summary
from arttrace.system.addresses import with_plain_port
from arttrace.system.errors import ArttraceError
from arttrace.wire import Api, api_of
from arttrace.wire.apis.bedrock import paths as bedrock
from arttrace.wire.apis.gemini import paths as gemini
from arttrace.wire.content.secrets import is_of_a_key
from arttrace.wire.request_body import read_model, with_fields, with_model
from arttrace.wire.sampling_fields import body_as_the_policy

_ENDPOINTS = {
    "/chat/completions": "/chat/completions",
    "/responses": "/responses",
    "/completions": "/completions",
    "/v1/messages": "/messages",
}
"""By how its path ends: what follows a policy's base URL, which ends in /v1."""

# Completions take a number: of alternatives beside the sampled token, where none is needed.
_WISHES: dict[str, dict[str, Any]] = {
    "/chat/completions": {"logprobs": True, "return_token_ids": True},
    "/completions": {"logprobs": 0, "return_token_ids": True},
}
# What identifies the user to the server that the call was meant for.
_KEY_HEADERS = (b"authorization", b"api-key", b"x-api-key")
_PRIVATE_HEADERS = (b"openai-organization", b"openai-project")

_routing = Guard("routing a call")


_routes: list[Route] = []
_from_environment: tuple[str, list[Route]] = ("", [])
_warned: set[str] = set()


def add(route: Route) -> None:
    """From now on this process's calls follow `route`; of several for one call the latest counts."""
    _routes.append(route)


def remove(route: Route) -> None:
    """The route holds no more. The second time does nothing."""
    _routes[:] = [each for each in _routes if each is not route]


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
            if routed and (lower in _PRIVATE_HEADERS or is_of_a_key(lower)):
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
    return bool(settings.route or settings.trainable or _routes or routes_in_force())


def rewrite(url: str, body: bytes | None, *, client: str) -> Rewrite | None:
    """What goes out in place of a POST of `body` to `url`, None where it goes out as it is.

    `body` is None where it cannot be read before it is sent; that such a call of `client` is not routed is said once.
    """
    parts = urlsplit(url)
    endpoint = next((end for path, end in _ENDPOINTS.items() if parts.path.endswith(path)), None)
    routes = _all_routes()
    if endpoint is None:
        if routes:
            _say_where_it_has_none(api_of(parts.path), parts.path, body, routes)
        return None
    asked = _gives_token_ids(url)
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


def _all_routes() -> list[Route]:
    """The routes of the caller's calls; of several for one the latest counts."""
    return [*_environment_routes(lifecycle.recorder().settings.route), *_routes, *routes_in_force()]


def _gives_token_ids(url: str) -> bool:
    """Whether the settings name its server as one that is asked for token ids."""
    trainable = lifecycle.recorder().settings.trainable
    plain = with_plain_port(url) if trainable else url
    return any(plain.startswith(base.rstrip("/") + "/") for base in trainable)


def _say_where_it_has_none(api: Api | None, path: str, body: bytes | None, routes: list[Route]) -> None:
    """Say once that routes do not lead calls of an API to a policy, which has no endpoint for them."""
    remedy = "call the model by the openai client, at its OpenAI-compatible address"
    match api:
        case "messages":
            what, remedy = "a call to Bedrock or Vertex AI", "use the Anthropic client itself"
            model = bedrock.model_in(path) or gemini.model_in(path)
        case "generate_content":
            what, model = "a call of Gemini's own protocol", gemini.model_in(path)
        case "ollama_chat" | "ollama_generate":
            what, model = "a call of Ollama's own protocol", read_model(body or b"")
        case _ if bedrock.is_call(path):
            what, model = "a call of Bedrock's own protocol", bedrock.model_in(path)
        case _:
            return
    agent = _agent()
    if any(route.takes(model or "", agent) for route in routes):
        not_reached(what, remedy)


def not_reached(what: str, remedy: str) -> None:
    """Say once, for each kind of call, that routes and requests for token ids do not reach it."""
    if what not in _warned:
        _warned.add(what)
        logger.warning("arttrace: %s is neither routed nor asked for token ids; %s", what, remedy)


def say_not_by_socket(url: str, model: Any) -> None:
    """Say once that a call of `model` by WebSocket, to an address of http, goes where the program sends it."""
    if not active():
        return
    name, agent = model if isinstance(model, str) else "", _agent()
    if _gives_token_ids(url) or any(route.takes(name, agent) for route in _all_routes()):
        not_reached("a call by WebSocket", "ask for responses by HTTP (`responses.create`)")


def recorded_there_too(path: str) -> None:
    """Say once that the gateway records the calls at such a path itself."""
    if "gateway" not in _warned:
        _warned.add("gateway")
        logger.warning(
            "arttrace: calls to %s are recorded by the gateway too, as a run of its own, and would be trained on "
            "twice; give the client the base URL that ends in /v1, without /r/",
            path,
        )


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
