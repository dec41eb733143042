"""Beside Logfire a streamed call is recorded once, though Logfire makes two spans of it: one of the request, and, when
the stream has ended, a log of what came."""

from __future__ import annotations

import asyncio
import contextvars
import json
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry import context, trace
from opentelemetry.propagate import extract, inject
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.trace import SpanKind, Status, StatusCode
from scripted_server import Reply, ScriptedServer, serve_script
from spool import finished_spans

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]
KEY = "sk-test-0123456789"
PACKAGES = {
    "5.4.0": ["executing==2.3.0", "logfire-sdk==5.4.0"],
    "4.19.0": ["executing==2.3.0", "logfire==4.19.0"],
}
"""The second is the first whose logs name an operation."""


class Logfire:
    """Its two spans of a stream, as logfire._internal.integrations.llm_providers makes them (version 5.4)."""

    def __init__(self) -> None:
        self.tracer = TracerProvider().get_tracer("logfire.openai")

    @contextmanager
    def request(self, text: str) -> Iterator[Report]:
        """The span of a request. What it gives is for the stream that is read later."""
        around: dict[str, str] = {}
        inject(around)
        said = {
            semconv.OPERATION_NAME: "chat",
            semconv.REQUEST_MODEL: "m",
            semconv.INPUT_MESSAGES: json.dumps([{"role": "user", "parts": [{"type": "text", "content": text}]}]),
        }
        named, typed = "Chat Completion with {request_data[model]!r}", {"logfire.span_type": "span"}
        with self.tracer.start_as_current_span(named, kind=SpanKind.CLIENT, attributes={**said, **typed}) as span:
            yield Report(self.tracer, around, said)
            span.set_attribute(semconv.RESPONSE_MODEL, "m")


class Report:
    """The log of one stream."""

    def __init__(self, tracer: trace.Tracer, around: dict[str, str], said: dict[str, str]) -> None:
        self._tracer, self._around, self._said = tracer, around, said

    def made(self, answer: str, *, id: str = "c1", failed: bool = False) -> None:
        """Make it, where the stream has ended."""
        output = [{"role": "assistant", "parts": [{"type": "text", "content": answer}], "finish_reason": "stop"}]
        said = {
            **self._said,
            "logfire.span_type": "log",
            "duration": 0.0,
            semconv.OUTPUT_MESSAGES: json.dumps(output),
            semconv.RESPONSE_ID: id,
            semconv.USAGE_INPUT_TOKENS: 3,
            semconv.USAGE_OUTPUT_TOKENS: 2,
        }
        before = context.attach(extract(self._around))
        try:
            span = self._tracer.start_span("streaming response from {request_data[model]!r} took", attributes=said)
            if failed:
                span.set_status(Status(StatusCode.ERROR, "ConnectionError: gone"))
            span.end()
        finally:
            context.detach(before)


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with serve_script(lambda asked: Reply("seen " + asked.users[-1])) as serving:
        yield serving


@pytest.fixture
def client(server: ScriptedServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as made:
        yield made


@pytest.fixture
def theirs() -> Logfire:
    return Logfire()


def asked(text: str) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "stream": True}


def streamed(theirs: Logfire, client: openai.OpenAI, text: str) -> Iterator[Any]:
    """A stream of a client that Logfire has instrumented."""
    with theirs.request(text) as report:
        stream = client.chat.completions.create(**asked(text))
    return read(stream, report)


def read(stream: Any, report: Report) -> Iterator[Any]:
    words = []
    try:
        for chunk in stream:
            words.append((chunk.choices[0].delta.content or "") if chunk.choices else "")
            yield chunk
    finally:
        report.made("".join(words))


def answers(spans: list[SpanRow]) -> list[tuple[str, str]]:
    """What was asked and answered, of the calls of one complete run; each is among those that it counts."""
    run = built(spans)
    assert (run.incomplete, run.unread) == ("", {})
    return [(one.call.messages[-1].text, one.call.choices[0].message.text) for one in run.calls]


def built(spans: list[SpanRow]) -> Trajectory:
    (run,) = build_trajectories(spans)
    return run


