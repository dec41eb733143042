"""`arttrace collect` as a process, with the stock OTLP exporter in front and `arttrace ls` behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import grpc
import httpx
import pyarrow.ipc
import pytest
from click.testing import CliRunner
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from otlp_requests import PROTOBUF, chat_request

from arttrace.collector.otlp.grpc_server import SERVICE
from arttrace.commands import cli
from arttrace.formats.journal_entry import encode_records
from arttrace.records.reward import Reward
from arttrace.store import Store, open_store
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server.owner import hold_store
from arttrace.system.journal import list_segments
from arttrace.system.paths import DataDir

pytestmark = pytest.mark.e2e

T = TypeVar("T")
IDS = [(bytes([n]) * 16, bytes([n]) * 8) for n in (1, 2, 3)]
MAIN = "from arttrace.commands import main; main()"
get, post = (partial(ask, timeout=60) for ask in (httpx.get, httpx.post))
"""With httpx's own 5 s, a query of a store that is being opened went beyond them on a busy machine."""


def arttrace(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *arguments]


def printed(*arguments: str) -> str:
    """What a command of this process, which is not the collector's, says that has to succeed."""
    done = CliRunner().invoke(cli, list(arguments))
    assert done.exit_code == 0, f"{done.output}{done.exception!r}"
    return done.stdout


@contextmanager
def collecting(directory: Path, *options: str) -> Iterator[tuple[str, str]]:
    """`arttrace collect` on free ports: what it said, and its URL."""
    with running(directory, *options) as (_, line):
        yield line, line.split()[2].replace("0.0.0.0", "127.0.0.1")


