"""ollama's client captured: the user gets what the bare client gives, what was said is recorded."""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import ollama
import pytest
import requests
from http_site import CLIENTS
from ollama import AsyncClient, Client, ResponseError
from ollama._utils import convert_function_to_tool
from ollama_server import CALL, LOGPROBS, MESSAGE, OllamaServer, message_of, serve_ollama
from opentelemetry.instrumentation.utils import suppress_instrumentation
from outcomes import outcome

import arttrace
from arttrace.capture.calls import model_call, routing
from arttrace.capture.export import summary
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import decode_logprobs
from arttrace.trajectories import build_trajectories
from arttrace.views.timeline import Timeline, shown_with_tools

Spans = Callable[[], list[SpanRow]]
KEY = "ollama-secret-0123456789"
IMAGE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PNG = base64.b64decode(IMAGE)
TOOL = {
    "type": "function",
    "function": {
        "name": "weather", "description": "Of a town",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
    },
}  # fmt: skip
HISTORY: Any = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Rome?", "images": [PNG]},
    {"role": "assistant", "content": "", "thinking": "Which town?", "tool_calls": [CALL]},
    {"role": "tool", "content": "sun", "tool_name": "weather"},
]
OPTIONS: Any = {
    "temperature": 0.5, "top_k": 40, "num_predict": 64, "seed": 7, "stop": ["END"], "num_ctx": 2048, "min_p": 0.1,
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"sky": {"type": "string"}}}
ASKED: dict[str, Any] = {
    "model": "llama-x", "messages": HISTORY, "tools": [TOOL], "think": True, "format": SCHEMA, "options": OPTIONS,
    "keep_alive": "5m",
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[OllamaServer]:
    with serve_ollama() as running:
        yield running


def client(server: OllamaServer, **options: Any) -> Client:
    return Client(host=server.url, headers={"authorization": f"Bearer {KEY}"}, **options)


def plain(answer: Any) -> Any:
    """What the user sees of an answer, or of a stream of them."""
    return [one.model_dump() for one in (answer if isinstance(answer, list) else [answer])]


CALLS: dict[str, Callable[[Client], Any]] = {
    "whole": lambda c: c.chat(**ASKED),
    "streamed": lambda c: list(c.chat(**ASKED, stream=True)),
}


def said(span: SpanRow, name: str) -> Any:
    return json.loads(span.attributes[name])


def assert_recorded(span: SpanRow, stream: bool) -> None:
    attributes = span.attributes
    assert (span.name, span.status_code) == ("chat llama-x", 0)
    assert attributes[semconv.PROVIDER_NAME] == "ollama"
    assert (attributes[semconv.REQUEST_MODEL], attributes[semconv.RESPONSE_MODEL]) == ("llama-x", "llama-x")
    assert attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert (attributes[semconv.REQUEST_TOP_K], attributes[semconv.REQUEST_MAX_TOKENS]) == (40, 64)
    assert attributes[semconv.REQUEST_SEED] == 7
    assert list(attributes[semconv.REQUEST_STOP_SEQUENCES]) == ["END"]
    assert attributes.get(semconv.REQUEST_STREAM, False) is stream
    assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in attributes) is stream
    assert list(attributes[semconv.SAMPLING_SETTINGS]) == ["min_p", "format"]
    assert said(span, semconv.REQUEST_FIELDS) == {
        "think": True, "format": SCHEMA, "keep_alive": "5m", "options": {"num_ctx": 2048, "min_p": 0.1},
    }  # fmt: skip
    (tool,) = said(span, semconv.TOOL_DEFINITIONS)
    assert tool["function"]["name"] == "weather"
    system, user, called, result = said(span, semconv.INPUT_MESSAGES)
    assert (system["role"], system["parts"]) == ("system", [{"type": "text", "content": "Be brief."}])
    text, image = user["parts"][0], user["parts"][1]["value"]
    assert text["content"] == "Rome?"
    assert image == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{IMAGE}"}}
    assert called["parts"] == [
        {"type": "reasoning", "content": "Which town?"},
        {"type": "tool_call", "name": "weather", "arguments": '{"town":"Rome"}', "id": None},
    ]
    assert (result["role"], result["name"]) == ("tool", "weather")
    assert result["parts"] == [{"type": "tool_call_response", "response": "sun", "id": None}]
    (answer,) = said(span, semconv.OUTPUT_MESSAGES)
    assert answer["parts"] == [
        {"type": "reasoning", "content": "I should look."},
        {"type": "text", "content": "Let me look."},
        {"type": "tool_call", "name": "weather", "arguments": '{"town":"Rome"}', "id": None},
    ]
    assert list(attributes[semconv.RESPONSE_FINISH_REASONS]) == ["tool_calls"]
    assert (attributes[semconv.USAGE_INPUT_TOKENS], attributes[semconv.USAGE_OUTPUT_TOKENS]) == (10, 7)
    assert not {semconv.INTERRUPTED, semconv.ATTEMPTS, semconv.TRUNCATED} & attributes.keys()
    assert KEY not in repr(attributes)