@pytest.mark.parametrize("around", [False, True], ids=["no span around", "a span around"])
@pytest.mark.parametrize("kind", ["function", "coroutine", "generator"])
def test_a_stream_is_one_call(
    kind: str, around: bool, theirs: Logfire, client: openai.OpenAI, server: ScriptedServer, spans: Spans
) -> None:
    @arttrace.trajectory
    def function() -> None:
        list(streamed(theirs, client, "one"))

    @arttrace.trajectory
    def generator() -> Iterator[Any]:
        yield from streamed(theirs, client, "one")

    @arttrace.trajectory
    async def coroutine() -> None:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY) as other:
            with theirs.request("one") as report:
                stream = await other.chat.completions.create(**asked("one"))

            async def chunks() -> AsyncIterator[Any]:
                try:
                    async for chunk in stream:
                        yield chunk
                finally:
                    report.made("seen one ")

            assert [chunk async for chunk in chunks()]

    run = {"function": function, "coroutine": lambda: asyncio.run(coroutine()), "generator": lambda: list(generator())}
    if around:
        with theirs.tracer.start_as_current_span("around"):
            run[kind]()
    else:
        run[kind]()
    assert answers(spans()) == [("one", "seen one ")]


def test_a_stream_that_is_broken_off_is_one_call(theirs: Logfire, client: openai.OpenAI, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with theirs.request("one") as report:
            stream = client.chat.completions.create(**asked("one"))
        chunks = read(stream, report)
        next(chunks)
        chunks.close()  # type: ignore[attr-defined]
        stream.close()

    main()
    assert len(built(spans()).calls) == 1


def test_two_streams_at_once_with_one_prompt_are_two_calls(
    theirs: Logfire, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        begun = threading.Barrier(2)

        def one() -> None:
            chunks = streamed(theirs, client, "one")
            begun.wait(60)
            list(chunks)

        threads = [threading.Thread(target=contextvars.copy_context().run, args=(one,)) for _ in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()

    main()
    assert answers(spans()) == [("one", "seen one ")] * 2


def test_what_failed_and_what_is_asked_again_are_calls_of_their_own(
    theirs: Logfire, client: openai.OpenAI, server: ScriptedServer, spans: Spans
) -> None:
    @arttrace.trajectory
    def main() -> None:
        server.failures[:] = [500]
        with pytest.raises(openai.InternalServerError):
            list(streamed(theirs, client, "one"))
        list(streamed(theirs, client, "one"))
        list(streamed(theirs, client, "one"))

    main()
    run = built(spans())
    assert [bool(placed.call.error) for placed in run.calls] == [True, False, False]


def test_a_stream_that_another_run_reads_is_a_call_of_the_run_that_asked(
    theirs: Logfire, client: openai.OpenAI, spans: Spans
) -> None:
    @arttrace.trajectory
    def asking() -> Iterator[Any]:
        return streamed(theirs, client, "one")

    @arttrace.trajectory
    def reading(chunks: Iterator[Any]) -> None:
        list(chunks)

    chunks = asking()
    reading(chunks)
    runs = {run.entry_name.rpartition(".")[2]: len(run.calls) for run in build_trajectories(spans())}
    assert runs == {"asking": 1, "reading": 0}


def test_of_what_is_not_to_be_recorded_nothing_is(theirs: Logfire, client: openai.OpenAI, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with arttrace.no_capture():
            chunks = streamed(theirs, client, "one")
        list(chunks)

    main()
    assert answers(spans()) == []


# --- calls that no hook of ours sees ----------------------------------------------------------------------------------


def test_a_call_that_only_logfire_tells_of_is_one(theirs: Logfire, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with theirs.request("one") as report:
            pass
        arttrace.flush()
        report.made("seen one")

    main()
    rows = spans()
    assert answers(rows) == [("one", "seen one")]
    (placed,) = built(rows).calls
    assert (placed.call.response_id, placed.call.input_tokens, placed.call.output_tokens) == ("c1", 3, 2)
    assert sum(row.attributes.get(semconv.TRAJECTORY_SPAN_COUNT, 0) for row in rows) == 1


def test_each_log_is_of_the_request_that_asked_the_same(theirs: Logfire, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with theirs.request("one") as first:
            pass
        with theirs.request("two") as second:
            pass
        with theirs.request("two") as third:
            pass
        first.made("seen one", id="c1")
        second.made("seen two", id="c2")
        third.made("seen two again", id="c3")

    main()
    assert sorted(answers(spans())) == [("one", "seen one"), ("two", "seen two"), ("two", "seen two again")]


def test_a_stream_that_ends_after_its_run_is_a_call_of_it(theirs: Logfire, spans: Spans) -> None:
    reports = []

    @arttrace.trajectory
    def main() -> None:
        with theirs.request("one") as report:
            reports.append(report)

    main()
    run = built([row for row in spans() if semconv.INTERRUPTED not in row.attributes])
    assert len(run.calls) == 0
    reports[0].made("seen one")
    assert answers(spans()) == [("one", "seen one")]


def test_a_stream_that_fails_is_one_call_that_failed(theirs: Logfire, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        with theirs.request("one") as report:
            pass
        report.made("seen", failed=True)

    main()
    (placed,) = built(spans()).calls
    assert placed.call.error is not None
    assert "gone" in placed.call.error
    assert placed.call.choices[0].message.text == "seen"


def test_a_stream_that_nobody_reads_is_a_call_in_progress(theirs: Logfire, records: Callable[[], list[Any]]) -> None:
    @arttrace.trajectory
    def main() -> None:
        with theirs.request("one"):
            pass
        arttrace.flush()

    main()
    run = built([row for row in records() if isinstance(row, SpanRow)])
    assert run.incomplete == "call in progress"
    assert len(run.calls) == 1


def by_run(spans: list[SpanRow]) -> dict[str, list[str | None]]:
    """The answers of each run, None of a call without one."""
    return {
        run.entry_name.rpartition(".")[2]: [
            placed.call.choices[0].message.text if placed.call.choices else None for placed in run.calls
        ]
        for run in build_trajectories(spans)
    }


@pytest.mark.parametrize("first", ["a", "b"])
def test_of_two_runs_that_ask_the_same_each_has_its_own_answer(first: str, theirs: Logfire, spans: Spans) -> None:
    asked, answered = threading.Barrier(2), threading.Event()

    def run(name: str) -> None:
        with theirs.request("one") as report:
            pass
        asked.wait(60)
        if name != first:
            answered.wait(60)
        report.made("answer of " + name, id=name)
        answered.set()

    @arttrace.trajectory
    def a() -> None:
        run("a")

    @arttrace.trajectory
    def b() -> None:
        run("b")

    threads = [threading.Thread(target=each) for each in (a, b)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert by_run(spans()) == {"a": ["answer of a"], "b": ["answer of b"]}


def test_whose_log_it_is_of_two_runs_nobody_guesses(theirs: Logfire, spans: Spans) -> None:
    reports = []

    def ask() -> None:
        with theirs.request("one") as report:
            reports.append(report)

    @arttrace.trajectory
    def a() -> None:
        ask()

    @arttrace.trajectory
    def b() -> None:
        ask()

    a(), b()
    reports[0].made("answer of a")
    assert not any(text for texts in by_run(spans()).values() for text in texts)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["recorded first", "muted first"])
@pytest.mark.parametrize("first", ["recorded", "muted"])
def test_the_answer_of_what_is_not_to_be_recorded_is_nobodys(
    order: tuple[int, ...], first: str, theirs: Logfire, spans: Spans
) -> None:
    @arttrace.trajectory
    def a() -> None:
        def recorded() -> tuple[Report, str]:
            with theirs.request("one") as report:
                return report, "answer"

        def muted() -> tuple[Report, str]:
            with arttrace.no_capture(), theirs.request("one") as report:
                return report, "SECRET"

        reports = [recorded(), muted()] if first == "recorded" else [muted(), recorded()][::-1]
        for each in order:
            report, text = reports[each]
            report.made(text)

    a()
    (texts,) = by_run(spans()).values()
    assert "SECRET" not in texts


def test_a_muted_stream_that_is_read_leaves_the_next_one_its_answer(theirs: Logfire, spans: Spans) -> None:
    @arttrace.trajectory
    def main() -> None:
        for is_read_inside in (True, False):
            with arttrace.no_capture():
                with theirs.request("one") as muted:
                    pass
                if is_read_inside:
                    muted.made("SECRET")
            if not is_read_inside:
                muted.made("SECRET")
            with theirs.request("one") as report:
                pass
            report.made("answer")

    main()
    assert answers(spans()) == [("one", "answer")] * 2


def test_what_is_muted_later_is_no_answer_of_a_run_that_has_ended(theirs: Logfire, spans: Spans) -> None:
    @arttrace.trajectory
    def a() -> None:
        with theirs.request("one"):
            pass

    a()
    with arttrace.no_capture(), theirs.request("one") as report:
        pass
    report.made("SECRET")
    assert not any(by_run(spans())["a"])


# --- the library itself ---------------------------------------------------------------------------------------------
PROGRAM = """
import asyncio, json, sys
openai_url, anthropic_url, *order = sys.argv[1:]
import anthropic, openai

def logfire():
    import logfire
    logfire.configure(send_to_logfire=False, console=False, metrics=False)
    logfire.instrument_openai()
    if logfire.__version__ >= "5":  # before, it cannot read what today's client is called with
        logfire.instrument_anthropic()

def ours():
    import arttrace
    arttrace.init(project="test")

for each in order:
    globals()[each]()
import arttrace

chat = {"model": "m", "messages": [{"role": "user", "content": "one"}], "stream": True}
client = openai.OpenAI(base_url=openai_url, api_key="sk-test-0123456789")
claude = {"model": "claude", "max_tokens": 9, "messages": [{"role": "user", "content": "one"}]}
other = anthropic.Anthropic(base_url=anthropic_url, api_key="sk-test-0123456789")

@arttrace.trajectory
def whole():
    list(client.chat.completions.create(**chat))

@arttrace.trajectory
def helper():
    with client.chat.completions.stream(model="m", messages=chat["messages"]) as stream:
        stream.get_final_completion()

@arttrace.trajectory
def generator():
    yield from client.chat.completions.create(**chat)

@arttrace.trajectory
async def asynchronous():
    async with openai.AsyncOpenAI(base_url=openai_url, api_key="sk-test-0123456789") as client:
        return [chunk async for chunk in await client.chat.completions.create(**chat)]

@arttrace.trajectory
def responses():
    list(client.responses.create(model="m", input="one", stream=True))

@arttrace.trajectory
def broken_off():
    with client.chat.completions.create(**chat) as stream:
        for _ in stream:
            break

@arttrace.trajectory
def messages():
    list(other.messages.create(**claude, stream=True))

@arttrace.trajectory
def messages_helper():
    with other.messages.stream(**claude) as stream:
        stream.get_final_message()

whole(), helper(), list(generator()), asyncio.run(asynchronous())
responses(), broken_off(), messages(), messages_helper()
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    made = {version: tmp_path_factory.mktemp("packages") for version in PACKAGES}
    for version, folder in made.items():
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
        subprocess.run([*install, *PACKAGES[version]], check=True, timeout=300)
    return made


@pytest.mark.full
@pytest.mark.parametrize("version", PACKAGES)
@pytest.mark.parametrize("order", [("logfire", "ours"), ("ours", "logfire")], ids="-".join)
def test_every_stream_is_one_call_beside_logfire(
    order: tuple[str, ...], version: str, folders: dict[str, Path], server: ScriptedServer, tmp_path: Path
) -> None:
    from messages_server import serve_messages

    program, data = tmp_path / "program.py", tmp_path / "data"
    program.write_text(PROGRAM)
    path = os.pathsep.join([str(folders[version]), os.environ.get("PYTHONPATH", "")]).strip(os.pathsep)
    with serve_messages() as messages:
        done = subprocess.run(
            [sys.executable, str(program), server.url, messages.url, *order],
            env={**os.environ, "ARTTRACE_DIR": str(data), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.returncode == 0, done.stderr
    runs = {run.entry_name.rpartition(":")[2]: run for run in build_trajectories(finished_spans(data))}
    assert {name: (len(run.calls), run.incomplete) for name, run in runs.items()} == dict.fromkeys(
        (
            *("whole", "helper", "generator", "asynchronous", "responses", "broken_off", "messages"),
            "messages_helper",
        ),
        (1, ""),
    )