@contextmanager
def running(directory: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = arttrace("collect", "--port", "0", "--dir", str(directory), *options)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    with running(tmp_path) as (process, line):
        yield process, line.split()[2]


def test_spans_of_the_stock_exporter_appear_in_ls(
    collector: tuple[subprocess.Popen[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    process, url = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    for compression in (Compression.NoCompression, Compression.Gzip):
        export_a_run(compression)

    def listed() -> list[dict[str, object]]:
        found: list[dict[str, object]] = json.loads(printed("ls", "--json", "--dir", str(tmp_path)))
        return found

    summaries = listed()  # beside the running collector
    assert {str(one["entry"]) for one in summaries} == {"greeter NoCompression", "greeter Gzip"}
    assert [(one["calls"], one["agents"]) for one in summaries] == [(1, 1)] * 2
    assert [(one["incomplete"], one["quarantined"]) for one in summaries] == [("", {"no token ids": 1})] * 2
    process.kill()
    process.wait(60)
    assert listed() == summaries


def export_a_run(compression: Compression) -> None:
    provider = TracerProvider(resource=Resource.create({"service.name": "their agent"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(compression=compression)))
    tracer = provider.get_tracer("theirs")
    prompt = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}], "finish_reason": "stop"}]
    with tracer.start_as_current_span("invoke_agent greeter") as root:
        root.set_attribute("gen_ai.operation.name", "invoke_agent")
        root.set_attribute("gen_ai.agent.name", f"greeter {compression.name}")
        with tracer.start_as_current_span("chat m") as span:
            span.set_attribute("gen_ai.operation.name", "chat")
            span.set_attribute("gen_ai.input.messages", json.dumps(prompt))
            span.set_attribute("gen_ai.output.messages", json.dumps(answer))
            span.set_attribute("gen_ai.usage.output_tokens", 1)
    provider.shutdown()  # returns when the collector has answered


def test_a_taken_port_is_reported(collector: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    port = collector[1].rpartition(":")[2]
    second = subprocess.run(arttrace("collect", "--port", port, "--dir", str(tmp_path)), capture_output=True, text=True)
    assert second.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken by another program" in second.stderr


def test_commands_ask_the_collector_that_owns_the_store(
    collector: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    _, url = collector
    answer = post(f"{url}/v1/traces", content=chat_request(IDS), headers={"content-type": PROTOBUF})
    assert (answer.status_code, answer.headers["x-arttrace-collector"]) == (200, "1")

    def shown(name: str, value: float) -> None:
        deadline = time.monotonic() + 60
        while True:
            text = get(f"{url}/metrics").text
            [line] = [one for one in text.splitlines() if one.startswith(f"arttrace_collector_{name} ")]
            if float(line.split()[1]) == value:
                return
            assert time.monotonic() < deadline, text
            time.sleep(0.05)

    shown("owns_store", 1)
    shown("load_lag_seconds", 0)
    shown("ready", 1)
    shown("spans_acknowledged_total", 3)
    assert get(f"{url}/ready").status_code == 200

    def run(*arguments: str) -> str:
        return printed(*arguments, "--dir", str(tmp_path))

    assert json.loads(run("sql", "SELECT count(*) AS n FROM spans", "--json")) == [{"n": 3}]
    assert json.loads(run("show", "01" * 16, "--json"))["trajectory"]["id"] == "01" * 16
    owner = json.loads((tmp_path / "owner.json").read_text())
    key = {"authorization": f"Bearer {owner['token']}"}
    asked = get(f"{url}/api/summaries", params={"limit": 1}, headers=key)  # at the collector's own address
    assert [one["calls"] for one in asked.json()] == [1]
    table = post(
        f"{url}/api/sql",
        json={"query": "SELECT span_id, start_ns FROM spans ORDER BY 1"},
        headers=key | {"accept": "application/vnd.apache.arrow.stream"},
    )
    assert pyarrow.ipc.open_stream(table.content).read_all().column("span_id").to_pylist() == [
        span_id.hex() for _, span_id in IDS
    ]
    assert get(f"{url}/api/summaries").status_code == 401
    reward = encode_records([Reward(id="r", trajectory_id="01" * 16, value=0.5)])
    posted = post(f"{url}/api/records", content=reward, headers=key | {"content-type": "application/x-ndjson"})
    assert posted.status_code == 200
    assert json.loads(run("sql", "SELECT value FROM rewards", "--json")) == [{"value": 0.5}]


def test_the_child_that_owns_the_store_is_started_again(
    collector: tuple[subprocess.Popen[str], str], tmp_path: Path
) -> None:
    data = DataDir(tmp_path)

    def owner() -> int:
        deadline = time.monotonic() + 60
        while (found := read_owner(data)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        return found.pid

    first = owner()
    os.kill(first, signal.SIGKILL)
    answer = post(f"{collector[1]}/v1/traces", content=chat_request(IDS), headers={"content-type": PROTOBUF})
    assert answer.status_code == 200  # nobody waits for the child
    with open_store(data) as store:  # whoever gets the file first
        assert len(store.spans("01" * 16)) == 1
    assert owner() != first


def test_sigterm_ends_it_in_order(tmp_path: Path) -> None:
    """Everything acknowledged is in the store, the store is free, and no process is left."""
    data = DataDir(tmp_path)
    with running(tmp_path) as (process, line):
        owner = eventually(lambda: read_owner(data))
        answer = post(f"{line.split()[2]}/v1/traces", content=chat_request(IDS), headers={"content-type": PROTOBUF})
        assert answer.status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert not Path(f"/proc/{owner.pid}").exists()
        assert not list_segments(data.spool)
        assert read_owner(data) is None


def test_the_loader_ends_with_the_collector(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with running(tmp_path) as (process, _):
        owner = eventually(lambda: read_owner(data))
        process.kill()
        process.wait(60)
        eventually(lambda: not Path(f"/proc/{owner.pid}").exists() or "Z" in state_of(owner.pid))
        with Store.open(data, create=True) as store:
            assert store.summaries() == []


def test_commands_go_on_beside_a_collector_that_restarts(tmp_path: Path) -> None:
    """Whatever is asked while one ends, and the next one or nobody owns the store."""
    data = DataDir(tmp_path)
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with running(tmp_path) as (process, _):
            eventually(lambda: read_owner(data))
            with open_store(data) as store:
                store.append([Reward(id="r", trajectory_id="t", value=1.0)])
                process.send_signal(ending)
                for _ in range(5):
                    assert store.sql("SELECT count(*) FROM rewards")[1] == [(1,)]
                    assert store.prune(before_ns=1).trajectories == 0
                process.wait(60)
                with running(tmp_path):
                    assert store.sql("SELECT count(*) FROM rewards")[1] == [(1,)]


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def eventually(found: Callable[[], T | None]) -> T:
    """What is there in the end."""
    deadline = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return value


def test_a_store_that_another_process_holds_is_asked_there(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    with hold_store(data, create=True) as held, collecting(tmp_path) as (_, url):
        answer = post(f"{url}/v1/traces", content=chat_request(IDS), headers={"content-type": PROTOBUF})
        assert answer.status_code == 200
        assert held.ingest_spool() == 3  # the holder takes in what the collector made durable
        held_by = json.loads(data.owner.read_text())
        key = {"authorization": f"Bearer {held_by['token']}"}
        assert get(f"{url}/api/summaries", headers=key).status_code == 401  # its token is not the collector's
        assert get(f"{url}/health").status_code == 200


def test_stock_exporter_over_grpc(tmp_path: Path) -> None:
    with collecting(tmp_path, "--grpc-port", "0") as (line, _):
        port = line.split("gRPC on port ")[1].split()[0]
        exporter = GrpcExporter(endpoint=f"http://127.0.0.1:{port}", insecure=True, compression=grpc.Compression.Gzip)
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(exporter))
        with provider.get_tracer("their code").start_as_current_span("chat m") as span:
            span.set_attribute("gen_ai.operation.name", "chat")
        provider.shutdown()
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            export = channel.unary_unary(f"/{SERVICE}/Export")
            assert ExportTraceServiceResponse.FromString(export(chat_request(IDS))) == ExportTraceServiceResponse()
            partial = ExportTraceServiceResponse.FromString(export(chat_request([*IDS, (b"short", b"x" * 8)])))
            assert partial.partial_success.rejected_spans == 1
            with pytest.raises(grpc.RpcError) as error:
                export(b"\xff garbage")
            assert error.value.code() == grpc.StatusCode.INVALID_ARGUMENT
            bomb = b"\x0a" + b"\x80\x80\x80\x28" + b"\x00" * (80 << 20)
            with pytest.raises(grpc.RpcError) as error:
                export(bomb, compression=grpc.Compression.Gzip)
            assert error.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
            export(chat_request(IDS))
    with open_store(DataDir(tmp_path)) as store:
        assert store.sql("SELECT count(*) FROM spans")[1] == [(4,)]


def test_others_than_this_machine_need_a_key(tmp_path: Path) -> None:
    refused = subprocess.run(
        arttrace("collect", "--host", "0.0.0.0", "--dir", str(tmp_path)), capture_output=True, text=True
    )
    assert refused.returncode == 1
    assert "--api-key-file" in refused.stderr
    file = tmp_path / "key"
    file.write_text("a key\n")
    with collecting(tmp_path, "--host", "0.0.0.0", "--api-key-file", str(file), "--grpc-port", "0") as (line, url):
        headers = {"content-type": PROTOBUF}
        assert post(f"{url}/v1/traces", content=chat_request(IDS), headers=headers).status_code == 401
        headers["authorization"] = "Bearer a key"
        assert post(f"{url}/v1/traces", content=chat_request(IDS), headers=headers).status_code == 200
        with grpc.insecure_channel(f"127.0.0.1:{line.split('gRPC on port ')[1].split()[0]}") as channel:
            export = channel.unary_unary(f"/{SERVICE}/Export")
            with pytest.raises(grpc.RpcError) as error:
                export(chat_request(IDS))
            assert error.value.code() == grpc.StatusCode.UNAUTHENTICATED
            export(chat_request(IDS), metadata=(("authorization", "Bearer a key"),))
