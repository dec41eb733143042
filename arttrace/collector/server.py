"""The collector as a process: uvicorn on the loopback interface, until it is told to stop."""

from __future__ import annotations

import socket
from collections.abc import Callable

import uvicorn

from arttrace.collector.app import create_app
from arttrace.collector.sink import Sink
from arttrace.errors import ArttraceError
from arttrace.paths import DataDir

HOST = "127.0.0.1"


def serve(data: DataDir, port: int, ready: Callable[[str], None]) -> None:
    """Collects into a data directory until SIGINT or SIGTERM; `ready` is called with the URL once it listens.

    Port 0 takes a free one. Raises ArttraceError when the port is taken.
    """
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise ArttraceError(
            f"port {port} on {HOST} cannot be used: {error.strerror}",
            "Another collector may run there; pass another port with --port.",
        ) from error
    sink = Sink(data)
    try:
        config = uvicorn.Config(create_app(sink), log_level="warning", access_log=False, lifespan="off")
        ready(f"http://{HOST}:{listener.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[listener])
    finally:
        listener.close()
        sink.close()
