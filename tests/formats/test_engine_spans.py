"""Spans that say a model's name, or tokens, and are no calls. Those that a serving engine makes of what it served (vLLM
0.32's `llm_request`, with `--otlp-traces-endpoint`) stand in the traces of the clients that asked; the calls are those
that the clients recorded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from arttrace.formats.imported_files import read_file
from arttrace.records import semconv
from arttrace.records.record import encode_record
from arttrace.records.span import Attributes, SpanRow
from arttrace.store import Store
from arttrace.system.paths import DataDir

USER = json.dumps([{"role": "user", "parts": [{"type": "text", "content": "hi"}]}])
SAYS = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "yes"}], "finish_reason": "stop"}])


def call(number: int, attempts: int | None = None) -> SpanRow:
    attributes: Attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "gen_ai.input.messages": USER,
        "gen_ai.output.messages": SAYS,
        **({semconv.ATTEMPTS: attempts} if attempts else {}),
    }
    return SpanRow("1" * 32, f"{number:016x}", "chat m", number, number + 9, "f" * 16, attributes=attributes)


def served(number: int, request: str) -> SpanRow:
    attributes: Attributes = {
        "gen_ai.latency.time_in_queue": 0.0,
        "gen_ai.latency.e2e": 0.5,
        "gen_ai.usage.prompt_tokens": 7,
        "gen_ai.usage.completion_tokens": 3,
        "gen_ai.request.id": request,
        "gen_ai.request.n": 1,
    }
    id = f"{number + 100:016x}"
    above = f"{number:016x}" if number else "f" * 16
    return SpanRow(
        "1" * 32, id, "llm_request", number, number + 5, above, attributes=attributes, scope_name="vllm.tracing.otel"
    )


AGENT = SpanRow("1" * 32, "f" * 16, "invoke_agent a", 1, 99, attributes={"gen_ai.operation.name": "invoke_agent"})


@pytest.mark.parametrize(
    ("spans", "unread"),
    [
        ([call(1), served(1, "a")], 0),
        ([call(1), served(0, "a")], 0),
        ([call(1), served(1, "a"), served(2, "a")], 0),  # two samples of one request
        ([call(1, attempts=2), served(1, "a"), served(2, "b")], 0),
        ([call(1), served(1, "a"), served(2, "b")], 2),
        ([served(1, "a")], 1),
    ],
    ids=["below its call", "beside it", "samples", "attempts", "a call that nobody recorded", "no call recorded"],
)
def test_a_span_of_the_engine_is_no_call_that_could_not_be_read(
    spans: list[SpanRow], unread: int, tmp_path: Path
) -> None:
    calls = sum(span.name == "chat m" for span in spans)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([AGENT, *spans])
        [run] = store.trajectories()
        assert store.sql("SELECT count(*) FROM calls")[1] == [(calls,)]
    assert len(run.calls) == calls
    assert sum(run.unread.values()) == unread
    imported = read_file(b"\n".join(encode_record(span) for span in [AGENT, *spans]), "spans")
    assert sum(imported.unread.values()) == unread


@pytest.mark.parametrize(("kind", "unread"), [("CHAIN", 0), ("EMBEDDING", 0), ("", 1)])
def test_a_span_that_openinference_says_is_no_call_is_none_that_could_not_be_read(
    kind: str, unread: int, tmp_path: Path
) -> None:
    """As openinference-vercel makes them of the AI SDK's outer spans, with model and tokens of what is below."""
    attributes: Attributes = {"llm.model_name": "m", "llm.token_count.completion": 3, "gen_ai.request.model": "m"}
    above = SpanRow("1" * 32, "e" * 16, "ai.generateText", 1, 9, attributes=attributes)
    if kind:
        attributes["openinference.span.kind"] = kind
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([AGENT, above, call(1)])
        runs = store.trajectories()
    assert sum(sum(run.unread.values()) for run in runs) == unread


def test_a_chain_with_messages_may_be_a_call(tmp_path: Path) -> None:
    attributes: Attributes = {
        "openinference.span.kind": "CHAIN",
        "llm.model_name": "m",
        "llm.output_messages.0.message.role": "assistant",
        "llm.output_messages.0.message.content": "yes",
    }
    chain = SpanRow("1" * 32, "e" * 16, "chat", 1, 9, "f" * 16, attributes=attributes)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append([AGENT, chain])
        [run] = store.trajectories()
    assert sum(run.unread.values()) == 1