@pytest.mark.parametrize("capture_http", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_every_way_to_call(name: str, capture_http: bool, server: OllamaServer, spans: Spans, tmp_path: Path) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=capture_http)
    call = CALLS[name]
    with arttrace.no_capture():
        bare = plain(call(client(server)))
    with arttrace.trajectory(name="root"):
        assert plain(call(client(server))) == bare
    found, _root = spans()
    assert_recorded(found, name == "streamed")
    without, with_us = server.sent
    assert without[2] == with_us[2]


@pytest.mark.parametrize("stream", [False, True])
def test_the_asynchronous_client_too(stream: bool, server: OllamaServer, spans: Spans) -> None:
    async def call() -> Any:
        async with AsyncClient(host=server.url) as c:
            if stream:
                return [part async for part in await c.chat(**ASKED, stream=True)]
            return await c.chat(**ASKED)

    with arttrace.no_capture():
        bare = plain(asyncio.run(call()))
    with arttrace.trajectory(name="root"):
        assert plain(asyncio.run(call())) == bare
    found, _root = spans()
    assert_recorded(found, stream)


def test_the_functions_of_the_module(server: OllamaServer, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ollama, "chat", Client(host=server.url).chat)
    with arttrace.trajectory(name="root"):
        ollama.chat(**ASKED)
    found, _root = spans()
    assert_recorded(found, False)


@pytest.mark.parametrize("stream", [False, True])
def test_prompts(stream: bool, server: OllamaServer, spans: Spans) -> None:
    asked: Any = {
        "prompt": "Sky?", "system": "Be brief.", "suffix": "!", "images": [PNG], "options": OPTIONS, "logprobs": True,
        "context": [1, 2, 3],
    }  # fmt: skip
    with arttrace.trajectory(name="root"):
        answer = client(server).generate("llama-x", stream=stream, **asked)
        if stream:
            assert "".join(part.response for part in answer) == "Let me look."
    found, _root = spans()
    attributes = found.attributes
    assert (found.name, found.status_code) == ("text_completion llama-x", 0)
    assert attributes[semconv.OPERATION_NAME] == "text_completion"
    assert said(found, semconv.SYSTEM_INSTRUCTIONS) == [{"type": "text", "content": "Be brief."}]
    (prompt,) = said(found, semconv.INPUT_MESSAGES)
    text, suffix, image = prompt["parts"]
    assert (text["content"], suffix["value"]["suffix"], image["value"]["type"]) == ("Sky?", "!", "image_url")
    assert list(attributes[semconv.MESSAGES_KEPT]) == ["context"]
    (answered,) = said(found, semconv.OUTPUT_MESSAGES)
    assert [part["content"] for part in answered["parts"]] == ["I should look.", "Let me look."]
    assert decode_logprobs(attributes[semconv.LOGPROBS]) == tuple(LOGPROBS)
    assert attributes[semconv.USAGE_OUTPUT_TOKENS] == 7


