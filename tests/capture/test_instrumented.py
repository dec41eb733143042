"""Other libraries that instrument the openai client, before arttrace and after it, taken back or not: every call is
recorded once, and theirs as well."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator
from types import MethodType
from typing import Any

import openai
import pytest
import wrapt
from chat_server import ChatServer
from opentelemetry.instrumentation.utils import suppress_instrumentation

import arttrace
from arttrace.capture.patches import registry as patches
from arttrace.capture.patches.model_clients import stainless as openai_hook
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]
KEY = "sk-test-0123456789"
BASES = (openai._base_client.SyncAPIClient, openai._base_client.AsyncAPIClient)
CLIENTS = (openai.OpenAI, openai.AsyncOpenAI)


class Instrumentation:
    """A stand-in for one that sets `request` on the clients' classes, around the one that they inherit."""

    def __init__(self, wrapped_by_wrapt: bool, suppresses: bool = False) -> None:
        self.seen: list[str] = []
        self._by_wrapt = wrapped_by_wrapt
        self._below = suppress_instrumentation if suppresses else contextlib.nullcontext

    def instrument(self) -> None:
        self.originals = [client.request for client in CLIENTS]
        for client, original in zip(CLIENTS, self.originals, strict=True):
            client.request = self._wrapped(client, original)

    def _wrapped(self, client: Any, original: Any) -> Any:
        def wrapper(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
            self.seen.append(type(instance).__name__)
            with self._below():
                return wrapped(*args, **kwargs)

        def hidden(this: Any, *args: Any, **kwargs: Any) -> Any:
            self.seen.append(type(this).__name__)
            return original(this, *args, **kwargs)

        return wrapt.FunctionWrapper(original, wrapper) if self._by_wrapt else hidden

    def uninstrument(self) -> None:
        for client, original in zip(CLIENTS, self.originals, strict=True):
            client.request = original


@pytest.fixture
def bare(spans: Spans) -> Iterator[Callable[[], None]]:
    """Takes arttrace's hooks out of the clients' classes, and gives what puts them in; all is as before in the end."""
    kept, bases = patches._patches.copy(), openai_hook._bases.copy()
    owners = dict.fromkeys(
        (*(base for base, _, _ in bases), *BASES, *CLIENTS)
    )  # anthropic's are hooked where it is here
    before = [(owner, vars(owner).get("request")) for owner in owners]
    for base, original, _ in bases:
        base.request = original
    openai_hook._said.clear()
    yield lambda: openai_hook.install(openai._base_client)
    for owner, request in before:
        if request is not None:
            owner.request = request
        elif "request" in vars(owner):
            del owner.request
    patches._patches[:], openai_hook._bases[:] = kept, bases


def ask(server: ChatServer, retries: int = 0) -> str:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=retries) as client:
        answer = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        return str(answer.choices[0].message.content)


def stream(server: ChatServer) -> str:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        chunks = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}], stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def ask_async(server: ChatServer) -> str:
    async def main() -> str:
        async with openai.AsyncOpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
            answer = await client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            return str(answer.choices[0].message.content)

    return asyncio.run(main())


def recorded(spans: Spans) -> list[str]:
    return [
        span.attributes[semconv.OUTPUT_MESSAGES].partition("answer")[1] for span in spans() if span.name == "chat m"
    ]


def test_one_of_them_before_and_one_that_suppresses_after(
    bare: Callable[[], None], server: ChatServer, spans: Spans
) -> None:
    Instrumentation(wrapped_by_wrapt=True).instrument()
    bare()
    Instrumentation(wrapped_by_wrapt=True, suppresses=True).instrument()
    with arttrace.trajectory(name="run"):
        assert [ask(server), ask(server), ask_async(server)] == ["answer 0 to hi"] * 3
    assert recorded(spans) == ["answer"] * 3


