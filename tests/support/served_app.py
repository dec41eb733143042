"""An ASGI application behind a real HTTP server, in a thread of the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from arttrace.store.server.asgi import App
from arttrace.store.server.owner import HOST, http_server, listen, url_of


@contextlib.contextmanager
def served(app: App, ending: asyncio.Event | None = None) -> Iterator[str]:
    """Its URL; the server has ended after the block."""
    listener = listen(HOST, 0)
    server = http_server(app, ending)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield url_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
