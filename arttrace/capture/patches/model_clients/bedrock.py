"""Hooks boto3's calls of models at Amazon Bedrock, at the place that every call of botocore's clients goes through.

Recorded are Converse and what is sent to models by InvokeModel in a form that is read, whole and streamed, and so are
aiobotocore's calls, whose requests the hooks of aiohttp and httpx see. Nothing is added to a request, which is signed.
Whatever else botocore sends to models is counted, so that the program's end can say that it was not captured.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from inspect import iscoroutinefunction
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

from arttrace.capture.base.guard import Guard
from arttrace.capture.calls import routing
from arttrace.capture.calls.model_call import ModelCall, UnrecordedCall, begin_call
from arttrace.capture.calls.tapped_raw import TappedRaw
from arttrace.capture.export import summary
from arttrace.capture.patches.httpx import Tap, current_call, not_answered, note_passed
from arttrace.capture.patches.model_clients.made import awaited, made
from arttrace.capture.patches.registry import patch
from arttrace.wire import api_of
from arttrace.wire.apis.bedrock.invoke_model import api_of_body
from arttrace.wire.apis.bedrock.paths import is_call

_beginning = Guard("beginning a model call")
_sending = Guard("reading a request")
_answering = Guard("reading a response")
_counting = Guard("counting what is not captured")

_PATHS = {"messages": "/v1/messages", "chat_completions": "/chat/completions"}
"""Of an API whose form a body has, where the path that it is sent to does not tell."""


def install_calls(module: ModuleType) -> None:
    """Hook `botocore.endpoint.Endpoint.make_request`: one call, with all its attempts."""
    patch(module.Endpoint, "make_request", _make_request)


def install_requests(module: ModuleType) -> None:
    """Hook `botocore.httpsession.URLLib3Session.send`, by which boto3 sends."""
    patch(module.URLLib3Session, "send", _send)


def install_events(module: ModuleType) -> None:
    """Hook `botocore.eventstream.EventStream._parse_event`, which tells the last event of a stream: a stream refers to
    itself, and one that is not read to the end of its bytes would stay open until the garbage collector comes."""
    patch(module.EventStream, "_parse_event", _parse_event)


def _make_request(make_request: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(make_request)
    def hooked(self: Any, operation_model: Any, request_dict: Any, *args: Any, **kwargs: Any) -> Any:
        call, run = None, made
        with _beginning:
            if iscoroutinefunction(self._send_request):  # it is aiobotocore's, which sends by other libraries
                call, run = _begin(None, operation_model, request_dict), awaited
            else:
                call = _begin(self.http_session, operation_model, request_dict)
        if call is None:
            return make_request(self, operation_model, request_dict, *args, **kwargs)
        return run(call, make_request, self, operation_model, request_dict, *args, **kwargs)

    return hooked


def _begin(session: Any, operation_model: Any, request_dict: Any) -> ModelCall | UnrecordedCall | None:
    if operation_model.service_model.service_name != "bedrock-runtime":
        return None
    path = _path(request_dict["url_path"], request_dict["body"])
    return None if path is None else begin_call(session, path=path, provider="aws.bedrock")


def _path(path: str, body: Any) -> str | None:
    """A path that tells the API of a request; None where it is none that is read."""
    if not is_call(path):
        return None
    if api_of(path) is not None:
        return path
    api = api_of_body(body) if isinstance(body, bytes | bytearray | str) else None  # else it is a file, not read yet
    return None if api is None else _PATHS.get(api) or f"{path.rpartition('/')[0]}/converse"


def _send(send: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(send)
    def hooked(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        call = None
        with _counting:
            call = _call_of(self, request)
        if call is None:
            return send(self, request, *args, **kwargs)
        with _sending:
            body = request.body.encode() if isinstance(request.body, str) else request.body or b""
            if routing.active():
                routing.rewrite(request.url, None, client="boto3")  # which says that routes do not reach it
            call.sending(bytes(body) if isinstance(body, bytes | bytearray) else None, request.url, _headers(request))
        try:
            response = send(self, request, *args, **kwargs)
        except BaseException as error:
            not_answered(call, error)
            raise
        with _answering:
            if response._content is None:
                attempt = call.answered(response.status_code, response.headers)
                response.raw = TappedRaw(response.raw, Tap(response.raw, call, attempt))
            else:
                call.answered(response.status_code, response.headers, response.content)
        return response

    return hooked


def _headers(request: Any) -> dict[str, str]:
    """The headers as text: botocore has encoded them."""
    return {
        name.lower(): value.decode("latin-1") if isinstance(value, bytes) else str(value)
        for name, value in request.headers.items()
    }


def _call_of(session: Any, request: Any) -> ModelCall | None:
    """The call that a request is an attempt of. One that is of none and asks a model is counted."""
    call = current_call.get()
    if isinstance(call, ModelCall) and call.http_client is session:
        return call
    if call is None and request.method == "POST":
        url = urlsplit(request.url)
        note_passed(url.hostname, unquote(url.path), summary.BY_NONE)
    return None


def _parse_event(parse: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(parse)
    def hooked(self: Any, *args: Any, **kwargs: Any) -> Any:
        event: Any = None
        try:
            event = parse(self, *args, **kwargs)
        finally:
            with _answering:
                if (event is None or "metadata" in event) and isinstance(self._raw_stream, TappedRaw):
                    self._raw_stream._self_tap._ended("complete")
        return event

    return hooked
