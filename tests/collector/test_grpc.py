"""Senders over gRPC that do not get to the end of what they send keep nobody else out."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from arttrace.collector.otlp import grpc_server, receiver
from arttrace.collector.otlp.receiver import TraceReceiver
from arttrace.collector.otlp.request_bodies import Budget
from arttrace.collector.spool import Spool
from arttrace.store.server.auth import Authorizer
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

METHOD = f"/{grpc_server.SERVICE}/Export"


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(DataDir(tmp_path))
    yield spool
    spool.close()


def serving(spool: Spool, port: int = 0) -> Any:
    budget = Budget(1 << 20)
    traces = TraceReceiver(spool, budget, 1 << 20)
    return grpc_server.serving_grpc(
        traces, budget, Authorizer(None), host="127.0.0.1", port=port, max_body_bytes=1 << 20
    )


def request() -> bytes:
    message = ExportTraceServiceRequest()
    spans = message.resource_spans.add().scope_spans.add().spans
    spans.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, name="chat m", start_time_unix_nano=5, end_time_unix_nano=9)
    return message.SerializeToString()


class Stalled:
    """A call whose message does not come."""

    def __init__(self, port: int) -> None:
        self._over = threading.Event()
        self._channel = grpc.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.use_local_subchannel_pool", 1)])
        self.call = self._channel.stream_unary(METHOD).future(self._nothing())

    def _nothing(self) -> Iterator[bytes]:
        self._over.wait(100)
        yield from ()

    def close(self) -> None:
        self._over.set()
        self._channel.close()


def test_stalled_uploads_take_no_thread(spool: Spool) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(serving(spool))
        for _ in range(2 * grpc_server._THREADS):
            stack.callback(Stalled(port).close)
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            for _ in range(20):
                assert channel.unary_unary(METHOD)(request(), timeout=60) == b""


def test_a_message_over_the_limit_is_counted_as_a_request_that_was_refused(spool: Spool) -> None:
    with serving(spool) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(METHOD)
        with pytest.raises(grpc.RpcError) as refused:
            method(bytes((1 << 20) + 1), timeout=60)
        assert refused.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "over 1048576 bytes: send smaller batches" in refused.value.details()
        with pytest.raises(grpc.RpcError) as by_grpc:
            method(bytes((2 << 20) + 1), timeout=60)
        assert by_grpc.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "larger than max" in by_grpc.value.details()
    assert spool.unread.counted == 1, "what gRPC refuses by itself is told to the sender alone"


def test_connections_are_bounded(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_CONNECTIONS", 5)
    with ExitStack() as stack:
        port = stack.enter_context(serving(spool))
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)) for _ in range(5)]
        assert all(one.recv(1) for one in idle)  # the server's settings: they are through to it
        for _ in range(20):
            with socket.create_connection(("127.0.0.1", port), 60) as one_too_many:
                assert closed_at_once(one_too_many)
        idle.pop().close()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            method = channel.unary_unary(METHOD)
            assert method(request(), timeout=60, wait_for_ready=True) == b""
    assert spool.acknowledged == 1


def closed_at_once(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_as_many_connections_as_leave_others_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    resource = pytest.importorskip("resource")
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    assert grpc_server.connections() == 170
    monkeypatch.setattr(resource, "getrlimit", lambda _: (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert grpc_server.connections() == 1000


def test_a_port_that_is_taken_is_an_error_with_a_remedy(spool: Spool) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        pytest.raises(ArttraceError, match="cannot be used for gRPC"),
        serving(spool, port=taken.getsockname()[1]),
    ):
        pass


def test_log_records_come_by_their_own_service(spool: Spool) -> None:
    logs = ExportLogsServiceRequest()
    records = logs.resource_logs.add().scope_logs.add().log_records
    records.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, event_name="gen_ai.choice", observed_time_unix_nano=5)
    records.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, event_name="other", observed_time_unix_nano=5)
    with serving(spool) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(f"/{grpc_server.LOGS_SERVICE}/Export")
        assert method(logs.SerializeToString(), timeout=60) == b""
    assert spool.acknowledged == 1


def test_a_damaged_log_record_is_refused_alone(spool: Spool) -> None:
    logs = ExportLogsServiceRequest()
    records = logs.resource_logs.add().scope_logs.add().log_records
    for words in ("one", "two"):
        record = records.add(trace_id=b"\x01" * 16, span_id=b"\x02" * 8, event_name="gen_ai.choice", time_unix_nano=5)
        record.body.string_value = words
    with serving(spool) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(f"/{grpc_server.LOGS_SERVICE}/Export")
        answer = method(logs.SerializeToString().replace(b"two", b"\xffwo", 1), timeout=60)
    partial = ExportLogsServiceResponse.FromString(answer).partial_success
    assert (partial.rejected_log_records, spool.acknowledged, spool.refused) == (1, 1, 1)
    assert partial.error_message.startswith("a log record, or what it stands in, holds text that is no UTF-8")


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("of ours"), OSError(28, "No space left on device")])
def test_what_fails_in_the_collector_is_to_be_sent_again(
    spool: Spool, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object) -> None:
        raise error

    with serving(spool) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        method = channel.unary_unary(METHOD)
        with monkeypatch.context() as patch:
            patch.setattr(receiver, "encode_otlp", fails)
            with pytest.raises(grpc.RpcError) as refused:
                method(request(), timeout=60)
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE  # type: ignore[attr-defined]
        assert method(request(), timeout=60) == b""


def test_a_stalled_upload_ends(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "_AGE_S", 1.0)
    monkeypatch.setattr(grpc_server, "_GRACE_S", 0.5)
    with serving(spool) as port:
        stalled = Stalled(port)
        try:
            assert isinstance(stalled.call.exception(timeout=60), grpc.RpcError)
        finally:
            stalled.close()


def test_what_has_come_is_answered_while_the_server_ends(spool: Spool) -> None:
    with serving(spool) as port, grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        answers = [channel.unary_unary(METHOD).future(request(), timeout=60) for _ in range(50)]
        first = answers[0].result()
    assert first == b""
    codes = {answer.code() for answer in answers}
    assert codes <= {grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}


def test_of_who_has_no_key_no_message_is_read(spool: Spool) -> None:
    """It may be unpacked to a thousand times its size, and many at a time are gigabytes."""
    budget = Budget(1 << 20)
    traces, guard = TraceReceiver(spool, budget, 1 << 20), Authorizer("token", "key")
    with (
        grpc_server.serving_grpc(traces, budget, guard, host="127.0.0.1", port=0, max_body_bytes=1 << 20) as port,
        grpc.insecure_channel(f"127.0.0.1:{port}", compression=grpc.Compression.Gzip) as channel,
    ):
        export = channel.unary_unary(METHOD)
        for sent in (request(), bytes(3 << 20)):  # the second is larger than what gRPC reads
            with pytest.raises(grpc.RpcError) as refused:
                export(sent, metadata=[("authorization", "Bearer another")], timeout=60)
            assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
            assert "Bearer KEY" in refused.value.details()
        assert export(request(), metadata=[("authorization", "Bearer key")], timeout=60) == b""
    assert (spool.acknowledged, spool.unread.counted) == (1, 0)
