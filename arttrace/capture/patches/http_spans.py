"""Records the requests that tools make with httpx, httpx2, requests and aiohttp, where `http_spans` is on.

What a model call sends is that call's. Each hook stands below the one that knows model calls, and, but for aiohttp,
below redirects: every hop is a request of its own. Nothing is added to what is sent.

OpenTelemetry's own instrumentations of these clients are not used: there is one of each in a process, which is the
user's to switch on; it sends `traceparent` to every host, and lets out what a span processor raises.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from opentelemetry.trace import get_current_span

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls.followed_call import FollowedCall
from arttrace.capture.calls.http_request import OpenHttpRequest, requesting_position
from arttrace.capture.calls.tapped_raw import TappedRaw
from arttrace.capture.patches.httpx import Tap, current_call, not_answered, taps
from arttrace.capture.patches.otel_tracers import followed_by
from arttrace.capture.patches.registry import patch
from arttrace.capture.patches.requests_aiohttp import tap_reader, tapped_reader

_unsent: ContextVar[OpenHttpRequest | None] = ContextVar("arttrace_unsent_http_request", default=None)
"""The request of aiohttp's that was begun here, and not sent yet."""

_sending = Guard("reading a tool's HTTP request")
_beginning = Guard("beginning a tool's HTTP request")
_answering = Guard("reading the answer to a tool's HTTP request")


def install_httpx(module: ModuleType) -> None:
    """Hook where httpx or httpx2 sends one request."""
    sync_tap, async_tap = taps(module)
    patch(module.Client, "_send_single_request", lambda send: _sync_send(send, sync_tap))
    patch(module.AsyncClient, "_send_single_request", lambda send: _async_send(send, async_tap))


def install_requests(module: ModuleType) -> None:
    """Hook `requests.adapters.HTTPAdapter.send`."""
    patch(module.HTTPAdapter, "send", _requests_send)


def install_aiohttp(module: ModuleType) -> None:
    """Hook `aiohttp.ClientSession._request`: redirects are within one request. What is sent first is that request's."""
    session, request, tapped = module.ClientSession, module.ClientRequest, tapped_reader(module.StreamReader)
    assert hasattr(session, "_request")  # both are there, or nothing is hooked
    assert hasattr(request, "send")
    patch(session, "_request", lambda made: _aiohttp_request(made, tapped))
    patch(request, "send", _aiohttp_send)


def _begin(method: str, url: Any, headers: Mapping[str, str], body: Any = None) -> OpenHttpRequest | None:
    try:
        position = None if current_call.get() is not None else requesting_position()
        if position is None or isinstance(followed_by(get_current_span()), FollowedCall):
            return None
        begun = OpenHttpRequest(position, method)
        begun.sent(url, headers, body)
        return begun
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _beginning.caught(error)
        return None


def _sync_send(send: Callable[..., Any], tap: type[Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        begun = _begin(request.method, request.url, request.headers, getattr(request, "_content", None))
        if begun is None:
            return send(self, request, **kwargs)
        try:
            response = send(self, request, **kwargs)
        except BaseException as error:
            not_answered(begun, error)
            raise
        _answered(begun, response, tap)
        return response

    return hooked


def _async_send(send: Callable[..., Any], tap: type[Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        begun = _begin(request.method, request.url, request.headers, getattr(request, "_content", None))
        if begun is None:
            return await send(self, request, **kwargs)
        try:
            response = await send(self, request, **kwargs)
        except BaseException as error:
            not_answered(begun, error)
            raise
        _answered(begun, response, tap)
        return response

    return hooked


def _answered(begun: OpenHttpRequest, response: Any, tap: type[Any]) -> None:
    with _answering:
        if response.is_stream_consumed:
            begun.answered(response.status_code, response.headers, response.content)
        else:
            begun.answered(response.status_code, response.headers)
            response.stream = tap(response.stream, begun, begun)


def _requests_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _begin(request.method or "", request.url, request.headers, request.body)
        if begun is None:
            return send(self, request, *args, **kwargs)
        try:
            response = send(self, request, *args, **kwargs)
        except BaseException as error:
            not_answered(begun, error)
            raise
        with _answering:
            raw = response.raw
            if raw is None or response._content_consumed:
                begun.answered(response.status_code, response.headers, response.content)
            else:
                begun.response_size = getattr(raw, "tell", None)  # what came over the wire, whatever is made of it
                attempt = begun.answered(response.status_code, response.headers)
                response.raw = TappedRaw(raw, Tap(raw, begun, attempt))
        return response

    return hooked


def _aiohttp_request(request: Callable[..., Any], tapped: type[Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    async def hooked(self: Any, method: str, str_or_url: Any, **kwargs: Any) -> Any:
        begun = _begin(method, str_or_url, {})
        if begun is None:
            return await request(self, method, str_or_url, **kwargs)
        _unsent.set(begun)
        try:
            response = await request(self, method, str_or_url, **kwargs)
        except BaseException as error:
            not_answered(begun, error)
            raise
        finally:
            _unsent.set(None)
        with _answering:
            tap_reader(begun, response, tapped)
        return response

    return hooked


def _aiohttp_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        begun = _unsent.get()
        if begun is not None:
            _unsent.set(None)
            with _sending:
                begun.sent(self.url, self.headers, getattr(self.body, "_value", self.body))
        return await send(self, *args, **kwargs)

    return hooked