@pytest.mark.parametrize("by_wrapt", [True, False], ids=["wrapt", "a function of its own"])
@pytest.mark.parametrize("taken_back", [False, True], ids=["stays", "taken back"])
@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_every_call_is_recorded_once_in_either_order(
    first: str, taken_back: bool, by_wrapt: bool, bare: Callable[[], None], server: ChatServer, spans: Spans
) -> None:
    theirs = Instrumentation(by_wrapt)
    steps = [theirs.instrument, bare] if first == "theirs" else [bare, theirs.instrument]
    for step in (*steps, *([theirs.uninstrument] if taken_back else [])):
        step()
    with arttrace.trajectory(name="run"):
        said = [ask(server), ask(server), stream(server), ask_async(server), ask_async(server)]
    assert said == ["answer 0 to hi"] * 2 + ["answer 0 to hi "] + ["answer 0 to hi"] * 2
    assert recorded(spans) == ["answer"] * 5
    assert len(theirs.seen) == (0 if taken_back else 5)


def test_a_retry_stays_an_attempt_of_one_call(bare: Callable[[], None], server: ChatServer, spans: Spans) -> None:
    Instrumentation(wrapped_by_wrapt=True).instrument()
    bare()
    server.failures.append((503, b"{}"))
    with arttrace.trajectory(name="run"):
        ask(server, retries=1)
    (call,) = [span for span in spans() if span.name == "chat m"]
    assert call.attributes[semconv.ATTEMPTS] == 2


def test_a_hook_that_is_passed_by_says_so_once_and_is_put_right(
    bare: Callable[[], None], server: ChatServer, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    Instrumentation(wrapped_by_wrapt=False).instrument()
    bare()
    with caplog.at_level(logging.WARNING, "arttrace"), arttrace.trajectory(name="run"):
        for _ in range(2):
            server.failures.append((503, b"{}"))
            ask(server, retries=1)
        ask(server)
    assert [record.message for record in caplog.records] == [
        "arttrace: OpenAI.request was replaced by something that bypasses arttrace; its calls are recorded at the HTTP"
        " client. Import arttrace, or start the program by `arttrace run`, before what replaces it"
    ]
    calls = [span for span in spans() if span.name == "chat m"]
    assert [call.attributes.get(semconv.ATTEMPTS) for call in calls] == [
        None,
        None,
        2,
        None,
    ]


def test_what_replaces_request_of_one_object_is_recorded_and_said(
    bare: Callable[[], None], server: ChatServer, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client:
        original = client.request
        client.request = MethodType(lambda self, *args, **kwargs: original(*args, **kwargs), client)  # type: ignore
        bare()
        with arttrace.trajectory(name="run"):
            for _ in range(3):
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
            with arttrace.no_capture():
                client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert recorded(spans) == ["answer"] * 3
    assert len(caplog.records) == 1
    assert "`request` of a SyncAPIClient was replaced" in caplog.text


def test_one_that_suppresses_what_is_below_it(bare: Callable[[], None], server: ChatServer, spans: Spans) -> None:
    bare()
    for _ in range(2):
        Instrumentation(wrapped_by_wrapt=True, suppresses=True).instrument()
        with arttrace.trajectory(name="run"):
            assert [ask(server), ask(server)] == ["answer 0 to hi"] * 2
            with suppress_instrumentation():  # the caller's own wish
                ask(server)
    assert recorded(spans) == ["answer"] * 4


def test_one_of_a_single_client_that_suppresses_what_is_below_it(server: ChatServer, spans: Spans) -> None:
    with openai.OpenAI(base_url=server.url, api_key=KEY, max_retries=0) as client, arttrace.trajectory(name="run"):
        original = client.request

        def request(*args: Any, **kwargs: Any) -> Any:
            with suppress_instrumentation():
                return original(*args, **kwargs)

        client.request = request  # type: ignore[method-assign]
        for _ in range(3):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        with suppress_instrumentation():
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert recorded(spans) == ["answer"] * 3


def test_what_is_not_to_be_recorded_passes_by_in_silence(
    server: ChatServer, spans: Spans, caplog: pytest.LogCaptureFixture
) -> None:
    with arttrace.trajectory(name="run"), arttrace.no_capture():
        ask(server)
    assert recorded(spans) == []
    assert not caplog.records
