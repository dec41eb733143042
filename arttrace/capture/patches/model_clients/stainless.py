"""Hooks `request`, the place that every call of openai's and anthropic's clients goes through, sync and async, and of
those of some providers of OpenAI's API: groq, together, cerebras-cloud-sdk, fireworks-ai, sambanova.

All are made by Stainless's generator, so that one hook fits them. Recorded are chat completions, responses, legacy
completions, embeddings and messages, however they were asked for (create, parse, stream, raw), at Bedrock and Vertex AI
too. Other endpoints (files, audio, counting tokens, ...) pass untouched and unrecorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache, partial
from types import ModuleType
from typing import Any

from arttrace.capture.base.guard import Guard, logger
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall, begin_call, is_suppressed
from arttrace.capture.patches.httpx import current_call
from arttrace.capture.patches.model_clients.made import awaited, made
from arttrace.capture.patches.registry import is_patched, patch
from arttrace.wire import api_of

_beginning = Guard("beginning a model call")
_said: set[str] = set()


_above: ContextVar[Any] = ContextVar("arttrace_above", default=None)
"""The call begun by a hook above the client's own `request`, until that is reached."""

_continuing: set[type[Any]] = set()
"""The base classes whose clients have middleware, which may send more while an answer is read, after `request`."""

_bases: list[tuple[type[Any], Callable[..., Any], Callable[..., Any]]] = []
"""The classes that `request` is hooked on, each with its own `request` and what hooks one."""


def install(module: ModuleType) -> None:
    """Hook `openai._base_client`, or that of another client."""
    _bases[:] = [known for known in _bases if known[0].__module__ != module.__name__]
    for base, hook in ((module.SyncAPIClient, _sync_request), (module.AsyncAPIClient, _async_request)):
        _bases.append((base, patch(base, "request", hook), hook))
        for client in _overriding(base):
            if _calls_past_us(client.request, base):
                patch(client, "request", partial(hook, above=True))


def _overriding(base: type[Any]) -> Iterator[type[Any]]:
    """The subclasses that have a `request` of their own, not hooked yet."""
    for client in base.__subclasses__():
        if "request" in vars(client) and not is_patched(client, "request"):
            yield client
        yield from _overriding(client)


def _calls_past_us(request: Any, base: type[Any]) -> bool:
    """Whether a `request` wraps the one that the base class had before our hook, as instrumentation does that was
    switched on earlier. One that is written as `super().request(...)` comes to the hook by itself."""
    bare = next(bare for known, bare, _ in _bases if known is base)
    for _ in range(20):
        if request is bare:
            return True
        request = getattr(request, "__wrapped__", None)
    return False


def client_of(request: Any) -> type[Any] | None:
    """Which base class the client is of that makes an HTTP request, when it is one that is hooked."""
    agent = request.headers.get("user-agent", "").partition("/")[0]
    if not agent or "x-stainless-lang" not in request.headers:
        return None
    return next((base for base, _, _ in _bases if any(below.__name__ == agent for below in _all_below(base))), None)


def note_passed_by(base: type[Any]) -> None:
    """A call of such a client has not come to our hook: say so, and hook the classes that override `request`.

    Their later calls are recorded as ever. Where only an object overrides it, each attempt of a call stays a call of
    its own.
    """
    overriding = list(_overriding(base))
    names = ", ".join(f"{client.__name__}.request" for client in overriding) or f"`request` of a {base.__name__}"
    if base.__name__ not in _said and (overriding or base not in _continuing):
        _said.add(base.__name__)
        logger.warning(
            "arttrace: %s was replaced by something that bypasses arttrace; its calls are recorded at the HTTP client."
            " Import arttrace, or start the program by `arttrace run`, before what replaces it",
            names,
        )
    hook = next(hook for known, _, hook in _bases if known is base)
    for client in overriding:
        patch(client, "request", partial(hook, above=True))


class _OfOneClient(partial[Any]):
    """Our hook around what somebody has put in the place of `request` on one object."""


def _is_around_us(client: Any) -> bool:
    """Whether somebody has put something around our hook since, which may be what suppresses instrumentation here.

    Logfire does that, so that nothing below it makes spans of the call that it makes one of. From now on our hook is
    around it, and sees what the caller has suppressed; the first call is recorded without knowing.
    """
    base, _, hook = next(known for known in _bases if isinstance(client, known[0]))
    around = vars(client).get("request")
    if around is not None and not isinstance(around, _OfOneClient):
        client.request = _OfOneClient(hook(lambda _, *args, **kwargs: around(*args, **kwargs), above=True), client)
        return True
    overriding = [client for client in type(client).__mro__ if client in set(_overriding(base))]
    for each in overriding:
        patch(each, "request", partial(hook, above=True))
    return bool(overriding)


def _all_below(base: type[Any]) -> Iterator[type[Any]]:
    for client in base.__subclasses__():
        yield client
        yield from _all_below(client)


_PROVIDERS = {
    "groq": "groq",
    "together": "together_ai",
    "cerebras": "cerebras",
    "fireworks": "fireworks_ai",
    "sambanova": "sambanova",
}
"""Those of OpenAI's API, by the package of their client, as the conventions or litellm name them."""


@lru_cache(maxsize=64)
def _provider(client: type[Any]) -> str:
    """`gen_ai.provider.name` of a client's class: Anthropic's has variants for two clouds."""
    name, packages = client.__name__, [base.__module__.partition(".")[0] for base in client.__mro__]
    if own := next((_PROVIDERS[package] for package in packages if package in _PROVIDERS), None):
        return own
    if any("anthropic" in package for package in packages):
        return "aws.bedrock" if "Bedrock" in name else "gcp.vertex_ai" if "Vertex" in name else "anthropic"
    return "azure.ai.openai" if "Azure" in name else "openai"


def _begin(client: Any, options: Any, above: bool) -> ModelCall | UnrecordedCall | None:
    try:
        begun = _above.get()
        if begun is not None and begun is current_call.get():
            if not above:
                _above.set(None)
            return None
        path = str(options.url).partition("?")[0]
        path = path if path.startswith("/") or "://" in path else f"/{path}"
        if api_of(path) is None or options.method.lower() != "post":
            return None
        if getattr(client, "_middleware", ()):
            _continuing.update(base for base, _, _ in _bases if isinstance(client, base))
        provider = _provider(client.__class__)
        suppressed = is_suppressed() and not _is_around_us(client)
        call = begin_call(client._client, path=path, provider=provider, suppressed=suppressed)
        if above:
            _above.set(call)
        return call
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _beginning.caught(error)
        return None


def _sync_request(request: Callable[..., Any], above: bool = False) -> Callable[..., Any]:
    @functools.wraps(request)
    def hooked(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, above)
        if call is None:
            return request(self, cast_to, options, *args, **kwargs)
        try:
            return made(call, request, self, cast_to, options, *args, **kwargs)
        finally:
            if above:
                _above.set(None)

    return hooked


def _async_request(request: Callable[..., Any], above: bool = False) -> Callable[..., Any]:
    @functools.wraps(request)
    async def hooked(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options, above)
        if call is None:
            return await request(self, cast_to, options, *args, **kwargs)
        try:
            return await awaited(call, request, self, cast_to, options, *args, **kwargs)
        finally:
            if above:
                _above.set(None)

    return hooked
