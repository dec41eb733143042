"""Sends the trajectory of a request to the servers that the user has listed, in `traceparent` and `baggage`.

The same context is current while the request is sent, so that OpenTelemetry's own instrumentation of the client, where
the user has switched it on, continues our trace and passes the baggage on. No other host receives anything.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

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


def install(module: ModuleType) -> None:
    """Hook where httpx or httpx2 sends one request: below redirects, which may lead to another host."""
    patch(module.Client, "_send_single_request", _sync_send)
    patch(module.AsyncClient, "_send_single_request", _async_send)


def _sync_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        outgoing = _context_for(request)
        if outgoing is None:
            return send(self, request, **kwargs)
        with _current(outgoing):
            return send(self, request, **kwargs)

    return hooked


def _async_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        outgoing = _context_for(request)
        if outgoing is None:
            return await send(self, request, **kwargs)
        with _current(outgoing):
            return await send(self, request, **kwargs)

    return hooked


def _context_for(request: Any) -> Context | None:
    """The context that this request is to be sent in, its headers written; None for a host that is not listed."""
    try:
        scope = calling_flow().scope
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _telling.caught(error)
        return None
    if scope is None or not scope.recorder.settings.propagate:
        return None
    with _telling:
        url = request.url
        if not {url.host, f"{url.host}:{url.port}"} & set(scope.recorder.settings.propagate):
            if BAGGAGE in request.headers.get("baggage", ""):  # a listed host redirects here
                for propagator in _propagators:
                    for name in propagator.fields:
                        request.headers.pop(name, None)
            return None
        sent = outgoing_context(to_this_machine=False)
        if sent is None:
            return None
        outgoing = baggage.set_baggage(BAGGAGE, sent.text(), set_span_in_context(NonRecordingSpan(scope.context)))
        for propagator in _propagators:
            propagator.inject(request.headers, outgoing)
        return outgoing
    return None


@contextmanager
def _current(outgoing: Context) -> Iterator[None]:
    token = context.attach(outgoing)
    try:
        yield
    finally:
        context.detach(token)
