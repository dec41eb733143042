"""The collector as a process, and the query API in a thread of whoever owns the store for long."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn

from arttrace.collector.api import create_api
from arttrace.collector.app import App, CollectorApp, OwnerApp
from arttrace.collector.guard import Guard
from arttrace.collector.sink import Sink
from arttrace.errors import ArttraceError
from arttrace.paths import DataDir
from arttrace.store import AnyStore, Store, open_store
from arttrace.store.remote import Owner, remove_owner, write_owner

HOST = "127.0.0.1"

_SWITCH_S = 0.0005  # so that loading, in the same process, does not keep a request waiting for 5 ms at each turn
_START_S = 10.0


def serve(
    data: DataDir,
    port: int,
    ready: Callable[[str], None],
    *,
    host: str = HOST,
    api_key: str | None = None,
) -> None:
    """Collects into a data directory until SIGINT or SIGTERM; `ready` is called with the URL once it listens.

    Port 0 takes a free one. Raises ArttraceError when the port is taken, or when others than this machine could send
    without a key.
    """
    if api_key is None and not _is_loopback(host):
        raise ArttraceError(
            f"on {host} anybody who reaches this machine could send spans and read what was captured",
            "Set ARTTRACE_API_KEY or pass --api-key-file; senders then need the header `Authorization: Bearer KEY`.",
        )
    listener = _listen(host, port)
    url = _url(listener)
    owner = Owner(url, os.getpid(), secrets.token_urlsafe(32))

    def on_owner(store: Store | None) -> None:
        if store is None:
            remove_owner(data, owner)
        else:
            write_owner(data, owner)

    sys.setswitchinterval(_SWITCH_S)
    sink = Sink(data, on_owner=on_owner)
    try:
        app = CollectorApp(sink, create_api(data, lambda: sink.store), Guard(owner.token, api_key))
        ready(url)
        _server(app).run(sockets=[listener])
    finally:
        listener.close()
        sink.close()


@contextlib.contextmanager
def hold_store(data: DataDir, *, create: bool = False) -> Iterator[AnyStore]:
    """As open_store, for a process that keeps the store for long: while it owns the file, it answers for it, so that
    no other command fails."""
    with open_store(data, create=create) as store:
        if not isinstance(store, Store):
            yield store
            return
        with _answering(store):
            yield store


@contextlib.contextmanager
def _answering(store: Store) -> Iterator[None]:
    """Serves the API of a store in a thread, on a free loopback port that `owner.json` tells."""
    listener = _listen(HOST, 0)
    owner = Owner(_url(listener), os.getpid(), secrets.token_urlsafe(32))
    server = _server(OwnerApp(create_api(store.data, lambda: store), Guard(owner.token)))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="arttrace-store-api", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _START_S
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        write_owner(store.data, owner)
        yield
    finally:
        remove_owner(store.data, owner)
        server.should_exit = True
        thread.join()
        listener.close()


def _server(app: App) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        interface="asgi3",
        timeout_graceful_shutdown=5,
    )
    return uvicorn.Server(config)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise ArttraceError(
            f"port {port} on {host} cannot be used: {error.strerror}",
            "Another collector may run there; pass another port with --port.",
        ) from error
    return listener


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    reached = {"0.0.0.0": HOST, "::": "::1"}.get(host, host)  # noqa: S104 - where this machine reaches it
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