def test_what_only_loads_a_model_is_no_call(server: OllamaServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        c = client(server)
        assert c.chat("llama-x", keep_alive=-1).done_reason == "load"
        assert c.generate("llama-x", keep_alive=0).done_reason == "load"
    assert [span.name for span in spans()] == ["invoke_agent root"]


def test_embeddings(server: OllamaServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        client(server).embed("embed-x", input=["secret text"], dimensions=2)
        client(server).embeddings("embed-x", prompt="secret text")
    new, old, _root = spans()
    for span in (new, old):
        assert (span.name, span.status_code) == ("embeddings embed-x", 0)
        assert span.attributes[semconv.PROVIDER_NAME] == "ollama"
    assert new.attributes[semconv.EMBEDDINGS_DIMENSION_COUNT] == 2
    assert new.attributes[semconv.USAGE_INPUT_TOKENS] == 3
    assert "secret text" not in repr((new, old))


def weather(town: str) -> str:
    """Of a town

    Args:
        town: Its name
    """
    return f"sun in {town}"


@pytest.mark.parametrize("ids", [(), ("call_1", "call_2")])
@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("stream", [False, True])
def test_an_agent_with_tools_is_a_conversation(
    stream: bool, decorated: bool, ids: tuple[str, ...], server: OllamaServer, spans: Spans
) -> None:
    """Newer servers give tool calls ids, which the client takes for nothing and does not send back."""
    asks = [{"function": {"name": "weather", "arguments": {"town": town}}} for town in ("Rome", "Pisa")]
    server.answers += [
        message_of("Looking.", *[{"id": id, **ask} for id, ask in zip(ids, asks, strict=False)] or asks),
        message_of("Sunny."),
    ]
    tool = arttrace.tool(weather) if decorated else weather
    with arttrace.trajectory(name="root"):
        c, messages = client(server), [{"role": "user", "content": "Rome and Pisa?"}]
        while True:
            answer: Any = c.chat("llama-x", messages, tools=[tool], stream=stream)
            parts = [part.message for part in answer] if stream else [answer.message]
            calls = [call for part in parts for call in part.tool_calls or ()]
            said = {"role": "assistant", "content": "".join(part.content or "" for part in parts)}
            messages.append({**said, "tool_calls": calls} if calls else said)
            for call in calls:
                result = tool(**call.function.arguments)
                messages.append({"role": "tool", "content": result, "tool_name": call.function.name})
            if not calls:
                break
    (run,) = build_trajectories(spans())
    assert [placed.relation for placed in run.calls] == ["start", "extends"]
    assert not run.incomplete
    assert [(tool.name, tool.arguments, tool.result, tool.inferred) for tool in run.tool_calls] == [
        ("weather", '{"town":"Rome"}', "sun in Rome", not decorated),
        ("weather", '{"town":"Pisa"}', "sun in Pisa", not decorated),
    ]
    results = [node.message for node in run.nodes if node.message.role == "tool"]
    assert len(results) == 2
    if decorated:
        assert all(shown_with_tools(result, Timeline(run).below(run.agents[0]).answered) for result in results)


def test_a_decorated_function_is_the_same_tool() -> None:
    assert convert_function_to_tool(arttrace.tool(weather)) == convert_function_to_tool(weather)

    class Weather:
        def of(self, town: str) -> str:
            """Of a town"""
            return "sun"

        @arttrace.tool
        def decorated(self, town: str) -> str:
            """Of a town"""
            return "sun"

    bare, ours = (convert_function_to_tool(one).model_dump() for one in (Weather().of, Weather().decorated))
    ours["function"]["name"] = "of"
    assert bare == ours


@pytest.mark.parametrize("status", [400, 404, 429, 500])
@pytest.mark.parametrize("name", CALLS)
def test_failures_are_the_users_own(name: str, status: int, server: OllamaServer, spans: Spans) -> None:
    def call() -> Any:
        server.failures.append(status)
        return CALLS[name](client(server))

    with arttrace.no_capture():
        bare = outcome(call)
    with arttrace.trajectory(name="root"):
        assert outcome(call) == bare
    found, _root = spans()
    assert (found.status_code, found.attributes[semconv.HTTP_STATUS_CODE]) == (2, status)
    assert found.status_message == "model 'llama-x' not found"


def test_no_server_is_the_users_own_failure(spans: Spans) -> None:
    def call() -> Any:
        return Client(host="http://127.0.0.1:9").chat(**ASKED)

    with arttrace.no_capture():
        bare = outcome(call)
    with arttrace.trajectory(name="root"):
        assert outcome(call) == bare
    found, _root = spans()
    assert (found.name, found.status_code) == ("chat llama-x", 2)


def test_a_stream_that_is_cut_or_left_or_fails(server: OllamaServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        server.cut.append(1)
        with pytest.raises(httpx.RemoteProtocolError):
            CALLS["streamed"](client(server))
        server.goes_on.clear()
        stream = client(server).chat(**ASKED, stream=True)
        next(stream)
        stream.close()
        server.goes_on.set()
        for part in client(server).chat(**ASKED, stream=True):
            if part.done:
                break
        server.error = b'{"error":"an error was encountered while running the model"}\n'
        with pytest.raises(ResponseError):
            CALLS["streamed"](client(server))
    cut, left, whole, failed, _root = spans()
    assert cut.attributes[semconv.INTERRUPTED] == "error"
    assert left.attributes[semconv.INTERRUPTED] == "closed"
    for span in (cut, left):
        (answer,) = said(span, semconv.OUTPUT_MESSAGES)
        assert answer["parts"] == [{"type": "reasoning", "content": "I shoul"}]
    assert_recorded(whole, True)
    assert (failed.status_code, failed.attributes[semconv.ERROR_TYPE]) == (2, "stream_error")
    assert failed.status_message == "an error was encountered while running the model"


def test_an_asynchronous_stream_that_is_cancelled(server: OllamaServer, spans: Spans) -> None:
    async def read(begun: asyncio.Event) -> None:
        async with AsyncClient(host=server.url) as c:
            async for _ in await c.chat(**ASKED, stream=True):
                begun.set()

    async def cancelled() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(read(begun))
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    with arttrace.trajectory(name="root"):
        server.goes_on.clear()
        asyncio.run(cancelled())
        server.goes_on.set()
    left, _root = spans()
    assert left.attributes[semconv.INTERRUPTED] == "cancelled"


def test_what_is_not_to_be_recorded_is_not(server: OllamaServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        c = client(server)
        with arttrace.no_capture():
            c.chat(**ASKED)
        with suppress_instrumentation():
            c.chat(**ASKED)
    assert [span.name for span in spans()] == ["invoke_agent root"]
    before = model_call.orphans["ollama"]
    client(server).chat(**ASKED)
    assert model_call.orphans["ollama"] == before + 1


def test_content_is_kept_as_the_settings_say(server: OllamaServer, spans: Spans) -> None:
    for mode in ("off", "redacted"):
        with arttrace.trajectory(name="root", capture_content=mode):
            client(server).chat(**ASKED)
    off, _, redacted, _ = spans()
    assert not {*semconv.CONTENT_OF_A_CALL, semconv.REQUEST_FIELDS} & off.attributes.keys()
    assert off.attributes[semconv.USAGE_INPUT_TOKENS] == 10
    shown = repr(redacted.attributes)
    assert not [text for text in ("Rome", "sun", "Be brief", "I should look", IMAGE) if text in shown]


@pytest.mark.parametrize("way", CLIENTS)
def test_plain_http_clients_are_captured_where_that_is_switched_on(
    way: str, server: OllamaServer, spans: Spans, tmp_path: Path
) -> None:
    """A server streams unless it is told not to; what somebody else has at such a path is no model call."""
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=True)
    library, ask = CLIENTS[way]
    asked = {"model": "llama-x", "messages": [{"role": "user", "content": "Rome?"}]}
    with arttrace.trajectory(name="root"):
        for body in (asked, asked | {"stream": False}, {"messages": asked["messages"]}, {"model": "llama-x"}):
            content = json.dumps(body).encode()
            ask(importlib.import_module(library), "POST", f"{server.url}/api/chat", content=content)
    streamed, whole, _root = spans()
    assert len(server.sent) == 4
    for span in (streamed, whole):
        (answer,) = said(span, semconv.OUTPUT_MESSAGES)
        assert [part["type"] for part in answer["parts"]] == ["reasoning", "text", "tool_call"]
        assert span.attributes[semconv.PROVIDER_NAME] == "ollama"
        assert semconv.INTERRUPTED not in span.attributes
    assert streamed.attributes[semconv.REQUEST_STREAM] is True
    assert semconv.REQUEST_STREAM not in whole.attributes


def test_plain_http_clients_are_not_captured_otherwise(server: OllamaServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        requests.post(f"{server.url}/api/generate", json={"model": "llama-x", "prompt": "Sky?"}, timeout=60)
    assert [span.name for span in spans()] == ["invoke_agent root"]


def test_what_is_counted_as_not_captured(
    server: OllamaServer, spans: Spans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that is only loaded is not asked; what is at such a path and names no model may be another protocol."""
    monkeypatch.setattr(summary, "_path", tmp_path / "tally")
    monkeypatch.setattr(summary, "_tally", summary.Tally())
    with arttrace.trajectory(name="root"):
        client(server).chat("llama-x")
        client(server).chat(**ASKED)
        for path, body in (
            ("api/chat", {"model": "llama-x"}),
            ("api/chat", {"messages": HISTORY[:1]}),
            ("api/generate", {"model": "llama-x", "prompt": "Sky?"}),
            ("v1/systemone", {"model": "llama-x", "state": "Sky", "questions": {}}),
        ):
            httpx.post(f"{server.url}/{path}", json=body)
    spans()
    summary.write()
    passed = Counter[str]()
    for line in filter(None, (tmp_path / "tally").read_bytes().splitlines()):
        passed.update(json.loads(line)["passed"])
    assert passed == {
        f"127.0.0.1/api/chat ({summary.BY_NONE})": 1,
        f"127.0.0.1/api/generate ({summary.BY_A_SETTING})": 1,
        "127.0.0.1/v1/systemone (no setting captures them: arttrace does not read this API)": 1,
    }


def test_what_a_route_does_not_reach_is_said_once(
    server: OllamaServer, spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_warned", set())
    here = {"to": "policy:latest", "base_url": "http://127.0.0.1:9/v1"}

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "arttrace"]

    with arttrace.trajectory(name="root"):
        with arttrace.route("gpt-x", **here):
            client(server).chat(**ASKED)
        assert not warnings()
        with arttrace.route("llama-x", **here):
            client(server).generate("llama-x", "Sky?")
            CALLS["streamed"](client(server))
    (shown,) = warnings()
    assert "a call of Ollama's own protocol is neither routed nor asked for token ids" in shown
    assert "OpenAI-compatible address" in shown
    assert [span.status_code for span in spans()] == [0] * 4


def test_an_image_too_large_to_be_kept_is_named(server: OllamaServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        large = {"role": "user", "content": "What is it?", "images": [PNG + bytes(7 << 20)]}
        client(server).chat("llama-x", [large])
    found, _root = spans()
    assert list(found.attributes[semconv.TRUNCATED]) == [semconv.INPUT_MESSAGES]
    (user,) = said(found, semconv.INPUT_MESSAGES)
    assert user["parts"][1]["value"] == {"type": "image_url"}
    assert (MESSAGE["content"]) in found.attributes[semconv.OUTPUT_MESSAGES]
