"""A server on loopback for the requests of tools, and the clients that ask it."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import requests

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow

BODY = b"found " * 100


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # or each answer waits 40 ms for an acknowledgement

    def do_GET(self) -> None:
        self.server.seen.append((self.path, {name.lower(): value for name, value in self.headers.items()}))
        size = int(self.headers.get("content-length") or 0)
        self.rfile.read(size)
        path = self.path.partition("?")[0]
        if path == "/moved":
            self._answer(302, b"", location="/found")
        elif path == "/missing":
            self._answer(404, b"nothing here")
        elif path == "/zipped":
            self._answer(200, gzip.compress(BODY), **{"content-encoding": "gzip"})
        elif path == "/cookie":
            said = {"access-control-allow-credentials": "true", "x-auth": "k3y-of-the-server-0123"}
            self._answer(200, b"", **said, cookie2="session=abc; Expires=Wed 2026; SameSite=lax")
        elif path == "/linked":
            self._answer(200, b"", link="</a>", Link="</b>")
        elif path == "/torn":
            self.send_response(200)
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b"x" * 10)
            self.close_connection = True
        else:
            self._answer(200, BODY)

    do_POST = do_GET

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body)), "set-cookie": "session=of-the-server"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


class Site:
    """A server on loopback, and what it was sent."""

    def __init__(self, running: Any) -> None:
        self.seen: list[tuple[str, dict[str, str]]] = running.seen
        self.host = f"127.0.0.1:{running.server_port}"
        self.url = f"http://{self.host}"


@contextmanager
def serving() -> Iterator[Site]:
    running: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    running.seen = []
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield Site(running)
    finally:
        running.shutdown()
        running.server_close()
        thread.join()


def http_spans(spans: list[SpanRow]) -> list[SpanRow]:
    return [span for span in spans if semconv.HTTP_METHOD in span.attributes]


def by_httpx(module: Any, method: str, url: str, **options: Any) -> bytes:
    answer = module.request(method, url, follow_redirects=True, **options)
    return bytes(answer.content)


def by_async_httpx(module: Any, method: str, url: str, **options: Any) -> bytes:
    async def ask() -> bytes:
        async with module.AsyncClient(follow_redirects=True) as client:
            return bytes((await client.request(method, url, **options)).content)

    return asyncio.run(ask())


def by_requests(_: Any, method: str, url: str, **options: Any) -> bytes:
    data = options.pop("content", None)
    return requests.request(method, url, data=data, timeout=30, **options).content


def by_aiohttp(_: Any, method: str, url: str, **options: Any) -> bytes:
    async def ask() -> bytes:
        data = options.pop("content", None)
        async with aiohttp.ClientSession() as session, session.request(method, url, data=data, **options) as answer:
            return await answer.read()

    return asyncio.run(ask())


CLIENTS = {
    "httpx": ("httpx", by_httpx),
    "httpx, async": ("httpx", by_async_httpx),
    "httpx2": ("httpx2", by_httpx),
    "httpx2, async": ("httpx2", by_async_httpx),
    "requests": ("requests", by_requests),
    "aiohttp": ("aiohttp", by_aiohttp),
}


def in_tool(ask: Callable[[], Any]) -> None:
    """Runs it in a tool of a run."""
    with arttrace.trajectory(name="agent"):
        arttrace.tool(name="look_up")(ask)()
