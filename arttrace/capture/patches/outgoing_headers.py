"""Sends the trajectory of a request to the servers that the user has listed, in `traceparent` and `baggage`.

The same context is current while the request is sent, so that OpenTelemetry's own instrumentation of what sends it,
where the user has switched it on, continues our trace and passes the baggage on. No other host receives anything: each
hook stands below redirects, and the headers of the user's request are afterwards what they were.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from urllib.parse import urlsplit

from opentelemetry import baggage, context
from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import NonRecordingSpan, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.remote_context import BAGGAGE
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.context.propagation import outgoing_context
from arttrace.capture.patches.registry import patch

_telling = Guard("telling a server its trajectory")
_propagators = (TraceContextTextMapPropagator(), W3CBaggagePropagator())
_FIELDS = sorted(name for propagator in _propagators for name in propagator.fields)
_PORTS = {"http": 80, "https": 443}


def install(module: ModuleType) -> None:
    """Hook where httpx or httpx2 sends one request."""
    patch(module.Client, "_send_single_request", _sync_send)
    patch(module.AsyncClient, "_send_single_request", _async_send)


def install_requests(module: ModuleType) -> None:
    """Hook `requests.adapters.HTTPAdapter.send`."""
    patch(module.HTTPAdapter, "send", _sync_send)


def install_aiohttp(module: ModuleType) -> None:
    """Hook `aiohttp.ClientRequest.send`."""
    patch(module.ClientRequest, "send", _aiohttp_send)


def _sync_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        outgoing = _context_for(request.url)
        if outgoing is None:
            return send(self, request, *args, **kwargs)
        with _with_headers(outgoing, request.headers):
            return send(self, request, *args, **kwargs)

    return hooked


def _async_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        outgoing = _context_for(request.url)
        if outgoing is None:
            return await send(self, request, **kwargs)
        with _with_headers(outgoing, request.headers):
            return await send(self, request, **kwargs)

    return hooked


def _aiohttp_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        outgoing = _context_for(self.url)
        if outgoing is None:
            return await send(self, *args, **kwargs)
        with _with_headers(outgoing, self.headers):
            return await send(self, *args, **kwargs)

    return hooked


def _context_for(url: Any) -> Context | None:
    """The context that a request to this URL is to be sent in; None for a host that is not listed."""
    try:
        scope = calling_flow().scope
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _telling.caught(error)
        return None
    if scope is None or not scope.recorder.settings.propagate:
        return None
    with _telling:
        asked = urlsplit(str(url))
        host = asked.hostname
        if {host, f"{host}:{asked.port or _PORTS.get(asked.scheme)}"}.isdisjoint(scope.recorder.settings.propagate):
            return None
        sent = outgoing_context(to_this_machine=False)
        if sent is None:
            return None
        return baggage.set_baggage(BAGGAGE, sent.text(), set_span_in_context(NonRecordingSpan(scope.context)))
    return None


@contextmanager
def _with_headers(outgoing: Context, headers: MutableMapping[str, str]) -> Iterator[None]:
    """While the request is sent its headers, and the current context, say which trajectory it belongs to."""
    before: dict[str, str] = {}
    with _telling:
        before.update((name, headers[name]) for name in _FIELDS if name in headers)
        for propagator in _propagators:
            propagator.inject(headers, outgoing)
    token = context.attach(outgoing)
    try:
        yield
    finally:
        context.detach(token)
        with _telling:
            for name in _FIELDS:
                headers.pop(name, None)
            headers.update(before)
