"""Taps the exact bytes of a model call at the HTTP client's `send`, for httpx and httpx2 alike.

The user keeps the response the library made. Only its byte stream is put behind a tap, below everything that reads
it, so that a full read, a break, a close, a raw read, a cancellation and an error all end in one place.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from arttrace.capture import routing
from arttrace.capture.call import ModelCall
from arttrace.capture.guard import Guard
from arttrace.wire import Ending

current_call: ContextVar[ModelCall | None] = ContextVar("arttrace_call", default=None)
"""The call whose `request` is running in this flow."""

_sending = Guard("reading a request")
_answering = Guard("reading a response")
_tapping = Guard("tapping a stream")


def install(module: ModuleType) -> None:
    """Hook `Client.send` and `AsyncClient.send` of httpx or httpx2."""
    sync_tap, async_tap = _taps(module)
    module.Client.send = _sync_send(module.Client.send, sync_tap)
    module.AsyncClient.send = _async_send(module.AsyncClient.send, async_tap)


def _call_of(client: Any) -> ModelCall | None:
    call = current_call.get()
    return call if call is not None and call.http_client is client else None


def _answered(call: ModelCall, response: Any, streaming: bool, tap: type[Any]) -> None:
    with _answering:
        streaming = streaming and not response.is_stream_consumed  # an event hook of the user's may have read it
        call.answered(response, streaming=streaming)
        if streaming:
            response.stream = tap(response.stream, call)


def _sync_send(send: Callable[..., Any], tap: type[Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        call = _call_of(self)
        if call is None:
            return send(self, request, **kwargs)
        request, call.routed_from = routing.apply(request, kwargs)
        with _sending:
            call.sending(request)
        response = send(self, request, **kwargs)
        _answered(call, response, bool(kwargs.get("stream")), tap)
        return response

    return hooked


def _async_send(send: Callable[..., Any], tap: type[Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        call = _call_of(self)
        if call is None:
            return await send(self, request, **kwargs)
        request, call.routed_from = routing.apply(request, kwargs)
        with _sending:
            call.sending(request)
        response = await send(self, request, **kwargs)
        _answered(call, response, bool(kwargs.get("stream")), tap)
        return response

    return hooked


def _ending_of(error: BaseException) -> Ending:
    if isinstance(error, GeneratorExit):
        return "closed"
    return "cancelled" if isinstance(error, (asyncio.CancelledError, KeyboardInterrupt)) else "error"


class _Tap:
    """What both taps share: the stream below, the call above, and one end."""

    def __init__(self, stream: Any, call: ModelCall) -> None:
        self._stream = stream
        self._call = call
        self._attempt = call.attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # httpx2 keeps the elapsed time on the stream

    def __del__(self) -> None:
        with _tapping:
            self._ended("closed")

    def _take(self, chunk: bytes) -> None:
        with _tapping:
            self._call.chunk(chunk)

    def _ended(self, ending: Ending, error: BaseException | None = None) -> None:
        with _tapping:
            self._call.stream_ended(self._attempt, ending, error)


def _taps(module: ModuleType) -> tuple[type[Any], type[Any]]:
    """Tap classes that are byte streams to this library."""

    class SyncTap(_Tap, module.SyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._stream:
                    self._take(chunk)
                    yield chunk
            except BaseException as error:
                self._ended(_ending_of(error), error)
                raise
            self._ended("complete")

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._ended("closed")

    class AsyncTap(_Tap, module.AsyncByteStream):  # type: ignore[name-defined, misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = self._stream.__aiter__()
            try:
                async for chunk in chunks:
                    self._take(chunk)
                    yield chunk
            except BaseException as error:
                self._ended(_ending_of(error), error)
                raise
            finally:
                close = getattr(chunks, "aclose", None)
                if close is not None:
                    await close()
            self._ended("complete")

        async def aclose(self) -> None:
            try:
                await self._stream.aclose()
            finally:
                self._ended("closed")

    return SyncTap, AsyncTap
