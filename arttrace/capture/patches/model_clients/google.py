"""Hooks the place that every request of google-genai's client goes through, sync and async, whole and streamed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.patches.model_clients.made import awaited, begun, made
from arttrace.capture.patches.registry import patch


def install(module: ModuleType) -> None:
    """Hook `google.genai._api_client`: what its client sends, again where it tries again, whole and streamed."""
    patch(module.BaseApiClient, "_request", _request)
    patch(module.BaseApiClient, "_async_request", _async_request)


def _request(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    def hooked(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = begun(http_request)
        if call is None:
            return request(self, http_request, *args, **kwargs)
        return made(call, request, self, http_request, *args, **kwargs)

    return hooked


def _async_request(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    async def hooked(self: Any, http_request: Any, *args: Any, **kwargs: Any) -> Any:
        call = begun(http_request)
        if call is None:
            return await request(self, http_request, *args, **kwargs)
        return await awaited(call, request, self, http_request, *args, **kwargs)

    return hooked
