"""Beside other people's tracing, in one process: the user's OpenTelemetry, Langfuse, Logfire, weave; uvloop and trio.

Each test asks the same three things: our record is whole, theirs is what it was without us, and the trace ids agree.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from chat_server import ChatServer
from opentelemetry.instrumentation.utils import suppress_instrumentation
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]
KEY = "sk-test-0123456789"


@pytest.fixture
def client(server: ChatServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key=KEY) as made:
        yield made


def ask(client: openai.OpenAI, text: str = "hi") -> str:
    answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])
    return str(answer.choices[0].message.content)


def whole(spans: list[SpanRow], names: list[str]) -> None:
    """One trajectory of these spans, nothing missing."""
    (trajectory,) = build_trajectories(spans)
    assert trajectory.incomplete == ""
    ended = [span.name for span in spans if span.end_ns]  # a slow machine shows the run in progress as well
    assert sorted(ended) == sorted(names)


def provider(sampler: Any, limits: SpanLimits | None = None) -> tuple[Any, InMemorySpanExporter]:
    exporter = InMemorySpanExporter()
    made = TracerProvider(sampler=sampler, span_limits=limits)
    made.add_span_processor(SimpleSpanProcessor(exporter))
    return made.get_tracer("theirs"), exporter


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF])
def test_a_users_provider_sampler_and_limits(sampler: Any, client: openai.OpenAI, spans: Spans) -> None:
    tracer, exporter = provider(sampler, SpanLimits(max_span_attributes=1, max_attribute_length=3))
    with tracer.start_as_current_span("request") as request, arttrace.trajectory(name="run"):
        with tracer.start_as_current_span("inside") as inside:
            ask(client)
        assert inside.parent.span_id == request.get_span_context().span_id if inside.is_recording() else True
    rows = spans()
    whole(rows, ["chat m", "invoke_agent run"])
    assert {row.trace_id for row in rows} == {f"{request.get_span_context().trace_id:032x}"}
    (call,) = [row for row in rows if row.name == "chat m"]
    assert len(call.attributes) > 10
    assert "answer 0 to hi" in call.attributes[semconv.OUTPUT_MESSAGES]
    theirs = [span.name for span in exporter.get_finished_spans()]
    assert theirs == (["inside", "request"] if sampler is ALWAYS_ON else [])


def test_what_is_suppressed_is_nobodys_call(client: openai.OpenAI, spans: Spans) -> None:
    with arttrace.trajectory(name="run"):
        with suppress_instrumentation():
            ask(client, "judge this")
        ask(client)
    whole(spans(), ["chat m", "invoke_agent run"])


# --- Langfuse ---------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def langfuse_exporter() -> Iterator[InMemorySpanExporter]:
    """A Langfuse client (it is one per process and key) whose spans stay here."""
    langfuse = pytest.importorskip("langfuse")
    exporter = InMemorySpanExporter()
    running = langfuse.Langfuse(
        public_key="pk-lf-test",
        secret_key="sk-lf-test",
        base_url="http://127.0.0.1:9",
        tracer_provider=TracerProvider(),
        span_exporter=exporter,
        flush_at=1,
    )
    yield exporter
    running.shutdown()


@pytest.fixture
def langfuse_spans(langfuse_exporter: InMemorySpanExporter) -> InMemorySpanExporter:
    """What Langfuse exports in this test."""
    langfuse_exporter.clear()
    return langfuse_exporter


@pytest.mark.parametrize("order", ["ours outside", "theirs outside"])
@pytest.mark.parametrize("kind", ["function", "coroutine", "generator", "async generator"])
def test_langfuse_observe_in_both_orders(
    order: str, kind: str, client: openai.OpenAI, spans: Spans, langfuse_spans: InMemorySpanExporter
) -> None:
    from langfuse import get_client, observe

    def both(fn: Any) -> Any:
        ours, theirs = arttrace.trajectory(name="run"), observe(name="theirs")
        return ours(theirs(fn)) if order == "ours outside" else theirs(ours(fn))

    @both
    def function() -> list[str]:
        return [ask(client), ask(client)]

    @both
    async def coroutine() -> list[str]:
        return [ask(client), await asyncio.to_thread(ask, client)]

    @both
    def generator() -> Iterator[str]:
        yield ask(client)
        yield ask(client)

    @both
    async def async_generator() -> Any:
        yield ask(client)
        yield await asyncio.to_thread(ask, client)

    async def collected() -> list[str]:
        return [item async for item in async_generator()]

    run: dict[str, Callable[[], list[str]]] = {
        "function": function,
        "coroutine": lambda: asyncio.run(coroutine()),
        "generator": lambda: list(generator()),
        "async generator": lambda: asyncio.run(collected()),
    }
    assert run[kind]() == ["answer 0 to hi"] * 2
    rows = spans()
    whole(rows, ["chat m", "chat m", "invoke_agent run"])
    get_client().flush()
    theirs = langfuse_spans.get_finished_spans()
    assert [span.name for span in theirs] == ["theirs"]
    assert theirs[0].context is not None
    if order == "theirs outside":
        assert {row.trace_id for row in rows} == {f"{theirs[0].context.trace_id:032x}"}


# --- Logfire and weave --------------------------------------------------------------------------------------------
def test_logfire(client: openai.OpenAI, spans: Spans) -> None:
    reason = "logfire is not installed: its pydantic plugin slows every import of openai"
    logfire = pytest.importorskip("logfire", reason=reason)
    exporter = InMemorySpanExporter()
    local = logfire.configure(
        local=True,
        send_to_logfire=False,
        console=False,
        metrics=False,
        additional_span_processors=[SimpleSpanProcessor(exporter)],
    )
    with local.span("theirs"), arttrace.trajectory(name="run"):
        ask(client)
    local.force_flush()
    rows = spans()
    whole(rows, ["chat m", "invoke_agent run"])
    theirs = [span for span in exporter.get_finished_spans() if span.name == "theirs"]
    assert {row.trace_id for row in rows} == {f"{span.context.trace_id:032x}" for span in theirs}
    assert not [span for span in exporter.get_finished_spans() if "arttrace" in str(span.instrumentation_scope)]


@pytest.mark.parametrize("order", ["ours outside", "theirs outside"])
def test_weave_op_in_both_orders(order: str, client: openai.OpenAI, spans: Spans) -> None:
    """Without an account weave's decorator wraps and sends nothing."""
    weave = pytest.importorskip("weave")
    ours, theirs = arttrace.trajectory(name="run"), weave.op

    def both(fn: Any) -> Any:
        return ours(theirs(fn)) if order == "ours outside" else theirs(ours(fn))

    @both
    def function(text: str) -> str:
        return ask(client, text)

    @both
    async def coroutine(text: str) -> str:
        return ask(client, text)

    assert function("hi") == asyncio.run(coroutine(text="hi")) == "answer 0 to hi"
    rows = spans()
    assert [trajectory.incomplete for trajectory in build_trajectories(rows)] == ["", ""]
    assert sorted(row.name for row in rows) == ["chat m", "chat m", "invoke_agent run", "invoke_agent run"]
    entries = [row.attributes[semconv.ENTRY_ARGUMENTS] for row in rows if row.name == "invoke_agent run"]
    assert entries == ['{"text":"hi"}'] * 2


