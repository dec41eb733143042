"""Addresses and keys with which no server can be asked, and answers that no server of ours gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from arttrace.loop.remote.connection import ServerConnection
from arttrace.store.access.client import OwnerClient
from arttrace.system.errors import ServingError, StoreError


class _Page(BaseHTTPRequestHandler):
    """A web site that has a page for every address, as single-page applications do."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.rfile.read(int(self.headers["content-length"] or 0))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html></html>")

    do_POST = do_GET


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


async def test_a_page_in_place_of_an_answer_is_said(url: str) -> None:
    server = ServerConnection(url)
    for asked in (server.status(), server.train(None, {})):
        with pytest.raises(ServingError, match=f"what {url} answers cannot be read .*: is it arttrace's server?"):
            await asked


@pytest.mark.parametrize(
    ("url", "key", "why"),
    [
        ("http://[::1", None, "the address cannot be read: Invalid IPv6 URL"),
        ("http://gpu-box:99999", None, "the address cannot be read: Port out of range"),
        ("http://", None, "the address names no host"),
        ("http://gpu..box", None, "the address cannot be read: .*label empty or too long"),
        ("http://gpu\x01box", None, "the address has letters that cannot be printed"),
        ("http://gpu-box:8000", "secrét", "the key has letters beyond ASCII or a line break"),
        ("http://gpu-box:8000", "secret\n", "the key has letters beyond ASCII or a line break"),
    ],
)
def test_what_can_never_be_asked_is_refused_at_once(url: str, key: str | None, why: str) -> None:
    with pytest.raises(ServingError, match=why) as refused:
        ServerConnection(url, key)
    with pytest.raises(StoreError, match=why):
        OwnerClient(url, key)
    assert "secr" not in str(refused.value)
