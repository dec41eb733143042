"""The matrix: every way to call, sync and async, by every way that it can go.

In each cell what the user gets is what the bare client gives (value, type, exception), and what was captured is what
was on the wire, by the server's own record. The order in which a stream's chunks are asked for is compared as well.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import importlib
import inspect
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anthropic
import openai
import pytest
from model_server import ModelServer, Sent, chat_events, response_events, serve_model
from outcomes import outcome
from pydantic import BaseModel
from set_aside import set_aside

import arttrace
from arttrace.capture.calls.model_call import _open_calls
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.wire import Exchange, decode

KEY = "sk-secret-0123456789"
OPENAI_APIS = ("chat", "responses")
APIS = (*OPENAI_APIS, "messages")
MODES = ("plain", "stream", "parse", "raw", "streaming response", "streaming response of a stream")
STREAMS = ("stream", "streaming response of a stream")


class Answer(BaseModel):
    text: str


@dataclass
class Case:
    """One way that a call can go."""

    model: str = "m"
    modes: tuple[str, ...] = MODES
    apis: tuple[str, ...] = APIS
    options: dict[str, Any] = field(default_factory=dict)
    more: dict[str, Any] = field(default_factory=dict)
    leave: str = ""  # how the user leaves a stream: "break", "close", "abandon"
    cancel: bool = False
    refused: bool = False
    one_shot: bool = False
    ending: str = "complete"


TOOLS: list[Any] = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CASES = {
    "success": Case(),
    "400": Case("400"),
    "429, then well": Case("flaky"),
    "500 to the end": Case("500", options={"max_retries": 1}),
    "refused": Case(refused=True, options={"max_retries": 0}),
    "timeout": Case("hang", options={"max_retries": 0, "timeout": 0.15}, ending="error"),
    "cancelled while it waits": Case("hang", cancel=True, ending="cancelled"),
    "cancelled in its stream": Case("stall", modes=("stream",), cancel=True, ending="cancelled"),
    "break": Case("stall", modes=STREAMS, leave="break", ending="closed"),
    "close": Case("stall", modes=("stream",), leave="close", ending="closed"),
    "abandoned": Case("stall", modes=("stream",), leave="abandon", ending="closed"),
    "one-shot messages": Case(one_shot=True, modes=("plain", "stream", "raw")),
    "two choices": Case("two", apis=("chat",), more={"n": 2}),
    "parallel tool calls": Case("tools", modes=("plain", "stream", "raw", *STREAMS[1:])),
    "refusal": Case("refuse"),
    "cut short": Case("cut", apis=("responses",)),
    "token ids": Case("ids"),
}


def arguments(api: str, mode: str, case: Case, messages: list[Any]) -> dict[str, Any]:
    given: Any = (message for message in messages) if case.one_shot else messages
    call = {"model": case.model, "input" if api == "responses" else "messages": given, **case.more}
    if api == "messages":
        call["max_tokens"] = 64
    if mode == "parse":
        call[{"chat": "response_format", "responses": "text_format", "messages": "output_format"}[api]] = Answer
    if mode in STREAMS:
        call["stream"] = True
    return call


def method(client: Any, api: str, mode: str) -> Any:
    resource = client.chat.completions if api == "chat" else getattr(client, api)
    if mode == "parse":
        return resource.parse
    if mode == "raw":
        return resource.with_raw_response.create
    return resource.with_streaming_response.create if mode.startswith("streaming") else resource.create


def run_sync(client: Any, api: str, mode: str, case: Case, messages: list[Any]) -> Any:
    result = method(client, api, mode)(**arguments(api, mode, case, messages))
    if mode == "raw":
        return result.parse()
    if mode.startswith("streaming"):
        with result as response:
            lines = []
            for line in response.iter_lines():
                lines.append(line)
                if case.leave and len(lines) == 2:
                    break
            return lines
    if mode != "stream":
        return result
    got = []
    if case.leave != "abandon":
        for chunk in result:
            got.append(chunk)
            if case.leave and len(got) == 2:
                break
    if case.leave == "close":
        result.close()
    return got


async def run_async(
    client: Any, api: str, mode: str, case: Case, messages: list[Any], got: list[Any] | None = None
) -> Any:
    result = method(client, api, mode)(**arguments(api, mode, case, messages))
    if mode.startswith("streaming"):
        async with result as response:
            lines = []
            async for line in response.iter_lines():
                lines.append(line)
                if case.leave and len(lines) == 2:
                    break
            return lines
    result = await result
    if mode == "raw":
        parsed = result.parse()
        return await parsed if inspect.isawaitable(parsed) else parsed
    if mode != "stream":
        return result
    got = [] if got is None else got
    if case.leave != "abandon":
        async for chunk in result:
            got.append(chunk)
            if case.leave and len(got) == 2:
                break
    if case.leave == "close":
        await result.close()
    return got


class Programs:
    """What the user does, with one client of either kind for all of a test: making one takes long."""

    def __init__(self, server: ModelServer) -> None:
        self.server = server
        self.runner = asyncio.Runner()
        of_openai = (
            openai.OpenAI(base_url=server.url, api_key=KEY),
            openai.AsyncOpenAI(base_url=server.url, api_key=KEY),
        )
        of_anthropic = anthropic.Anthropic(api_key=KEY), anthropic.AsyncAnthropic(api_key=KEY)
        self.clients = {**dict.fromkeys(OPENAI_APIS, of_openai), "messages": of_anthropic}

    def close(self) -> None:
        for client, async_client in {id(pair): pair for pair in self.clients.values()}.values():
            client.close()
            self.runner.run(async_client.close())
        self.runner.close()


def perform(programs: Programs, kind: str, api: str, mode: str, case: Case) -> Any:
    """Do what the user does, and give what they see. The messages are changed when the call has returned."""
    server = programs.server
    server.reset()
    messages: list[Any] = [{"role": "user", "content": "hi"}]
    url = "http://127.0.0.1:9/v1" if case.refused else server.url
    url = url.removesuffix("/v1") if api == "messages" else url
    options = {"base_url": url, "max_retries": 2, **case.options}
    sync_client, async_client = programs.clients[api]

    async def cancelled_program(client: Any) -> Any:
        got: list[Any] = []
        task = asyncio.create_task(run_async(client, api, mode, case, messages, got))
        sends = 3 if mode == "stream" and case.model == "stall" else 0
        while (not server.holding.is_set() or len(got) < sends) and not task.done():
            await asyncio.sleep(0.002)
        task.cancel()
        return await task

    def run() -> Any:
        try:
            if kind == "sync":
                return run_sync(sync_client.with_options(**options), api, mode, case, messages)
            client = async_client.with_options(**options)
            run = cancelled_program(client) if case.cancel else run_async(client, api, mode, case, messages)
            return programs.runner.run(run, context=contextvars.copy_context())
        finally:
            messages[0]["content"] = "changed afterwards"
            messages.append({"role": "user", "content": "later"})

    before = list(_open_calls.values())
    seen = outcome(run)
    if case.leave:
        for _ in range(100):  # what was abandoned ends now, an asynchronous generator in its loop
            gc.collect()
            programs.runner.run(asyncio.sleep(0.01))
            if all(any(call is known for known in before) for call in list(_open_calls.values())):
                break
    server.release()
    return seen


@pytest.fixture(scope="module")
def programs() -> Iterator[Programs]:
    set_aside()  # each collection of `perform` looks at what came since, not at all that earlier tests imported
    with serve_model() as server:
        programs = Programs(server)
        yield programs
        programs.close()


@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("mode", MODES)
def test_every_call_by_every_way_it_can_go(
    mode: str, api: str, kind: str, programs: Programs, spans: Callable[[], list[SpanRow]]
) -> None:
    seen = 0
    for name, case in CASES.items():
        if mode not in case.modes or api not in case.apis or (case.cancel and kind == "sync"):
            continue
        with arttrace.no_capture():
            bare = perform(programs, kind, api, mode, case)
        until_it_came(name, programs)
        on_the_wire_bare = [(sent.path, sent.request) for sent in programs.server.sent]
        with arttrace.trajectory(name="root"):
            captured = perform(programs, kind, api, mode, case)
        until_it_came(name, programs)
        assert captured == bare, name
        assert [(sent.path, sent.request) for sent in programs.server.sent] == on_the_wire_bare, name
        calls = [span for span in spans() if semconv.PROVIDER_NAME in span.attributes]
        assert len(calls) == seen + 1, name
        seen += 1
        check(name, case, captured, calls[-1], programs.server.sent)


def until_it_came(name: str, programs: Programs) -> None:
    """The client gives up after its timeout, whether the server has come to read the request or not."""
    limit = time.monotonic() + 60
    while name == "timeout" and not programs.server.sent and time.monotonic() < limit:
        time.sleep(0.005)


def check(name: str, case: Case, captured: Any, span: SpanRow, sent: list[Sent]) -> None:
    """The span holds what the server's record of the exchanges gives."""
    attributes = span.attributes
    assert attributes.get(semconv.ATTEMPTS, 1) == (len(sent) or case.refused), name
    failures = [event.attributes.get(semconv.HTTP_STATUS_CODE) for event in span.events]
    statuses = [each.status for each in sent if each.status >= 400]
    if case.refused or name == "timeout":
        assert failures == [None], name
    else:
        assert failures == statuses, name
    assert span.status_code == (2 if captured[0] == "raised" else 0), name
    if captured[0] == "raised":
        kind = captured[1]
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        assert attributes[semconv.ERROR_TYPE] == module + kind.__name__, name
    if not sent:  # nobody listened, or the client refused to send it
        return
    last = sent[-1]
    unanswered = case.model == "hang"
    exchange = Exchange(
        request=last.request,
        status=None if unanswered else last.status,
        headers={"content-type": last.content_type},
        body=b"" if unanswered else last.response,
        ending=case.ending,  # type: ignore[arg-type]
        path=last.path,
    )
    wire = decode(exchange)
    assert span.name == wire.name, name
    for key, value in wire.attributes.items():
        if case.leave and key.startswith(("gen_ai.response", "gen_ai.output", "gen_ai.usage")):
            continue  # of an answer that was left early any beginning may have been read
        assert attributes[key] == value, (name, key)
    if case.leave == "abandon":
        assert semconv.OUTPUT_MESSAGES not in attributes, name
    known = wire.attributes.keys() | {
        semconv.PROVIDER_NAME, semconv.TRAJECTORY_ID, semconv.EXECUTION_ID, semconv.EXECUTION_PARENT_ID,
        semconv.SERVER_ADDRESS, semconv.SERVER_PORT, semconv.ATTEMPTS, semconv.RESPONSE_TIME_TO_FIRST_CHUNK,
        semconv.ERROR_TYPE,
    }  # fmt: skip
    assert attributes.keys() <= known, name
    streamed = last.content_type == "text/event-stream" and not unanswered and case.leave != "abandon"
    assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in attributes) == streamed, name


