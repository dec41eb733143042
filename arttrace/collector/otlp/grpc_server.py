"""OTLP over gRPC, for senders that speak nothing else: the same checks, the same journal, the same acks.

Messages are read by an event loop and handled in threads, so that one whose message does not come takes none. Its
connection ends by its age: gRPC has no limit on the time for a message. Nor has it one on connections: senders reach it
through a `BoundedListener`. A message over the limit is refused here, where it can be counted: what gRPC refuses by
itself, over twice the limit, it tells the sender alone. Interceptors, stream handlers and callbacks see it as they see
a call that the sender broke off, which is sent again.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn, TypeVar

import grpc

from arttrace.collector.otlp.bounded_listener import DESCRIPTORS_EACH, BoundedListener
from arttrace.collector.otlp.receiver import TraceReceiver
from arttrace.collector.otlp.request_bodies import Budget
from arttrace.collector.otlp.responses import partial_success
from arttrace.formats.otlp.request import MalformedRequest, TooManySpans
from arttrace.store.server.auth import Authorizer
from arttrace.store.server.responses import RequestRefused
from arttrace.system.errors import ArttraceError

SERVICE = "opentelemetry.proto.collector.trace.v1.TraceService"
LOGS_SERVICE = "opentelemetry.proto.collector.logs.v1.LogsService"

_T = TypeVar("_T")

_THREADS = 16
_STOP_S = 5.0
_AGE_S = 60.0
"""After which a connection begins no further request; a sender makes a new one."""
_GRACE_S = 20.0
"""For which it may then bring those to an end that it has begun."""
_HANDSHAKE_S = 10.0
_STREAMS = 100
"""Of one connection, at a time."""
_CONNECTIONS = 1000
"""At a time, where the process may have enough descriptors."""


@contextlib.contextmanager
def serving_grpc(
    traces: TraceReceiver, budget: Budget, guard: Authorizer, *, host: str, port: int, max_body_bytes: int
) -> Iterator[int]:
    """Serves `Export` while it is entered, and gives the port. Raises ArttraceError when the port is taken."""
    methods = [
        (
            name,
            grpc.unary_unary_rpc_method_handler(_Export(traces, budget, logs, max_body_bytes)),
        )  # bytes in, bytes out
        for name, logs in ((SERVICE, False), (LOGS_SERVICE, True))
    ]
    options = [
        ("grpc.max_receive_message_length", 2 * max_body_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.max_connection_age_ms", int(_AGE_S * 1000)),
        ("grpc.max_connection_age_grace_ms", int(_GRACE_S * 1000)),
        ("grpc.server_handshake_timeout_ms", int(_HANDSHAKE_S * 1000)),
        ("grpc.max_concurrent_streams", _STREAMS),
    ]
    with _private_folder() as private, ThreadPoolExecutor(_THREADS, "arttrace-grpc") as threads, _loop() as run:

        async def start() -> tuple[grpc.aio.Server, str | int]:
            server = grpc.aio.server(threads, interceptors=[_KeyFirst(guard)], options=options)
            server.add_generic_rpc_handlers(
                [grpc.method_handlers_generic_handler(name, {"Export": method}) for name, method in methods]
            )
            bound = server.add_insecure_port(f"unix:{private}/grpc" if private else "127.0.0.1:0")
            await server.start()
            return server, f"{private}/grpc" if private else bound

        server, behind = run(start())
        listener = BoundedListener(behind, connections())
        try:
            try:
                bound = run(listener.start(host, port))
            except OSError as error:
                raise ArttraceError(
                    f"port {port} on {host} cannot be used for gRPC: {error.strerror or error}",
                    "Pass another port with --grpc-port.",
                ) from error
            yield bound
        finally:
            run(server.stop(_STOP_S))
            run(listener.stop())


def connections() -> int:
    """How many connections are open at most: so many that half of the descriptors of this process stay for others."""
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return _CONNECTIONS
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS if soft == resource.RLIM_INFINITY else min(_CONNECTIONS, soft // (2 * DESCRIPTORS_EACH))


@contextlib.contextmanager
def _private_folder() -> Iterator[str]:
    """For a Unix socket; empty where gRPC has none."""
    if not hasattr(socket, "AF_UNIX"):
        yield ""
        return
    with tempfile.TemporaryDirectory(prefix="arttrace-") as folder:  # 0700
        yield folder


@contextlib.contextmanager
def _loop() -> Iterator[Callable[[Coroutine[Any, Any, _T]], _T]]:
    """Runs coroutines in an event loop of its own thread."""
    loop = asyncio.SelectorEventLoop()
    thread = threading.Thread(target=loop.run_forever, name="arttrace-grpc-loop", daemon=True)
    thread.start()
    try:
        yield lambda coroutine: asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _KeyFirst(grpc.aio.ServerInterceptor):  # type: ignore[misc]
    """Refuses whoever has no key before a message is read, and unpacked."""

    def __init__(self, guard: Authorizer) -> None:
        self._guard = guard

    async def intercept_service(
        self, continuation: Callable[[Any], Awaitable[Any]], handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """The method of a call."""
        given = _authorization(handler_call_details.invocation_metadata)
        if self._guard.api_key is None or self._guard.knows(given):
            return await continuation(handler_call_details)
        return grpc.stream_unary_rpc_method_handler(_refuse)


async def _refuse(_messages: object, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, "send the metadata `authorization: Bearer KEY`")


class _Export:
    """A service's one method. UNAVAILABLE asks to send it again, INVALID_ARGUMENT is for good."""

    def __init__(self, traces: TraceReceiver, budget: Budget, logs: bool, limit: int) -> None:
        self._traces = traces
        self._logs = logs
        self._budget = budget
        self._limit = limit

    def __call__(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        if len(body) > self._limit:
            _abort(context, grpc.StatusCode.RESOURCE_EXHAUSTED, self._traces.too_large(self._limit))
        taken = 0
        try:
            self._budget.take(len(body))
            taken = len(body)
            checked, durable = self._traces.take_now(body, logs=self._logs)
            if durable is not None:
                durable.result()
            return partial_success(checked.refused, checked.reason)
        except (MalformedRequest, TooManySpans) as error:
            _abort(context, grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except RequestRefused as error:
            _abort(context, grpc.StatusCode.UNAVAILABLE, str(error))
        except OSError as error:
            _abort(context, grpc.StatusCode.UNAVAILABLE, f"the journal cannot be written: {error.strerror or error}")
        except Exception as error:  # noqa: BLE001 - a fault of ours, of which gRPC would say that nothing is to be sent again
            _abort(context, grpc.StatusCode.UNAVAILABLE, f"the collector failed: {type(error).__name__}")
        finally:
            self._budget.give_back(taken)


def _authorization(metadata: Iterable[tuple[str, str | bytes]] | None) -> bytes:
    for key, value in metadata or ():
        if key == "authorization":
            return value.encode() if isinstance(value, str) else bytes(value)
    return b""


def _abort(context: Any, code: grpc.StatusCode, words: str) -> NoReturn:
    context.abort(code, words)
    raise AssertionError
