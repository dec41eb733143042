"""A stand-in for the mock server of the openai package's route tests.

    python benchmarks/openai_suite/stand_in_mock_server.py [port]

Those tests (tests/api_resources) expect a server made from an OpenAPI file (Prism or Steady on port 4010), which the
source distribution does not hold. This one is made from the installed package: every method of every resource is called
once on a client that sends nothing, which tells its route (method and path) and the type its answer is parsed into. A
request to that route is answered with the smallest value of that type, or with one event of its stream's type where it
asks for a stream. Of a request nothing but the route is checked: an unknown one gets 404, which fails its test.
It prints its address, then serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import inspect
import json
import re
import sys
import threading
import types
import typing
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any, Literal, NoReturn, TypeVar, Union, get_args, get_origin

import typing_extensions
from openai import OpenAI
from openai._resource import SyncAPIResource
from pydantic import BaseModel

PLACEHOLDER = "stand-in"
DEEPEST = 12  # levels of models in an answer
ASKS_FOR_STREAM = re.compile(rb'"stream": ?true|name="stream"\r\n\r\ntrue')
FILLINGS: tuple[object, ...] = (PLACEHOLDER, {}, [], b"file", 1)


class NoValue(Exception):
    """No value of finite depth was found for a type."""


@dataclass(frozen=True, slots=True)
class Route:
    """What a method of the client asks, and the types of what it is answered with; `event` is None without a stream."""

    method: str
    path: str
    beta: str
    answer: Any
    event: Any

    @property
    def pattern(self) -> re.Pattern[str]:
        """Matches the method and path of a request; each placeholder stands for one segment of the path."""
        return re.compile(re.escape(f"{self.method} {self.path}").replace(re.escape(PLACEHOLDER), "[^/]+"))


class _Asked(Exception):
    """Carries the route out of a method of the client that was about to send its request."""


class _Silent(OpenAI):
    """A client that sends nothing: its methods end with the route that they would have asked."""

    def request(self, cast_to: Any, options: Any, *, stream: bool = False, stream_cls: Any = None) -> NoReturn:
        del stream
        headers = options.headers if isinstance(options.headers, dict) else {}
        event = get_args(stream_cls)[0] if get_args(stream_cls) else None
        path = "/" + options.url.partition("?")[0].lstrip("/")
        raise _Asked(Route(options.method.upper(), path, str(headers.get("OpenAI-Beta", "")), cast_to, event))


def resources(holder: object) -> Iterator[SyncAPIResource]:
    """Every resource of a client (`client.chat`, `client.chat.completions`, ...)."""
    for name in dir(type(holder)):
        if name.startswith(("_", "with_")) or not hasattr(getattr(type(holder), name), "func"):
            continue
        found = getattr(holder, name)
        if isinstance(found, SyncAPIResource):
            yield found
            yield from resources(found)


def asked(method: Any) -> Route | None:
    """The route of a method of a resource, None when it asks none (a helper without a request)."""
    for signature in (inspect.signature(method), *map(inspect.signature, typing.get_overloads(method.__func__))):
        needed = [
            parameter
            for name, parameter in signature.parameters.items()
            if name != "self" and parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]
        required = [parameter for parameter in needed if parameter.default is parameter.empty]
        in_path = [parameter for parameter in required if str(parameter.annotation) == "str"]
        for filling in FILLINGS:
            given = {parameter.name: filling for parameter in required}
            given |= {parameter.name: PLACEHOLDER for parameter in in_path}
            for arguments in (given, given | {parameter.name: filling for parameter in needed[:2]}):
                try:
                    method(**arguments)
                except _Asked as shown:
                    return typing.cast("Route", shown.args[0])
                except Exception:  # noqa: BLE001 - a method that refuses these arguments is tried with the next
                    continue
    return None


def routes() -> list[Route]:
    """Every route of the installed package, those with fewer placeholders first."""
    client = _Silent(api_key=PLACEHOLDER, admin_api_key=PLACEHOLDER, base_url="http://127.0.0.1:1", max_retries=0)
    found: dict[tuple[str, str, str, str], Route] = {}
    for resource in resources(client):
        for name, _ in inspect.getmembers(type(resource), inspect.isfunction):
            if not name.startswith(("_", "poll", "wait")) and name not in vars(SyncAPIResource):
                route = asked(getattr(resource, name))
                if route:
                    found.setdefault((route.method, route.path, route.beta, str(route.answer)), route)
    return sorted(found.values(), key=lambda route: (route.path.count(PLACEHOLDER), route.path, route.beta))


def smallest(kind: Any, depth: int = 0) -> Any:
    """The smallest JSON value that is parsed into a type: required fields only, one item in each list."""
    if isinstance(kind, (typing.TypeAliasType, typing_extensions.TypeAliasType) if _HAS_ALIAS else ()):
        kind = kind.__value__
    origin, arguments = get_origin(kind) or kind, get_args(kind)
    if depth > DEEPEST:
        raise NoValue(str(kind))
    if origin is Annotated:
        return smallest(arguments[0], depth)
    if origin in (Union, types.UnionType):
        return _first(arguments, depth)
    if origin is Literal:
        return arguments[0]
    if origin in _SIMPLE:
        return _SIMPLE[origin]
    if isinstance(kind, TypeVar) or not inspect.isclass(origin):
        return {}
    if issubclass(origin, Enum):
        return next(iter(origin)).value
    if issubclass(origin, BaseModel):
        return _instance(kind, depth)
    if issubclass(origin, (list, tuple, set)) or origin.__name__ in ("Sequence", "Iterable"):
        try:
            return [smallest(arguments[0], depth + 1)] if arguments else []
        except NoValue:
            return []
    return {}


_HAS_ALIAS = hasattr(typing, "TypeAliasType")
_SIMPLE: dict[Any, Any] = {
    str: "text",
    int: 1,
    float: 0.5,
    bool: True,
    bytes: "text",
    type(None): None,
    None: None,
    datetime: "2026-01-01T00:00:00Z",
    date: "2026-01-01",
    object: {},
    Any: {},
}


def _first(variants: tuple[Any, ...], depth: int) -> Any:
    for variant in sorted(variants, key=lambda variant: variant is type(None)):
        try:
            return smallest(variant, depth)
        except NoValue:
            continue
    raise NoValue(str(variants))


def _instance(model: Any, depth: int) -> dict[str, Any]:
    return {
        field.alias or name: smallest(field.annotation, depth + 1)
        for name, field in model.model_fields.items()
        if field.is_required() or field.default_factory is not None  # the loose client fills in no such default
    }


def _merged(values: list[Any]) -> Any:
    """One answer for the methods that share a route: the first, with the fields that only the others have."""
    first = values[0]
    if not isinstance(first, dict):
        return first
    others = [value for value in values if isinstance(value, dict)]
    return {name: value for one in reversed(others) for name, value in one.items()}


class Server(ThreadingHTTPServer):
    """A server that does not mind clients that hang up."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print what went wrong, unless the client hung up."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """Answers one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    known: list[tuple[re.Pattern[str], Route]]

    def handle_one_request(self) -> None:
        """Answer one request, whatever its method."""
        self.raw_requestline = self.rfile.readline(65537)
        if not self.raw_requestline or not self.parse_request():
            self.close_connection = True
            return
        self._answer(self._body())
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Stay silent."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _answer(self, body: bytes) -> None:
        asks = f"{self.command} {self.path.partition('?')[0]}"
        matching = [route for pattern, route in self.known if pattern.fullmatch(asks)]
        if not matching:
            self._send(404, "application/json", b'{"error": {"message": "the stand-in does not know this route"}}')
            return
        beta = self.headers.get("OpenAI-Beta", "")
        route = next((route for route in matching if route.beta == beta), matching[0])
        if route.event is not None and ASKS_FOR_STREAM.search(body):
            event = smallest(route.event)
            name = f"event: {event['type']}\n" if isinstance(event, dict) and "type" in event else ""
            self._send(200, "text/event-stream", f"{name}data: {json.dumps(event)}\n\ndata: [DONE]\n\n".encode())
        elif route.answer in (None, type(None)):
            self._send(204, "", b"")
        elif getattr(route.answer, "__name__", "") == "HttpxBinaryResponseContent":
            self._send(200, "application/octet-stream", b"content")
        elif route.answer is str:
            self._send(200, "text/plain", b"content")
        else:
            alike = [other for other in matching if (other.path, other.beta) == (route.path, route.beta)]
            self._send(200, "application/json", json.dumps(_merged([smallest(one.answer) for one in alike])).encode())

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        if kind:
            self.send_header("Content-Type", kind)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def main(port: int) -> None:
    """Serve until standard input ends; the first line printed is the address."""
    with warnings.catch_warnings(action="ignore"):
        Handler.known = [(route.pattern, route) for route in routes()]
    with Server(("127.0.0.1", port), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        sys.stdin.read()
        server.shutdown()


if __name__ == "__main__":
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("port", nargs="?", type=int, default=0, help="0 (the default) takes a free one")
    main(options.parse_args().port)
