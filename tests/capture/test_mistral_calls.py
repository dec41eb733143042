"""mistralai's client captured: the user gets what the bare client gives, what was said is recorded."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from mistralai.client import Mistral
from mistralai.client.utils import BackoffStrategy, RetryConfig
from outcomes import outcome
from provider_server import StandIn, stand_in

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]
KEY = "mistral-secret-0123456789"
CALL = {"id": "D681PevKs", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}
THOUGHT = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
USAGE = {"prompt_tokens": 10, "completion_tokens": 7, "total_tokens": 17}
ASKED: Any = {"messages": [{"role": "user", "content": "Rome?"}], "temperature": 0.5, "random_seed": 7}


@dataclass
class MistralServer:
    """The server's side of a test: `sent` as (path, headers, body), `failures` the statuses of the next answers. The
    second event of a stream waits until `goes_on`."""

    url: str = ""
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    goes_on: threading.Event = field(default_factory=threading.Event)


class _Handler(StandIn):
    """A stand-in for Mistral's server."""

    def do_POST(self) -> None:
        request = self.read_request()
        if self.state.failures:
            return self.send_json(self.state.failures.pop(0), {"object": "error", "message": "scripted"})
        said = {"id": "c1", "object": "chat.completion", "created": 1, "model": "mistral-x"}
        if self.path.endswith("/embeddings"):
            return self.send_json(200, {**said, "data": [{"embedding": [0.5], "index": 0}], "usage": USAGE})
        if request.get("stream"):
            return self.stream(self._events(said), "text/event-stream; charset=utf-8")
        message = {"role": "assistant", "content": [THOUGHT, {"type": "text", "text": "Sun."}], "tool_calls": [CALL]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return self.send_json(200, {**said, "choices": [choice], "usage": USAGE})

    def _events(self, said: dict[str, Any]) -> Iterator[bytes]:
        deltas: list[Any] = [{"role": "assistant", "content": [THOUGHT]}, {"content": "Sun."}, {"tool_calls": [CALL]}]
        for number, delta in enumerate(deltas, 1):
            if number == 2:
                self.state.goes_on.wait(60)
            ended = {"finish_reason": "tool_calls" if number == len(deltas) else None}
            usage = {"usage": USAGE} if number == len(deltas) else {}
            chunk = {**said, "choices": [{"index": 0, "delta": delta, **ended}], **usage}
            yield f"data: {json.dumps(chunk)}\n\n".encode()
        yield b"data: [DONE]\n\n"


@pytest.fixture
def server() -> Iterator[MistralServer]:
    with stand_in(_Handler, MistralServer()) as running:
        running.goes_on.set()
        yield running


def client(server: MistralServer, **options: Any) -> Mistral:
    return Mistral(api_key=KEY, server_url=server.url, **options)


def called(server: MistralServer) -> list[Any]:
    async def asynchronous() -> list[Any]:
        async with client(server) as c:
            whole = await c.chat.complete_async(model="mistral-x", **ASKED)
            return [whole, [one.data async for one in await c.chat.stream_async(model="mistral-x", **ASKED)]]

    with client(server) as c:
        whole, chunks = c.chat.complete(model="mistral-x", **ASKED), c.chat.stream(model="mistral-x", **ASKED)
        return [whole, [chunk.data for chunk in chunks], *asyncio.run(asynchronous())]


def test_every_way_to_call(server: MistralServer, spans: Spans) -> None:
    with arttrace.no_capture():
        bare = called(server)
    with arttrace.trajectory(name="root"):
        assert called(server) == bare
    *found, _root = spans()
    assert len(found) == 4
    for span in found:
        attributes = span.attributes
        assert (span.name, span.status_code) == ("chat mistral-x", 0)
        assert (attributes[semconv.PROVIDER_NAME], attributes[semconv.REQUEST_TEMPERATURE]) == ("mistral_ai", 0.5)
        assert attributes[semconv.REQUEST_SEED] == 7
        (answer,) = json.loads(attributes[semconv.OUTPUT_MESSAGES])
        assert [part["type"] for part in answer["parts"]] == ["reasoning", "text", "tool_call"]
        assert (answer["parts"][2]["id"], answer["finish_reason"]) == (CALL["id"], "tool_calls")
        assert (attributes[semconv.USAGE_INPUT_TOKENS], attributes[semconv.USAGE_OUTPUT_TOKENS]) == (10, 7)
        assert not {semconv.INTERRUPTED, semconv.ATTEMPTS} & attributes.keys()
        assert KEY not in repr(attributes)


def test_agents_code_and_embeddings(server: MistralServer, spans: Spans) -> None:
    """An agent that Mistral's server keeps is asked by messages, code by what stands before and behind it."""
    with arttrace.trajectory(name="root"), client(server) as c:
        c.agents.complete(agent_id="ag_1", messages=ASKED["messages"])
        c.fim.complete(model="codestral-x", prompt="def f(", suffix="return a")
        c.embeddings.create(model="embed-x", inputs=["secret text"])
    agent, code, embedded, _root = spans()
    assert (agent.name, agent.attributes[semconv.RESPONSE_MODEL]) == ("chat", "mistral-x")
    assert "Rome?" in agent.attributes[semconv.INPUT_MESSAGES]
    assert code.name == "text_completion codestral-x"
    assert "return a" in code.attributes[semconv.INPUT_MESSAGES]
    assert (embedded.name, embedded.attributes[semconv.PROVIDER_NAME]) == ("embeddings embed-x", "mistral_ai")
    assert "secret text" not in repr(embedded.attributes)


def test_retries_are_one_call(server: MistralServer, spans: Spans) -> None:
    server.failures += [503, 503]
    again = RetryConfig("backoff", BackoffStrategy(1, 1, 1.0, 60_000), True)
    with arttrace.trajectory(name="root"), client(server, retry_config=again) as c:
        c.chat.complete(model="mistral-x", **ASKED)
    found, _root = spans()
    assert (found.status_code, found.attributes[semconv.ATTEMPTS], len(found.events)) == (0, 3, 2)


def test_failures_are_the_users_own(server: MistralServer, spans: Spans) -> None:
    def call() -> Any:
        server.failures.append(401)
        with client(server) as c:
            return c.chat.complete(model="mistral-x", **ASKED)

    with arttrace.no_capture():
        bare = outcome(call)
    with arttrace.trajectory(name="root"):
        assert outcome(call) == bare
    found, _root = spans()
    assert (found.status_code, found.attributes[semconv.HTTP_STATUS_CODE]) == (2, 401)


def test_a_stream_that_is_left(server: MistralServer, spans: Spans) -> None:
    server.goes_on.clear()
    with arttrace.trajectory(name="root"), client(server) as c, c.chat.stream(model="mistral-x", **ASKED) as stream:
        next(stream)
    server.goes_on.set()
    left, _root = spans()
    assert left.attributes[semconv.INTERRUPTED] == "closed"
    (answer,) = json.loads(left.attributes[semconv.OUTPUT_MESSAGES])
    assert answer["parts"] == [{"type": "reasoning", "content": "Hm."}]


def test_a_route_leads_a_call_to_the_policy(server: MistralServer, spans: Spans) -> None:
    with (
        arttrace.trajectory(name="root"),
        arttrace.route("mistral-x", to="policy:latest", base_url=f"{server.url}/v1"),
        Mistral(api_key=KEY, server_url="http://127.0.0.1:9") as c,
    ):
        c.chat.complete(model="mistral-x", **ASKED)
    found, _root = spans()
    assert (found.attributes[semconv.REQUEST_MODEL], found.attributes[semconv.ROUTED_FROM]) == (
        "policy:latest", "mistral-x",
    )  # fmt: skip
    ((_path, headers, body),) = server.sent
    assert (KEY in repr(headers), body["return_token_ids"]) == (False, True)
