"""Taps the exact bytes of a model call at the HTTP client's `send`, for httpx and httpx2 alike.

The user keeps the response the library made. Only its byte stream is put behind a tap, below everything that reads
it, so that a full read, a break, a close, a raw read, a cancellation and an error all end in one place.

An exchange of a model client's is an attempt of the call that the client's hook has begun. Any other exchange with a
model API is a call of its own, where capture of plain HTTP clients is on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from types import ModuleType
from typing import Any, Protocol

from arttrace.capture.base.guard import Guard
from arttrace.capture.base.values import is_cancellation
from arttrace.capture.calls import routing
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall, begin_call, is_wanted
from arttrace.capture.context import program
from arttrace.capture.context.flow import calling_flow
from arttrace.capture.export import summary
from arttrace.capture.patches.registry import patch
from arttrace.wire import Ending, api_of, is_call, may_be_call, provider_of

current_call: ContextVar[ModelCall | UnrecordedCall | None] = ContextVar("arttrace_call", default=None)
"""The call whose `request` is running in this flow: what it sends, at whatever layer, belongs to it."""

_sending = Guard("reading a request")
_answering = Guard("reading a response")
_tapping = Guard("tapping a stream")
_beginning = Guard("beginning a call of an HTTP client")
_ending = Guard("ending a call of an HTTP client")


def install(module: ModuleType) -> None:
    """Hook `Client.send` and `AsyncClient.send` of httpx or httpx2."""
    sync_tap, async_tap = taps(module)
    patch(module.Client, "send", lambda send: _sync_send(send, sync_tap))
    patch(module.AsyncClient, "send", lambda send: _async_send(send, async_tap))


def begin_plain_call(
    http_client: Any,
    method: str,
    path: str,
    host: str | None,
    *,
    body: Callable[[], bytes | None],
    user_agent: Callable[[], str],
    request: Any = None,
) -> ModelCall | UnrecordedCall | None:
    """The call that an HTTP client makes of itself by this request, when it is one to a model API.

    One of a model client that has gone past its hook is one too, whatever the settings say of HTTP clients, and so is
    one of a library that asks models and has no hook. `body` gives that of the request, None where it cannot be read
    before it is sent, `user_agent` the name that it goes by.
    """
    with _beginning:
        if current_call.get() is not None or method.upper() != "POST":
            return None
        asks = is_call(path, body)
        if asks is None:
            note_passed(host, path, summary.BY_NONE)
        if not asks:
            return None
        hook = sys.modules.get("arttrace.capture.patches.model_clients.stainless")
        client = None if hook is None or request is None else hook.client_of(request)
        plain = client is None and not _asks_models(user_agent())
        call = begin_call(http_client, path=path, provider=provider_of(path, host), plain=plain)
        if call is None:
            routing.plain_call_passed(http_client)
            note_passed(host, path, summary.BY_A_SETTING)
        elif hook is not None and client is not None:
            hook.note_passed_by(client)
        return call
    return None


def _asks_models(user_agent: str) -> bool:
    """Whether a library that is there to ask models makes this request, one `send` of which is all there is to a call:
    ollama's client, litellm where it asks by itself, which goes by DSPy's name where that asks by it, huggingface_hub,
    and lm15."""
    return user_agent.startswith(("ollama-python/", "litellm/", "DSPy/", "lm15/")) or "; hf_hub/" in user_agent


def note_passed(host: str | None, path: str, why: str) -> None:
    """Count a POST that may be to a model and for which no call is begun, if that is reported at the end."""
    if summary.is_on() and is_wanted() and (what := summary.passed(host, path, why)):
        scope = calling_flow().scope or program.begun()
        if scope is not None:
            scope.note_passed(what)


def _call_of(client: Any, request: Any) -> tuple[ModelCall | None, ModelCall | UnrecordedCall | None]:
    """The call that a request belongs to, and the same once more when the request itself begins it."""
    call = current_call.get()
    if call is not None:
        try:
            if isinstance(call, ModelCall) and _is_of(call, client, request):
                return call, None
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            _beginning.caught(error)
        return None, None
    url = request.url
    own = begin_plain_call(
        client,
        request.method,
        url.path,
        url.host,
        body=lambda: getattr(request, "_content", None),
        user_agent=lambda: request.headers.get("user-agent", ""),
        request=request,
    )
    return (own if isinstance(own, ModelCall) else None), own


def _is_of(call: ModelCall, client: Any, request: Any) -> bool:
    """Whether a request made meanwhile is the call's: its client may also fetch a token for it, say, or report it."""
    if call.http_client is None:
        return is_sent_by_any(call, request.url.path)
    if call.http_client is client:
        return api_of(request.url.path) is not None or "x-stainless-lang" in request.headers
    return _is_handed_on(call, request)


def is_sent_by_any(call: ModelCall, path: str) -> bool:
    """Whether a request made meanwhile is that of a call whose client sends by any HTTP client: the outermost counts,
    where one sends by another."""
    return call.http_client is None and not call.awaits_answer and may_be_call(path)


def _is_handed_on(call: ModelCall, request: Any) -> bool:
    """Whether a request of the call's own client is sent by another one: it has a `send` that lets that one do it."""
    hook = sys.modules.get("arttrace.capture.patches.model_clients.stainless")
    return hook is not None and not call.awaits_answer and hook.client_of(request) is not None


