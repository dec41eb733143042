"""What a sender's limits on the number of attributes and events made it drop is missed, and the call says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from arttrace.formats.imported_files import read_file
from arttrace.records.record import Record
from arttrace.records.trajectory import Trajectory
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.conversations import conversations


def exported(turns: int, form: str, *, chunks: int = 0, **limits: Any) -> list[Record]:
    """The call of a long conversation as an instrumentation writes it with OpenTelemetry's SDK: message by message."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(span_limits=SpanLimits(**limits))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    messages = [("system", "Be brief.")]
    messages += [(("user", "assistant")[turn % 2], f"turn {turn}") for turn in range(turns)]
    with provider.get_tracer("instrumentation").start_as_current_span("chat m") as span:
        for chunk in range(chunks):
            span.add_event("llm.content.completion.chunk", {"chunk": chunk})
        if form == "openinference":
            said: dict[str, Any] = {"openinference.span.kind": "LLM", "llm.model_name": "m"}
            prompt, reply = "llm.input_messages.{}.message.{}", "llm.output_messages.0.message"
        else:
            said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.system": "openai"}
            prompt, reply = "gen_ai.prompt.{}.{}", "gen_ai.completion.0"
        for number, (role, text) in enumerate(messages):
            if form == "events":
                span.add_event(f"gen_ai.{role}.message", {"content": text})
            else:
                said |= {prompt.format(number, "role"): role, prompt.format(number, "content"): text}
        span.set_attributes({**said, f"{reply}.role": "assistant", f"{reply}.content": "the end"})
    return read_file(encode_spans(exporter.get_finished_spans()).SerializeToString(), "spans").records


def stored(records: list[Record], tmp_path: Path) -> Trajectory:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(records)
        [run] = store.trajectories()
    return run


@pytest.mark.parametrize("form", ["openllmetry", "openinference", "events"])
def test_a_conversation_beyond_the_limits_is_not_taken_for_whole(tmp_path: Path, form: str) -> None:
    run = stored(exported(151, form), tmp_path)
    [placed] = run.calls
    assert 60 <= len(placed.call.messages) < 152
    assert placed.call.choices[0].message.text == "the end"
    assert placed.call.truncated
    named = "OTEL_SPAN_EVENT_COUNT_LIMIT" if form == "events" else "OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT"
    assert [(count, named in name) for name, count in run.unread.items()] == [(1, True)]
    assert [one.fault for one in conversations(run)] == ["truncated"]


@pytest.mark.parametrize(
    "said",
    [
        {"form": "openllmetry", "turns": 151, "max_span_attributes": 1000},
        {"form": "openinference", "turns": 61},
        {"form": "events", "turns": 101},
        {"form": "openllmetry", "turns": 21, "chunks": 300},
    ],
    ids=["by a wider limit", "attributes", "events", "chunks of a stream, whose messages are attributes"],
)
def test_a_conversation_within_them_is_whole(tmp_path: Path, said: dict[str, Any]) -> None:
    run = stored(exported(**said), tmp_path)
    [placed] = run.calls
    assert len(placed.call.messages) == said["turns"] + 1
    assert (placed.call.truncated, run.unread, run.incomplete) == (False, {}, "")
