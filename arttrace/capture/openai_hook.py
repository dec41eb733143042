"""Hooks `request` of openai's clients, sync and async: the one place every call of theirs goes through.

Recorded are chat completions, responses, legacy completions and embeddings, however they were asked for (create,
parse, stream, raw). Other endpoints (files, audio, ...) pass untouched and unrecorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from arttrace.capture.call import ModelCall, UnrecordedCall, begin_call
from arttrace.capture.guard import Guard
from arttrace.capture.http_hook import current_call
from arttrace.wire import api_of

_beginning = Guard("beginning a model call")
_ending = Guard("ending a model call")


def install(module: ModuleType) -> None:
    """Hook `openai._base_client`."""
    module.SyncAPIClient.request = _sync_request(module.SyncAPIClient.request)
    module.AsyncAPIClient.request = _async_request(module.AsyncAPIClient.request)


def _begin(client: Any, options: Any) -> ModelCall | UnrecordedCall | None:
    try:
        path = str(options.url).partition("?")[0]
        if api_of(path) is None or options.method.lower() != "post":
            return None
        provider = "azure.ai.openai" if "Azure" in type(client).__name__ else "openai"
        return begin_call(client._client, path=path, provider=provider)
    except Exception as error:  # noqa: BLE001  the first rule
        _beginning.caught(error)
        return None


def _sync_request(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    def hooked(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options)
        if call is None:
            return request(self, cast_to, options, *args, **kwargs)
        before = current_call.get()
        current_call.set(call)
        try:
            result = request(self, cast_to, options, *args, **kwargs)
        except BaseException as error:
            with _ending:
                call.raised(error)
            raise
        finally:
            current_call.set(before)
        try:
            call.returned()
        except Exception as error:  # noqa: BLE001  the first rule
            _ending.caught(error)
        return result

    return hooked


def _async_request(request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    async def hooked(self: Any, cast_to: Any, options: Any, *args: Any, **kwargs: Any) -> Any:
        call = _begin(self, options)
        if call is None:
            return await request(self, cast_to, options, *args, **kwargs)
        before = current_call.get()
        current_call.set(call)
        try:
            result = await request(self, cast_to, options, *args, **kwargs)
        except BaseException as error:
            with _ending:
                call.raised(error)
            raise
        finally:
            current_call.set(before)
        try:
            call.returned()
        except Exception as error:  # noqa: BLE001  the first rule
            _ending.caught(error)
        return result

    return hooked
