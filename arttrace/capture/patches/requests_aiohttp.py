"""Model calls of `requests` and `aiohttp`, by their HTTP exchange: of plain HTTP clients where that is switched on.

As with httpx the user keeps the library's own response; what it is read from is tapped. A library that sends by
another one (litellm by httpx, httpx by aiohttp) has its call recorded once, by the outermost.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any
from urllib.parse import SplitResult, urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls import routing
from arttrace.capture.calls.http_request import OpenHttpRequest
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall
from arttrace.capture.calls.tapped_raw import TappedRaw
from arttrace.capture.patches.httpx import (
    Tap,
    Tapped,
    begin_plain_call,
    current_call,
    is_sent_by_any,
    not_answered,
    raised,
    returned,
)
from arttrace.capture.patches.registry import patch
from arttrace.system.addresses import without_userinfo
from arttrace.wire import may_be_call

_sending = Guard("reading a request")
_answering = Guard("reading a response")
_tapping = Guard("tapping a stream")
_beginning = Guard("beginning a call of an HTTP client")


# --- requests ------------------------------------------------------------------------------------------------------
def install_requests(module: ModuleType) -> None:
    """Hook `requests.Session.send`."""
    patch(module.Session, "send", _requests_send)


def _requests_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, **kwargs: Any) -> Any:
        call, own = _call_of(
            self,
            request.method or "",
            lambda: urlsplit(request.url or ""),
            lambda: _requests_body(request),
            lambda: _text(request.headers.get("user-agent", "")),
        )
        if own is not None:
            current_call.set(own)
        try:
            if call is not None:
                request = _send_requests(call, self, request, kwargs)
            response = send(self, request, **kwargs)
        except BaseException as error:
            if call is not None:
                not_answered(call, error)
            if own is not None:
                raised(own, error)
            raise
        finally:
            if own is not None:
                current_call.set(None)
        if call is not None:
            with _answering:
                if response.raw is None or response._content_consumed:
                    call.answered(response.status_code, response.headers, response.content)
                else:
                    attempt = call.answered(response.status_code, response.headers)
                    response.raw = TappedRaw(response.raw, Tap(response.raw, call, attempt))
        if own is not None:
            returned(own)
        return response

    return hooked


def _requests_body(request: Any) -> bytes | None:
    """The body that requests sends, None where that is a stream."""
    body = request.body.encode() if isinstance(request.body, str) else request.body or b""
    return body if isinstance(body, bytes) else None


def _call_of(
    session: Any,
    method: str,
    address: Callable[[], SplitResult],
    body: Callable[[], bytes | None],
    user_agent: Callable[[], str],
) -> tuple[ModelCall | None, ModelCall | UnrecordedCall | None]:
    """The call that a request belongs to, and the same once more when the request itself begins it."""
    with _beginning:
        call = current_call.get()
        if isinstance(call, ModelCall) and call.http_client is None:
            return (call if is_sent_by_any(call, address().path) else None), None
        if call is None:
            url = address()
            own = begin_plain_call(session, method, url.path, url.hostname, body=body, user_agent=user_agent)
            return (own if isinstance(own, ModelCall) else None), own
    return None, None


def _send_requests(call: ModelCall, session: Any, request: Any, options: dict[str, Any]) -> Any:
    """The request that goes out, maybe another than the user's own."""
    with _sending:
        body = _requests_body(request)
        if routing.active():
            made = routing.rewrite(request.url, body, client="requests")
            if made is not None:
                request, body = _rewritten_request(session, request, made, options), made.body
                call.routed_from = made.model
        call.sending(body, request.url, request.headers)
    return request


def _rewritten_request(session: Any, request: Any, made: routing.Rewrite, options: dict[str, Any]) -> Any:
    """A copy of a prepared request; a routed one goes out with nothing that was meant for the other server."""
    rewritten = request.copy()
    rewritten.url, rewritten.body = made.url, made.body
    given = [(_bytes(name), _bytes(value)) for name, value in request.headers.items()]
    rewritten.headers.clear()
    for name, value in made.headers(given, without_userinfo(urlsplit(made.url).netloc).encode()):
        rewritten.headers[name.decode("latin-1")] = value.decode("latin-1")
    if made.route is not None:
        rewritten._cookies = type(request._cookies)() if request._cookies is not None else None
        # Which proxy leads there is another question than for the address that was asked.
        options.update(
            session.merge_environment_settings(made.url, {}, options.get("stream"), options.get("verify"), None)
        )
        options["cert"] = None
    return rewritten