# --- event loops ------------------------------------------------------------------------------------------------
async def twin(client: openai.AsyncOpenAI) -> None:
    for text in ("same", "and more"):
        await client.chat.completions.create(model="m", messages=[{"role": "user", "content": text}])


def test_uvloop(server: ChatServer, spans: Spans) -> None:
    uvloop = pytest.importorskip("uvloop")

    async def main() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY) as client, arttrace.trajectory(name="run"):
            await asyncio.gather(twin(client), twin(client))

    uvloop.run(main())
    executions = [row.attributes[semconv.EXECUTION_ID] for row in spans() if row.name == "chat m"]
    assert sorted(executions.count(each) for each in set(executions)) == [2, 2]


def test_tasks_of_trio_are_distinguished(server: ChatServer, spans: Spans) -> None:
    trio = pytest.importorskip("trio")

    async def main() -> None:
        make = openai.AsyncOpenAI(base_url=server.url, api_key=KEY)
        async with make as client, arttrace.trajectory(name="run"), trio.open_nursery() as nursery:
            nursery.start_soon(twin, client)
            nursery.start_soon(twin, client)

    trio.run(main)
    rows = spans()
    executions = [row.attributes[semconv.EXECUTION_ID] for row in rows if row.name == "chat m"]
    assert sorted(executions.count(each) for each in set(executions)) == [2, 2]
    whole(rows, ["chat m"] * 4 + ["invoke_agent run"])