# --- laziness: by a transport that notes when each chunk is asked for --------------------------------------------
LIBRARY = next(cls.__module__.split(".")[0] for cls in openai.DefaultHttpxClient.__mro__ if "httpx" in cls.__module__
               and not cls.__module__.startswith("openai"))  # fmt: skip
http = importlib.import_module(LIBRARY)


class Chunks(http.SyncByteStream, http.AsyncByteStream):  # type: ignore[name-defined, misc]
    """A response's body that notes who asks for its next chunk, and when it is closed."""

    def __init__(self, api: str, log: list[Any]) -> None:
        events = chat_events({}, ["m"]) if api == "chat" else response_events({}, ["m"])
        self._events = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
        self._log = log

    def __iter__(self) -> Iterator[bytes]:
        for number, event in enumerate(self._events):
            self._log.append(("asked for", number))
            yield event

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for event in self:
            yield event

    def close(self) -> None:
        self._log.append("closed")

    async def aclose(self) -> None:
        self._log.append("closed")


class Transport(http.BaseTransport, http.AsyncBaseTransport):  # type: ignore[name-defined, misc]
    """A stand-in for the network."""

    def __init__(self, api: str, log: list[Any]) -> None:
        self._api, self._log = api, log

    def handle_request(self, request: Any) -> Any:
        return http.Response(200, headers={"content-type": "text/event-stream"}, stream=Chunks(self._api, self._log))

    async def handle_async_request(self, request: Any) -> Any:
        return self.handle_request(request)


