"""One contender of benchmarks/capture.py in a process of its own: makes the calls asked for and says what they cost.

Reads `{"row": ..., "calls": ...}` as JSON lines and answers each with nanoseconds per batch: CPU of the user's thread,
CPU of the whole process until everything is written or sent, and time on the clock of the calls alone. With
`"hooks": "out"` arttrace's hooks are taken out for that batch; with `"hooks": "alone"` they are in, and what they hand
to the recorder is dropped: nothing is decoded, encoded or written.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.metadata import version
from typing import Any, cast

RIVALS = {
    "OpenInference": ("openinference.instrumentation.openai", "openinference-instrumentation-openai"),
    "OpenLLMetry": ("opentelemetry.instrumentation.openai", "opentelemetry-instrumentation-openai"),
    "OpenTelemetry": ("opentelemetry.instrumentation.openai_v2", "opentelemetry-instrumentation-openai-v2"),
}
CONTENT_ON = {
    "TRACELOOP_TRACE_CONTENT": "true",
    "OTEL_SEMCONV_STABILITY_OPT_IN": "gen_ai_latest_experimental",
    "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "SPAN_ONLY",
}
PARALLEL = 32
QUESTION = "Which hill is the quartz on, and who boxes there?"

Flush = Callable[[], object]
Scope = Callable[[], AbstractContextManager[Any]]


def _tools() -> list[dict[str, Any]]:
    properties = {
        name: {"type": "string", "description": f"The {name} to look for, as the user said it."}
        for name in ("query", "place", "language", "since")
    }
    schema = {"type": "object", "properties": properties, "required": ["query"]}
    names = ("search", "read", "write", "ask", "calculate")
    return [
        {"type": "function", "function": {"name": name, "description": f"Tool to {name}.", "parameters": schema}}
        for name in names
    ]


def _conversation() -> list[dict[str, Any]]:
    """40 messages: a system message, a question, and 19 rounds of a tool call and its result."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You answer with the help of tools, in as few words as the question needs."},
        {"role": "user", "content": QUESTION},
    ]
    for turn in range(19):
        function = {"name": "search", "arguments": json.dumps({"query": f"quartz {turn}", "language": "en"})}
        call = {"id": f"call_{turn}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        found = f"Result {turn}: " + "seven wizards box calmly near the quartz hills. " * 6
        messages.append({"role": "tool", "tool_call_id": f"call_{turn}", "content": found})
    return messages


SHORT: dict[str, Any] = {
    "model": "model",
    "temperature": 0.5,
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}],
}
REQUESTS: dict[str, dict[str, Any]] = {
    "short": SHORT,
    "tools": {**SHORT, "messages": _conversation(), "tools": _tools()},
    "stream": {**SHORT, "stream": True},
    "tokens": {**SHORT, "logprobs": True, "extra_body": {"return_token_ids": True}},
    "parallel": SHORT,
}


def _nothing() -> None:
    return None


def _instrument(contender: str, server: str, data: str) -> tuple[Flush, Scope, str]:
    """Switch the contender on: its flush, what to run a batch in, its version."""
    if contender == "bare":
        return _nothing, nullcontext, ""
    if contender == "arttrace":
        import arttrace

        arttrace.init(dir=data)
        return arttrace.flush, lambda: arttrace.trajectory(name="batch"), version("arttrace")
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    logging.getLogger("opentelemetry").setLevel(logging.ERROR)  # warnings about a full span are not part of the price
    module, package = RIVALS[contender]
    os.environ.update(CONTENT_ON)
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{server}/v1/traces")))
    import_module(module).OpenAIInstrumentor().instrument(tracer_provider=provider)
    return provider.force_flush, nullcontext, version(package)


@contextmanager
def _dropping() -> Iterator[None]:
    """Drop what is handed to the recorder, as after `uninstrument`."""
    from arttrace.capture.export import lifecycle

    recorder = lifecycle.recorder()
    recorder.is_off = True
    try:
        yield
    finally:
        recorder.is_off = False


def _places(openai: Any) -> list[tuple[type, str]]:
    """Where arttrace hooks the openai client and the HTTP libraries it may use."""
    base = openai._base_client
    places = [(owner, "request") for owner in (base.SyncAPIClient, base.AsyncAPIClient)]
    for library in ("httpx", "httpx2"):
        if library in sys.modules:
            owners = (sys.modules[library].Client, sys.modules[library].AsyncClient)
            places += [(owner, name) for owner in owners for name in ("send", "_send_single_request")]
    return places


class Worker:
    """The clients of one contender, and its clocks."""

    def __init__(self, contender: str, server: str, data: str) -> None:
        import openai

        self._flush, self._scope, self.version = _instrument(contender, server, data)
        self._hooked = {place: getattr(*place) for place in _places(openai)} if contender == "arttrace" else {}
        self._loop = asyncio.new_event_loop()
        self._clients = {
            row: (openai.AsyncOpenAI if row == "parallel" else openai.OpenAI)(
                base_url=f"{server}/{row}/v1", api_key="sk-benchmark-0123456789"
            )
            for row in REQUESTS
        }

    def batch(self, row: str, calls: int, *, hooks: str = "in") -> dict[str, int]:
        """Make the calls; what they cost in nanoseconds."""
        for (owner, name), hook in self._hooked.items():
            setattr(owner, name, hook.__wrapped__ if hooks == "out" else hook)
        work = self._parallel if row == "parallel" else self._one_by_one
        scope, flush = (nullcontext, _nothing) if hooks == "out" else (self._scope, self._flush)
        gc.collect()
        total, wall, user = time.process_time_ns(), time.perf_counter_ns(), time.thread_time_ns()
        with scope(), _dropping() if hooks == "alone" else nullcontext():
            work(row, calls)
        user, wall = time.thread_time_ns() - user, time.perf_counter_ns() - wall
        flush()
        return {"user": user, "total": time.process_time_ns() - total, "wall": wall}

    def _one_by_one(self, row: str, calls: int) -> None:
        create, request = cast("Any", self._clients[row].chat.completions).create, REQUESTS[row]
        for _ in range(calls):
            answer = create(**request)
            if request.get("stream"):
                for _chunk in answer:
                    pass

    def _parallel(self, row: str, calls: int) -> None:
        create, request = self._clients[row].chat.completions.create, REQUESTS[row]

        async def some(count: int) -> None:
            for _ in range(count):
                await create(**request)

        async def all_of_them() -> None:
            shares = [calls // PARALLEL + (number < calls % PARALLEL) for number in range(PARALLEL)]
            await asyncio.gather(*map(some, shares))

        self._loop.run_until_complete(all_of_them())


def take_core(number: int) -> None:
    """Run on one core only, where the system lets a process choose and has that many."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        if len(cores) > number:
            os.sched_setaffinity(0, {cores[number]})


def main(contender: str, server: str, data: str) -> None:
    """Answer the parent's lines until it closes the pipe."""
    take_core(0)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a contender prints
    try:
        worker = Worker(contender, server, data)
    except ImportError as error:
        if contender not in RIVALS:
            raise
        print(json.dumps({"missing": str(error)}), file=answers, flush=True)
        return
    print(json.dumps({"version": worker.version, "openai": version("openai")}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(worker.batch(**json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
