"""The collector as a process: spans in and acked here, the store in a child process, until it is asked to stop."""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from arttrace.collector.app import CollectorApp
from arttrace.collector.forward import Forward
from arttrace.collector.otlp.request_bodies import MAX_BODY_BYTES
from arttrace.collector.retention import Retention
from arttrace.collector.spool import Spool
from arttrace.collector.supervisor import StoreSupervisor
from arttrace.store.access.owner_file import owner_line
from arttrace.store.file.retention import Limits
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.owner import HOST, Ending, http_server, listen, url_of
from arttrace.system.addresses import is_loopback
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir
from arttrace.system.private_files import make_directory


def serve(
    data: DataDir,
    port: int,
    ready: Callable[[str, int | None], None],
    *,
    host: str = HOST,
    grpc_port: int | None = None,
    api_key: str | None = None,
    retention: Limits | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Collects into a data directory until SIGINT or SIGTERM; `ready` is called with the URL, and the port for gRPC if
    there is one, once it listens. `say` gets lines for the log.

    Port 0 takes a free one. Raises ArttraceError when the port is taken, or when others than this machine could send
    without a key; OSError when the data directory cannot be written.
    """
    if api_key is None and not is_loopback(host):
        raise ArttraceError(
            f"on {host} anybody who reaches this machine could send spans and read what was captured",
            "Set ARTTRACE_API_KEY or pass --api-key-file; senders then need the header `Authorization: Bearer KEY`.",
        )
    _require_writable(data.spool)
    listener = listen(host, port)
    token = secrets.token_urlsafe(32)
    guard = Authorizer(token, api_key)
    with ExitStack() as stack:
        stack.callback(listener.close)
        ending = stack.enter_context(Ending.on_signals())  # a second one does not break the closing off
        serving = None if grpc_port is None else _grpc()
        if owner := owner_line(data):
            say(f"{owner}: it loads what is collected here too, and answers what this one is asked")
        loader = StoreSupervisor(data, token)
        stack.callback(loader.close)
        sink = Spool(data, say=say)
        stack.callback(sink.close)  # before the loader, which then loads the rest
        closing = asyncio.Event()
        app = CollectorApp(sink, Forward(data, closing), guard, loader, say=say)
        if serving is not None and grpc_port is not None:
            grpc_port = stack.enter_context(
                serving(app.traces, app.budget, guard, host=host, port=grpc_port, max_body_bytes=MAX_BODY_BYTES)
            )
        stack.callback(Retention(data, retention or Limits(), say).close)
        ready(url_of(listener), grpc_port)
        ending.run(http_server(app, closing), listener)


def _require_writable(directory: Path) -> None:
    """Makes the directory where it is missing. Raises OSError if it cannot be written."""
    make_directory(directory)
    if not os.access(directory, os.W_OK):
        read_only = os.statvfs(directory).f_flag & os.ST_RDONLY
        number = errno.EROFS if read_only else errno.EACCES
        raise OSError(number, os.strerror(number), str(directory))


def _grpc() -> Callable[..., AbstractContextManager[int]]:
    try:
        from arttrace.collector.otlp.grpc_server import serving_grpc
    except ModuleNotFoundError as error:
        raise ArttraceError(
            f"gRPC needs the package {error.name}, which is not installed", "Install it: pip install 'arttrace[grpc]'"
        ) from error
    return serving_grpc
