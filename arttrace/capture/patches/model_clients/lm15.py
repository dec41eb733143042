"""Hooks what lm15 sends by, which asks models over sockets of its own. DSPy, from 3.4 on, has a copy that it prefers.

An exchange is a call. The user keeps lm15's own response; the chunks that it reads from are tapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls import routing
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall
from arttrace.capture.patches.httpx import begin_plain_call, current_call, not_answered, raised, returned, taps
from arttrace.capture.patches.registry import patch
from arttrace.system.addresses import without_userinfo

_sending = Guard("reading a request")
_answering = Guard("reading a response")

_ANY_STREAM: Any = SimpleNamespace(SyncByteStream=object, AsyncByteStream=object)
_SyncTap, _AsyncTap = taps(_ANY_STREAM)
_NAME = "lm15/"
"""What it goes by, whatever name its caller gave it: it is there to ask models."""


def install_sync(module: ModuleType) -> None:
    """Hook `StdlibTransport.stream` of `lm15.transports._sync`."""
    patch(module.StdlibTransport, "stream", _stream)


def install_async(module: ModuleType) -> None:
    """Hook `StdlibAsyncTransport._do_stream` of `lm15.transports._async`, which opens what its `stream` gives."""
    patch(module.StdlibAsyncTransport, "_do_stream", _async_stream)


def _stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stream)
    def hooked(self: Any, request: Any) -> Any:
        with _sent(self, request) as (call, request):
            response = stream(self, request)
            if call is not None:
                with _answering:
                    _tap(call, response)
        return response

    return hooked


def _async_stream(stream: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stream)
    async def hooked(self: Any, request: Any) -> Any:
        with _sent(self, request) as (call, request):
            response = await stream(self, request)
            if call is not None:
                with _answering:
                    _tap_async(call, response)
        return response

    return hooked


@contextmanager
def _sent(transport: Any, request: Any) -> Iterator[tuple[ModelCall | None, Any]]:
    """The call that a request makes, and the request that goes out, for as long as it is being answered."""
    call = _begin(transport, request)
    if call is None:
        yield None, request
        return
    current_call.set(call)
    try:
        if isinstance(call, ModelCall):
            yield call, _send(call, request)
        else:
            yield None, request
    except BaseException as error:
        if isinstance(call, ModelCall):
            not_answered(call, error)
        raised(call, error)
        raise
    finally:
        current_call.set(None)
    returned(call)


def _begin(transport: Any, request: Any) -> ModelCall | UnrecordedCall | None:
    with _sending:
        url = urlsplit(request.url)
        return begin_plain_call(
            transport, request.method, url.path, url.hostname, body=lambda: request.body, user_agent=lambda: _NAME
        )
    return None


def _send(call: ModelCall, request: Any) -> Any:
    with _sending:
        if routing.active() and (made := routing.rewrite(request.url, request.body, client="lm15")) is not None:
            given = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers]
            headers = made.headers(given, without_userinfo(urlsplit(made.url).netloc).encode())
            request = replace(
                request,
                url=made.url,
                body=made.body,
                headers=[(name.decode("latin-1"), value.decode("latin-1")) for name, value in headers],
            )
            call.routed_from = made.model
        call.sending(request.body, request.url, dict(request.headers))
    return request


def _tap(call: ModelCall, response: Any) -> None:
    release = response._release
    tap = _SyncTap(response._chunks, call, _attempt(call, response))

    def released(body_consumed: bool) -> None:
        try:
            release(body_consumed)
        finally:
            tap._ended("closed")

    response._chunks, response._release = tap, released


def _tap_async(call: ModelCall, response: Any) -> None:
    release = response._release
    tap = _AsyncTap(response._chunks, call, _attempt(call, response))

    async def released(body_consumed: bool) -> None:
        try:
            await release(body_consumed)
        finally:
            tap._ended("closed")

    response._chunks, response._release = tap, released


def _attempt(call: ModelCall, response: Any) -> Any:
    attempt = call.answered(response.status, dict(response.headers))
    attempt.body_undone = True  # by its decoder
    return attempt
