"""Hooks the place that every request of google-genai's client goes through, sync and async, whole and streamed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall, begin_call
from arttrace.capture.patches.model_clients.made import awaited, made
from arttrace.capture.patches.registry import patch
from arttrace.wire import api_of, provider_of

_beginning = Guard("beginning a model call")


def install(module: ModuleType) -> None:
    """Hook `google.genai._api_client`: what its client sends, again where it tries again, whole and streamed."""
    patch(module.BaseApiClient, "_request", _request)
    patch(module.BaseApiClient, "_async_request", _async_request)


def _request(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    def hooked(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(http_request)
        if call is None:
            return request(self, http_request, *args, **kwargs)
        return made(call, request, self, http_request, *args, **kwargs)

    return hooked


def _async_request(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    async def hooked(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(http_request)
        if call is None:
            return await request(self, http_request, *args, **kwargs)
        return await awaited(call, request, self, http_request, *args, **kwargs)

    return hooked


def _begin(http_request: Any) -> ModelCall | UnrecordedCall | None:
    """Its client sends by httpx, httpx2, requests or aiohttp, whichever there is: none of them is named."""
    with _beginning:
        url = urlsplit(http_request.url)
        path = unquote(url.path)
        if http_request.method.lower() == "post" and api_of(path) is not None:
            return begin_call(None, path=path, provider=provider_of(path, url.hostname))
    return None