def _bytes(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode("latin-1", "replace")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode("latin-1")


# --- aiohttp -------------------------------------------------------------------------------------------------------
_readers: dict[int, Tap] = {}
"""The tap of each reader that is tapped, by the reader's id: readers have no room for it. It holds no reader, so that
one whose response was dropped goes, and its tap with it."""


def install_aiohttp(module: ModuleType) -> None:
    """Hook `aiohttp.ClientSession._request`, and what it sends and reads by."""
    session, request, tapped = module.ClientSession, module.ClientRequest, tapped_reader(module.StreamReader)
    assert hasattr(session, "_request")  # all are there, or nothing is hooked
    assert hasattr(session, "_prepare_headers")
    assert hasattr(request, "send")
    patch(session, "_request", lambda made: _aiohttp_request(made, tapped))
    patch(session, "_prepare_headers", _aiohttp_headers)
    patch(request, "send", _aiohttp_send)


def _aiohttp_request(request: Callable[..., Any], tapped: type[Any]) -> Callable[..., Any]:
    @functools.wraps(request)
    async def hooked(self: Any, method: str, str_or_url: Any, **kwargs: Any) -> Any:
        call, own = _call_of(
            self,
            method,
            lambda: _address(self, str_or_url),
            lambda: _aiohttp_body(self, kwargs)[0],
            lambda: _aiohttp_agent(self, kwargs.get("headers")),
        )
        if own is not None:
            current_call.set(own)
        elif call is not None:  # of a client that sends by any: until it has answered, by this one
            call.http_client = self
        try:
            if call is not None:
                str_or_url, kwargs = _rewritten_arguments(call, self, str_or_url, kwargs)
            response = await request(self, method, str_or_url, **kwargs)
        except BaseException as error:
            if call is not None:
                not_answered(call, error)
            if own is not None:
                raised(own, error)
            raise
        finally:
            if own is not None:
                current_call.set(None)
            elif call is not None:
                call.http_client = None
        if call is not None:
            with _answering:
                tap_reader(call, response, tapped)
        if own is not None:
            returned(own)
        return response

    return hooked


def _address(session: Any, str_or_url: Any) -> SplitResult:
    try:
        return urlsplit(str(session._build_url(str_or_url)))
    except (ValueError, TypeError):  # aiohttp says so
        return urlsplit("")


def _aiohttp_agent(session: Any, headers: Any) -> str:
    """The name that a request goes by; none where its headers can be read but once, by aiohttp."""
    agent: str = "" if isinstance(headers, Iterator) else session._prepare_headers(headers).get("User-Agent", "")
    return agent


class _Whole:
    """Headers to which the session's own are not added."""

    def __init__(self, headers: Any) -> None:
        self.headers = headers


def _aiohttp_headers(prepare: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(prepare)
    def hooked(self: Any, headers: Any) -> Any:
        return headers.headers if isinstance(headers, _Whole) else prepare(self, headers)

    return hooked


_OF_THE_SERVER = (
    "params", "cookies", "auth", "proxy", "proxy_auth", "proxy_headers", "ssl", "verify_ssl", "fingerprint",
    "ssl_context", "server_hostname",
)  # fmt: skip
"""Arguments of an aiohttp request that are for the server it was meant for."""


def _rewritten_arguments(
    call: ModelCall, session: Any, str_or_url: Any, kwargs: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """The address and the arguments by which an aiohttp request goes out, maybe others than the user's own."""
    with _sending:
        if not routing.active():
            return str_or_url, kwargs
        url = session._build_url(str_or_url)
        if kwargs.get("params"):
            url = url.update_query(kwargs["params"])
        body, content_type = _aiohttp_body(session, kwargs)
        made = routing.rewrite(str(url), body, client="aiohttp")
        if made is None:
            return str_or_url, kwargs
        target = url if made.route is None else type(url)(made.url)
        headers = session._prepare_headers(kwargs.get("headers"))
        if content_type is not None:
            headers.setdefault("Content-Type", content_type)
        given = [(_bytes(name), _bytes(value)) for name, value in headers.items()]
        rewritten = kwargs | {"json": None, "data": made.body}
        if made.route is not None:
            if session.auth is not None or session._build_url(target) != target:
                routing.not_reached(
                    "a call by an aiohttp session with an `auth` of its own", "give the key in a header"
                )
                return str_or_url, kwargs
            rewritten = {name: value for name, value in rewritten.items() if name not in _OF_THE_SERVER}
            call.routed_from = made.model
        elif kwargs.get("params"):
            rewritten["params"] = None
        headers.clear()
        for name, value in made.headers(given, without_userinfo(target.authority).encode()):
            headers.add(name.decode("latin-1"), value.decode("latin-1"))
        return target, rewritten | {"headers": _Whole(headers)}
    return str_or_url, kwargs


def _aiohttp_body(session: Any, kwargs: dict[str, Any]) -> tuple[bytes | None, str | None]:
    """The body that aiohttp would send, None where that is not known before, and its content type."""
    data, document = kwargs.get("data"), kwargs.get("json")
    if kwargs.get("compress") or kwargs.get("chunked") or (data is not None and document is not None):
        return None, None
    if document is not None:
        as_bytes = getattr(session, "_json_serialize_bytes", None)
        body = as_bytes(document) if as_bytes is not None else session.json_serialize(document).encode()
        return body, "application/json"
    if isinstance(data, (bytes, bytearray)):
        return bytes(data), "application/octet-stream"
    if isinstance(data, str):
        return data.encode(), "text/plain; charset=utf-8"
    value = getattr(data, "_value", None)  # of a payload
    return (value, getattr(data, "content_type", None)) if isinstance(value, bytes) else (None, None)


def _aiohttp_send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    async def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        call = current_call.get()
        if isinstance(call, ModelCall) and call.http_client is self._session:
            with _sending:
                if may_be_call(self.url.path):  # else it is what the session's middleware sends beside
                    body = getattr(self.body, "_value", self.body)  # of a payload
                    call.sending(bytes(body) if isinstance(body, (bytes, bytearray)) else None, self.url, self.headers)
        return await send(self, *args, **kwargs)

    return hooked


def tap_reader(call: Tapped, response: Any, tapped: type[Any]) -> None:
    reader = response.content
    if response._body is not None or type(reader) is not tapped.__base__:
        call.answered(response.status, response.headers, response._body or b"")
        return
    attempt = call.answered(response.status, response.headers)
    attempt.body_undone = True  # by aiohttp's parser
    _readers[id(reader)] = Tap(None, call, attempt)
    reader.__class__ = tapped
    _complete(reader)


def tapped_reader(base: type[Any]) -> type[Any]:
    """A reader that hands on what is taken from it: the same object, in a class without room of its own."""

    class TappedReader(base):  # type: ignore[misc]
        __slots__ = ()

        def _read_nowait_chunk(self, n: int) -> bytes:
            data: bytes = super()._read_nowait_chunk(n)
            with _tapping:
                tap = _readers.get(id(self))
                if tap is not None:
                    tap._take(data)
                    _complete(self)
            return data

        def feed_eof(self) -> None:
            super().feed_eof()
            with _tapping:
                _complete(self)

        def set_exception(self, exc: Any, *args: Any) -> None:
            super().set_exception(exc, *args)
            with _tapping:
                tap = _end(self)
                if tap is not None:
                    closed = "Connection closed" in str(exc)  # by the user: the response was released or closed
                    tap._ended("closed") if closed else tap._broken(exc)

        def __del__(self, _at_the_end: Callable[[], bool] = sys.is_finalizing) -> None:
            if not _at_the_end():  # then modules lose their names, and what was open has been closed
                with _tapping:
                    tap = _end(self)
                    if tap is not None:
                        tap._ended("closed")

    TappedReader.__name__ = TappedReader.__qualname__ = base.__name__
    return TappedReader


def _complete(reader: Any) -> None:
    if reader._eof and not reader._buffer and (tap := _end(reader)) is not None:
        tap._ended("complete")


def _end(reader: Any) -> Tap | None:
    """The tap of a reader that gives nothing more."""
    tap = _readers.pop(id(reader), None)
    if tap is not None and isinstance(tap._attempt, OpenHttpRequest):
        size = getattr(reader, "total_raw_bytes", None)
        tap._attempt.response_size = lambda: size
    return tap