@pytest.mark.parametrize("leave_at", [1, 3, 1000])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("api", OPENAI_APIS)
def test_the_chunks_of_a_stream_are_asked_for_when_the_user_asks(
    api: str, kind: str, leave_at: int, spans: Callable[[], list[SpanRow]]
) -> None:
    call = arguments(api, "stream", Case(), [{"role": "user", "content": "hi"}])

    def run() -> list[Any]:
        log: list[Any] = []
        http_client = http.Client(transport=Transport(api, log))
        with openai.OpenAI(api_key=KEY, base_url="http://model/v1", http_client=http_client) as client:
            log.append("called")
            stream = method(client, api, "stream")(**call)
            log.append("returned")
            for number, _ in enumerate(stream, 1):
                log.append("got")
                if number == leave_at:
                    break
            stream.close()
        return log

    async def run_async() -> list[Any]:
        log: list[Any] = []
        http_client = http.AsyncClient(transport=Transport(api, log))
        async with openai.AsyncOpenAI(api_key=KEY, base_url="http://model/v1", http_client=http_client) as client:
            log.append("called")
            stream = await method(client, api, "stream")(**call)
            log.append("returned")
            number = 0
            async for _ in stream:
                log.append("got")
                number += 1
                if number == leave_at:
                    break
            await stream.close()
        return log

    def once() -> list[Any]:
        return run() if kind == "sync" else asyncio.run(run_async())

    with arttrace.no_capture():
        bare = once()
    with arttrace.trajectory(name="root"):
        captured = once()
    assert captured == bare
    assert captured[:4] == ["called", "returned", ("asked for", 0), "got"]
    assert len([span for span in spans() if semconv.OPENAI_API_TYPE in span.attributes]) == 1