def _send_out(call: ModelCall, request: Any, options: dict[str, Any]) -> Any:
    """The request that goes out, maybe another than the client's own."""
    try:
        call.set_apart()
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _sending.caught(error)
    request, call.routed_from = routing.apply(request, options)
    try:
        call.sending(getattr(request, "_content", None), request.url, request.headers)
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _sending.caught(error)
    return request


def _answered(call: ModelCall, response: Any, streaming: bool, tap: type[Any]) -> None:
    try:
        if streaming and not response.is_stream_consumed:  # an event hook of the user's may have read it
            attempt = call.answered(response.status_code, response.headers)
            response.stream = tap(response.stream, call, attempt)
        else:
            call.answered(response.status_code, response.headers, response.content)
    except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
        _answering.caught(error)


def not_answered(call: Tapped, error: BaseException) -> None:
    """The HTTP client of an attempt raised."""
    with _answering:
        call.not_answered(error)


def raised(call: ModelCall | UnrecordedCall, error: BaseException) -> None:
    """The HTTP client that makes a call of its own raised."""
    with _ending:
        call.raised(error)


def returned(call: ModelCall | UnrecordedCall) -> None:
    """The HTTP client that makes a call of its own returned."""
    with _ending:
        call.returned()


def _sync_send(send: Callable[..., Any], tap: type[Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        call, own = _call_of(self, request)
        if own is not None:
            current_call.set(own)
        try:
            if call is None:
                return send(self, request, **kwargs)
            request = _send_out(call, request, kwargs)
            try:
                response = send(self, request, **kwargs)
            except BaseException as error:
                not_answered(call, error)
                if own is not None:
                    raised(own, error)
                raise
            _answered(call, response, bool(kwargs.get("stream")), tap)
        finally:
            if own is not None:
                current_call.set(None)
        if own is not None:
            returned(own)
        return response

    return hooked


def _async_send(send: Callable[..., Any], tap: type[Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        call, own = _call_of(self, request)
        if own is not None:
            current_call.set(own)
        try:
            if call is None:
                return await send(self, request, **kwargs)
            request = _send_out(call, request, kwargs)
            try:
                response = await send(self, request, **kwargs)
            except BaseException as error:
                not_answered(call, error)
                if own is not None:
                    raised(own, error)
                raise
            _answered(call, response, bool(kwargs.get("stream")), tap)
        finally:
            if own is not None:
                current_call.set(None)
        if own is not None:
            returned(own)
        return response

    return hooked


def _ending_of(error: BaseException) -> Ending:
    if isinstance(error, GeneratorExit):
        return "closed"
    return "cancelled" if is_cancellation(error) else "error"


class Tapped(Protocol):
    """Whatever an HTTP exchange is recorded as: a model call, or a tool's request."""

    def answered(self, status: int, headers: Any, body: bytes = ..., /) -> Any: ...
    def not_answered(self, error: BaseException) -> None: ...
    def stream_ended(self, attempt: Any, ending: Ending, error: BaseException | None = None) -> None: ...


class Tap:
    """What the taps of all libraries share: the stream below, the call above, and one end."""

    _stream: Any = None  # of the class too: one that was never made whole looks for it in `__getattr__`, without end
    _call: Any = None
    _attempt: Any = None

    def __init__(self, stream: Any, call: Tapped, attempt: Any) -> None:
        self._stream = stream
        self._call = call
        self._attempt = attempt

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)  # httpx2 keeps the elapsed time on the stream

    def __del__(self, _at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._call is None:  # never made whole
            return
        if not _at_the_end():  # then modules lose their names, and what was open has been closed
            with _tapping:
                self._ended("closed")

    def _take(self, chunk: bytes) -> None:
        try:
            is_the_end = self._attempt.chunk(chunk)
        except Exception as error:  # noqa: BLE001  rule 1: docs/architecture.md
            _tapping.caught(error)
        else:
            if is_the_end:
                self._ended("complete")

    def _broken(self, error: BaseException) -> None:
        with _tapping:
            self._ended(_ending_of(error), error)

    def _ended(self, ending: Ending, error: BaseException | None = None) -> None:
        with _tapping:
            if ending == "closed" and is_cancellation(sys.exception()):
                ending = "cancelled"  # closed on the way out of it
            self._call.stream_ended(self._attempt, ending, error)


def taps(module: ModuleType) -> tuple[type[Any], type[Any]]:
    """Tap classes that are byte streams to this library."""

    class SyncTap(Tap, module.SyncByteStream):  # type: ignore[name-defined, misc]
        def __iter__(self) -> Iterator[bytes]:
            try:
                for chunk in self._stream:
                    self._take(chunk)
                    yield chunk
            except BaseException as error:
                self._broken(error)
                raise
            self._ended("complete")

        def close(self) -> None:
            try:
                self._stream.close()
            finally:
                self._ended("closed")

    class AsyncTap(Tap, module.AsyncByteStream):  # type: ignore[name-defined, misc]
        async def __aiter__(self) -> AsyncIterator[bytes]:
            chunks = self._stream.__aiter__()
            try:
                async for chunk in chunks:
                    self._take(chunk)
                    yield chunk
            except BaseException as error:
                self._broken(error)
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
