"""Long-term ownership of the store: the owner answers for it on loopback, and `owner.json` says where."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn

from arttrace.store import AnyStore, Store, open_store
from arttrace.store.access.owner_file import StoreOwner, remove_owner, write_owner
from arttrace.store.file.retention import keep_to_wish
from arttrace.store.server.api import create_api
from arttrace.store.server.app import OwnerApp
from arttrace.store.server.asgi import App
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.timeouts import HeadDeadlineProtocol
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

HOST = "127.0.0.1"
GRACE_S = 5
"""For requests under way when a server ends."""

_START_S = 10.0
_BACKLOG = 2048
_LOOK_S = 3600.0


@contextlib.contextmanager
def hold_store(
    data: DataDir, *, create: bool = False, metrics: Callable[[], bytes] | None = None
) -> Iterator[AnyStore]:
    """As open_store, for a process that keeps the store for long: while it owns the file, it answers for it, so that
    no other command fails. `metrics` gives what it says at /metrics, in Prometheus' text format."""
    with contextlib.ExitStack() as answers:

        def answer(own: Store) -> None:
            answers.enter_context(answering(own, metrics=metrics))
            answers.enter_context(_keeping_to_wish(own))

        store = open_store(data, create=create, on_taken_over=answer)
        answers.callback(store.close)  # when it answers nobody any more
        if isinstance(store, Store):
            answer(store)
        yield store


@contextlib.contextmanager
def _keeping_to_wish(store: Store) -> Iterator[None]:
    """In the block, the store keeps runs for as long as captured programs asked, as if it were opened every hour."""
    ended = threading.Event()

    def look() -> None:
        while True:
            keep_to_wish(store, store.data)
            if ended.wait(_LOOK_S):
                return

    thread = threading.Thread(target=look, name="arttrace-retention", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextlib.contextmanager
def answering(store: Store, token: str | None = None, *, metrics: Callable[[], bytes] | None = None) -> Iterator[None]:
    """Serves the API of a store in a thread, on a free loopback port that is in `owner.json`."""
    listener = listen(HOST, 0)
    owner = StoreOwner(url_of(listener), os.getpid(), token or secrets.token_urlsafe(32))
    ending = asyncio.Event()
    app = OwnerApp(create_api(store.data, lambda: store, ending), Authorizer(owner.token), metrics)
    server = http_server(app, ending)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="arttrace-store-api", daemon=True)
    thread.start()
    try:
        deadline = time.monotonic() + _START_S
        while not server.started and thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
        write_owner(store.data, owner)
        store.when_made_again(lambda: write_owner(store.data, owner))
        yield
    finally:
        remove_owner(store.data, owner)
        server.should_exit = True
        thread.join()
        listener.close()


class _EndingServer(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ending: asyncio.Event | None) -> None:
        super().__init__(config)
        self._ending = ending

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._ending is not None:
            self._ending.set()
        await super().shutdown(sockets)


def http_server(app: App, ending: asyncio.Event | None = None) -> uvicorn.Server:
    """A server of an application; run it with a socket that `listen` gave. When it ends, `ending` is set, and requests
    under way have GRACE_S."""
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        http=HeadDeadlineProtocol,
        interface="asgi3",
        timeout_keep_alive=75,  # SDKs export every 5 s, httpx keeps a connection for 5 s: both met uvicorn's own 5 s
        timeout_graceful_shutdown=GRACE_S,
    )
    return _EndingServer(config, ending)


class Ending:
    """SIGINT and SIGTERM end a server of the main thread, whenever they come: before it runs, while it does, and
    without effect when what it used is being closed. Nothing is raised, as the event loop may lose that while it
    starts."""

    def __init__(self) -> None:
        self._server: uvicorn.Server | None = None
        self._is_stopped = False

    @classmethod
    @contextlib.contextmanager
    def on_signals(cls) -> Iterator[Ending]:
        """In the body; for other threads than the main one it changes nothing."""
        ending = cls()
        if threading.current_thread() is not threading.main_thread():
            yield ending
            return
        before = {n: signal.signal(n, lambda *_: ending._tell()) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield ending
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, server: uvicorn.Server, listener: socket.socket) -> None:
        """Answer until it is asked to end."""
        self._server = server
        server.should_exit = self._is_stopped
        server.run(sockets=[listener])

    def _tell(self) -> None:
        self._is_stopped = True
        if self._server is not None:
            self._server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises ArttraceError when the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # With its protocol named: asyncio switches Nagle's algorithm off only for sockets that say they are TCP.
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen(_BACKLOG)  # from here on nobody is turned away, though answers come a little later
        except OSError:
            listener.close()
            raise
    except OSError as error:
        another = "Choose another with --port, or --port 0 for any free one."
        if error.errno == errno.EADDRINUSE:
            raise ArttraceError(f"port {port} on {host} is taken by another program", another) from error
        if error.errno in (errno.EACCES, errno.EPERM):
            raise ArttraceError(f"port {port} on {host} is not for this user: {error.strerror}", another) from error
        raise ArttraceError(
            f"cannot listen on {host}:{port}: {error.strerror or error}", "--host takes an address of this machine."
        ) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Where this machine reaches a listening socket."""
    host, port = listener.getsockname()[:2]
    reached = {"0.0.0.0": HOST, "::": "::1"}.get(host, host)  # noqa: S104 - not listened to, only named
    return f"http://[{reached}]:{port}" if ":" in reached else f"http://{reached}:{port}"
