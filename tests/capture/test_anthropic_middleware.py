"""Middleware of the anthropic client, which may ask several models within one call of the user's: each is recorded."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import pytest
from anthropic.lib.middleware import BetaFallbackState, BetaRefusalFallbackMiddleware
from messages_server import MessagesServer, serve_messages
from outcomes import plain

import arttrace
from arttrace.capture.patches.model_clients import stainless
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories

Spans = Callable[[], list[SpanRow]]
ASKED: dict[str, Any] = {"model": "a", "max_tokens": 64, "messages": [{"role": "user", "content": "Rome?"}]}
DETAILS = {"type": "refusal", "category": "cyber", "fallback_credit_token": "t", "fallback_has_prefill_claim": False}
ANSWERS: list[dict[str, Any]] = [
    {"id": "m1", "content": [{"type": "text", "text": "I was"}], "stop_reason": "refusal", "stop_details": DETAILS},
    {"id": "m2", "content": [{"type": "text", "text": "Sunny."}], "stop_reason": "end_turn"},
]


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with serve_messages() as running:
        yield running


def said(span: SpanRow) -> tuple[Any, ...]:
    (answer,) = json.loads(span.attributes[semconv.OUTPUT_MESSAGES])
    return span.attributes[semconv.REQUEST_MODEL], [part["content"] for part in answer["parts"]]


def ask(server: MessagesServer, stream: bool, asynchronous: bool) -> Any:
    options: dict[str, Any] = {"base_url": server.url, "api_key": "sk-ant-0123456789", "max_retries": 0}
    options["middleware"] = [BetaRefusalFallbackMiddleware([{"model": "b"}])]

    async def awaited() -> Any:
        async with anthropic.AsyncAnthropic(**options) as client:
            if not stream:
                return await client.beta.messages.create(**ASKED)
            async with client.beta.messages.stream(**ASKED) as streaming:
                return await streaming.get_final_message()

    server.answers = list(ANSWERS)
    with BetaFallbackState():
        if asynchronous:
            return plain(asyncio.run(awaited()))
        client = anthropic.Anthropic(**options)
        if not stream:
            return plain(client.beta.messages.create(**ASKED))
        with client.beta.messages.stream(**ASKED) as streaming:
            return plain(streaming.get_final_message())


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_a_refused_answer_and_the_one_of_the_model_that_is_asked_then_are_two_calls(
    stream: bool,
    asynchronous: bool,
    server: MessagesServer,
    spans: Spans,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stainless, "_said", set())
    with arttrace.no_capture():
        bare = ask(server, stream, asynchronous)
    with arttrace.trajectory(name="root"), caplog.at_level(logging.WARNING, "arttrace"):
        assert ask(server, stream, asynchronous) == bare
    found = spans()
    first, second = sorted((span for span in found if span.name.startswith("chat ")), key=lambda span: span.start_ns)
    assert said(first) == ("a", ["I was"])
    assert said(second)[1][-1:] == ["Sunny."]
    assert second.attributes[semconv.REQUEST_MODEL] == "b"
    for span in (first, second):
        assert semconv.ATTEMPTS not in span.attributes
    assert first.end_ns <= second.end_ns
    (run,) = build_trajectories(found)
    assert (run.incomplete, len(run.calls)) == ("", 2)
    assert not [record for record in caplog.records if record.name.startswith("arttrace")]


def test_what_middleware_asks_again_after_a_failure_is_one_call(server: MessagesServer, spans: Spans) -> None:
    def again(request: Any, call_next: Any) -> Any:
        answer = call_next(request)
        return call_next(request) if answer.status_code == 500 else answer

    server.failures, server.answers = [500], list(ANSWERS[1:])
    client = anthropic.Anthropic(base_url=server.url, api_key="sk-ant-0123456789", max_retries=0, middleware=[again])
    with arttrace.trajectory(name="root"):
        client.messages.create(**ASKED)
    call, _root = spans()
    assert said(call) == ("a", ["Sunny."])
    assert call.attributes[semconv.ATTEMPTS] == 2
