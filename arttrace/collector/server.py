"""The collector as a process: spans in and acked here, the store in a child process, until it is told to stop."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.guard import Guard
from arttrace.collector.loader import Loader
from arttrace.collector.owner import HOST, http_server, listen, url_of
from arttrace.collector.sink import Sink
from arttrace.errors import ArttraceError
from arttrace.paths import DataDir


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
    listener = listen(host, port)
    token = secrets.token_urlsafe(32)
    sink = Sink(data)
    loader = Loader(data, token)
    try:
        ready(url_of(listener))
        http_server(CollectorApp(sink, Forward(data), Guard(token, api_key), loader)).run(sockets=[listener])
    finally:
        listener.close()
        sink.close()
        loader.close()


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
