"""`arttrace collect` as a process, with the stock OTLP exporter in front and `arttrace ls` behind."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

pytestmark = pytest.mark.e2e

MAIN = "from arttrace.commands import main; main()"


def arttrace(*arguments: str) -> list[str]:
    return [sys.executable, "-c", MAIN, *arguments]


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = arttrace("collect", "--port", "0", "--dir", str(tmp_path))
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield process, line.split()[2]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(20)


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_spans_of_the_stock_exporter_appear_in_ls(
    collector: tuple[subprocess.Popen[str], str],
    tmp_path: Path,
    compression: Compression,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, url = collector
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", url)
    provider = TracerProvider(resource=Resource.create({"service.name": "their agent"}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(compression=compression)))
    tracer = provider.get_tracer("theirs")
    prompt = [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]
    answer = [{"role": "assistant", "parts": [{"type": "text", "content": "hi"}], "finish_reason": "stop"}]
    with tracer.start_as_current_span("invoke_agent greeter") as root:
        root.set_attribute("gen_ai.operation.name", "invoke_agent")
        root.set_attribute("gen_ai.agent.name", "greeter")
        with tracer.start_as_current_span("chat m") as span:
            span.set_attribute("gen_ai.operation.name", "chat")
            span.set_attribute("gen_ai.input.messages", json.dumps(prompt))
            span.set_attribute("gen_ai.output.messages", json.dumps(answer))
            span.set_attribute("gen_ai.usage.output_tokens", 1)
    provider.shutdown()  # returns when the collector has answered

    def listed() -> list[dict[str, object]]:
        command = arttrace("ls", "--json", "--dir", str(tmp_path))
        found: list[dict[str, object]] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        return found

    [summary] = listed()  # beside the running collector
    assert (summary["entry"], summary["calls"], summary["agents"]) == ("greeter", 1, 1)
    assert (summary["incomplete"], summary["quarantined"]) == ("", {"no token ids": 1})
    process.kill()
    process.wait(10)
    assert listed() == [summary]


def test_a_taken_port_is_told(collector: tuple[subprocess.Popen[str], str], tmp_path: Path) -> None:
    port = collector[1].rpartition(":")[2]
    second = subprocess.run(arttrace("collect", "--port", port, "--dir", str(tmp_path)), capture_output=True, text=True)
    assert second.returncode == 1
    assert f"port {port} on 127.0.0.1 cannot be used" in second.stderr
