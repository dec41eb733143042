"""Hooks the place that every request of mistralai's client goes through, sync and async, whole and streamed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.patches.model_clients.made import awaited, begun, made
from arttrace.capture.patches.registry import patch

_PROVIDER = "mistral_ai"


def install(module: ModuleType) -> None:
    """Hook `mistralai.client.basesdk`, `mistralai.basesdk` before major 2: what its client sends, again where it tries
    again."""
    patch(module.BaseSDK, "do_request", _do_request)
    patch(module.BaseSDK, "do_request_async", _do_request_async)


def _do_request(do_request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(do_request)
    def hooked(self: Any, hook_ctx: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = begun(request, _PROVIDER)
        if call is None:
            return do_request(self, hook_ctx, request, *args, **kwargs)
        return made(call, do_request, self, hook_ctx, request, *args, **kwargs)

    return hooked


def _do_request_async(do_request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(do_request)
    async def hooked(self: Any, hook_ctx: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = begun(request, _PROVIDER)
        if call is None:
            return await do_request(self, hook_ctx, request, *args, **kwargs)
        return await awaited(call, do_request, self, hook_ctx, request, *args, **kwargs)

    return hooked
