"""google-genai's client captured: the user gets what the bare client gives, what was said is recorded."""

from __future__ import annotations

import asyncio
import importlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
from gemini_server import CALL, PARTS, GeminiServer, answer_of, serve_gemini
from google import genai
from google.genai import _api_client as api_client
from google.genai import errors, types
from google.oauth2.credentials import Credentials
from http_site import CLIENTS
from opentelemetry.instrumentation.utils import suppress_instrumentation
from outcomes import outcome
from pydantic import BaseModel, TypeAdapter

import arttrace
from arttrace.capture.calls import model_call, routing
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories
from arttrace.views.timeline import Timeline, shown_with_tools

Spans = Callable[[], list[SpanRow]]
KEY = "AIza-secret-0123456789"
BRIEFLY = "Be brief."
TOOL = {"function_declarations": [{"name": "weather", "description": "Of a town", "parameters": {"type": "OBJECT"}}]}
HISTORY: Any = [
    {"role": "user", "parts": [{"text": "Rome?"}]},
    {"role": "model", "parts": [{"function_call": {"name": "weather", "args": {"town": "Rome"}}}]},
    {"role": "user", "parts": [{"function_response": {"name": "weather", "response": {"result": "sun"}}}]},
]
RESULT = types.Part.from_function_response(name="weather", response={"result": "sun"})
CONFIG: Any = {
    "system_instruction": BRIEFLY, "tools": [TOOL], "temperature": 0.5, "top_k": 40, "max_output_tokens": 64,
    "stop_sequences": ["END"], "thinking_config": {"include_thoughts": True},
}  # fmt: skip
ASKED: dict[str, Any] = {"model": "gemini-x", "contents": HISTORY, "config": CONFIG}
NO_WAIT = {"attempts": 3, "initial_delay": 0.001, "max_delay": 0.001, "jitter": 0.0}


@pytest.fixture
def server() -> Iterator[GeminiServer]:
    with serve_gemini() as running:
        yield running


def client(server: GeminiServer, **options: Any) -> genai.Client:
    return genai.Client(api_key=KEY, http_options={"base_url": server.url, **options})


def vertex(server: GeminiServer) -> genai.Client:
    return genai.Client(
        vertexai=True,
        project="p",
        location="l",
        credentials=Credentials("ya29-secret-0123456789"),
        http_options={"base_url": server.url},
    )


def plain(answer: Any) -> Any:
    """What the user sees of an answer, or of a stream of them, but for the date of each."""
    return [one.model_dump(exclude={"sdk_http_response"}) for one in (answer if isinstance(answer, list) else [answer])]


def chat_of(c: genai.Client) -> Any:
    return c.chats.create(model="gemini-x", config=CONFIG, history=HISTORY[:2])


def chatted(c: genai.Client) -> Any:
    return chat_of(c).send_message(RESULT)


def chatted_in_chunks(c: genai.Client) -> Any:
    return list(chat_of(c).send_message_stream(RESULT))


def given(call: Callable[[genai.Client], Any], c: genai.Client) -> Any:
    """What a call gives. A client that nobody holds closes itself, before its answer has come."""
    with c:
        return call(c)


CALLS: dict[str, Callable[[genai.Client], Any]] = {
    "whole": lambda c: c.models.generate_content(**ASKED),
    "streamed": lambda c: list(c.models.generate_content_stream(**ASKED)),
    "chat": chatted,
    "chat, streamed": chatted_in_chunks,
}


def said(span: SpanRow, name: str) -> Any:
    return json.loads(span.attributes[name])


def assert_recorded(span: SpanRow, provider: str = "gcp.gemini") -> None:
    attributes = span.attributes
    assert (span.name, span.status_code) == ("generate_content gemini-x", 0)
    assert attributes[semconv.PROVIDER_NAME] == provider
    assert attributes[semconv.REQUEST_MODEL] == "gemini-x"
    assert attributes[semconv.REQUEST_TEMPERATURE] == 0.5
    assert (attributes[semconv.REQUEST_TOP_K], attributes[semconv.REQUEST_MAX_TOKENS]) == (40, 64)
    assert list(attributes[semconv.REQUEST_STOP_SEQUENCES]) == ["END"]
    thinking = said(span, semconv.REQUEST_FIELDS)["generationConfig"]
    assert list(thinking) == ["thinkingConfig"]
    assert said(span, semconv.SYSTEM_INSTRUCTIONS) == [{"type": "text", "content": BRIEFLY}]
    function = {"name": "weather", "description": "Of a town", "parameters": {"type": "object"}}
    assert said(span, semconv.TOOL_DEFINITIONS) == [{"type": "function", "function": function}]
    sent = said(span, semconv.INPUT_MESSAGES)
    assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
    assert sent[2]["name"] == "weather"
    assert sent[2]["parts"] == [{"type": "tool_call_response", "response": {"result": "sun"}, "id": None}]
    (answer,) = said(span, semconv.OUTPUT_MESSAGES)
    thought, text, call = answer["parts"]
    assert thought == {"type": "reasoning", "content": "I should look."}
    assert text == {"type": "text", "content": "Let me look."}
    assert (call["name"], json.loads(call["arguments"]), call["thought_signature"]) == (
        "weather", CALL["functionCall"]["args"], CALL["thoughtSignature"],  # type: ignore[index]
    )  # fmt: skip
    assert list(attributes[semconv.RESPONSE_FINISH_REASONS]) == ["tool_calls"]
    assert (attributes[semconv.RESPONSE_ID], attributes[semconv.RESPONSE_MODEL]) == ("r1", "gemini-x-001")
    assert (attributes[semconv.USAGE_INPUT_TOKENS], attributes[semconv.USAGE_OUTPUT_TOKENS]) == (10, 7)
    assert attributes[semconv.USAGE_CACHE_READ_INPUT_TOKENS] == 6
    assert attributes[semconv.USAGE_REASONING_OUTPUT_TOKENS] == 3
    assert semconv.INTERRUPTED not in attributes
    assert semconv.ATTEMPTS not in attributes
    assert KEY not in repr(attributes)


BACKENDS: dict[str, Callable[[], dict[str, Any]]] = {
    "httpx2": dict,
    "httpx": lambda: {"client_args": {"transport": httpx.HTTPTransport()}},
}


@pytest.mark.parametrize(("backend", "capture_http"), [("httpx2", False), ("httpx", True)])
@pytest.mark.parametrize("name", CALLS)
def test_every_way_to_call(
    name: str, backend: str, capture_http: bool, server: GeminiServer, spans: Spans, tmp_path: Path
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=capture_http)
    call = CALLS[name]
    with arttrace.no_capture():
        bare = plain(given(call, client(server, **BACKENDS[backend]())))
    with arttrace.trajectory(name="root"):
        assert plain(given(call, client(server, **BACKENDS[backend]()))) == bare
    found, _root = spans()
    assert_recorded(found)
    without, with_us = server.sent
    assert without[2] == with_us[2]


ASYNC_BACKENDS: dict[str, Callable[[], dict[str, Any]]] = {
    "aiohttp": dict,
    "httpx2, one client for each loop": dict,
    "httpx": lambda: {"async_client_args": {"transport": httpx.AsyncHTTPTransport()}},
    "httpx2": lambda: {"httpx_async_client": httpx2.AsyncClient()},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("backend", ASYNC_BACKENDS)
def test_the_asynchronous_client_too(
    backend: str, stream: bool, server: GeminiServer, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api_client, "has_aiohttp", backend == "aiohttp")

    async def call() -> Any:
        async with client(server, **ASYNC_BACKENDS[backend]()).aio as c:
            if stream:
                return [chunk async for chunk in await c.models.generate_content_stream(**ASKED)]
            return await c.models.generate_content(**ASKED)

    with arttrace.no_capture():
        bare = plain(asyncio.run(call()))
    with arttrace.trajectory(name="root"):
        assert plain(asyncio.run(call())) == bare
    found, _root = spans()
    assert_recorded(found)


@pytest.mark.parametrize("name", ["whole", "streamed"])
def test_vertex(name: str, server: GeminiServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        given(CALLS[name], vertex(server))
    found, _root = spans()
    assert_recorded(found, "gcp.vertex_ai")
    assert "/projects/p/locations/l/publishers/google/models/gemini-x:" in server.sent[0][0]
    assert "ya29" not in repr(found.attributes)


def weather(town: str) -> str:
    """Of a town"""
    return "sun"


@pytest.mark.parametrize("stream", [False, True])
def test_functions_that_the_client_calls_by_itself_are_a_conversation(
    stream: bool, server: GeminiServer, spans: Spans
) -> None:
    """Each answer is a call; Gemini's tool calls have no ids."""
    server.answers += [answer_of(*PARTS), answer_of({"text": "Sunny."})]
    with arttrace.trajectory(name="root"):
        c = client(server)
        chat = c.chats.create(model="gemini-x", config={"tools": [weather]})
        if stream:
            assert [chunk.text for chunk in chat.send_message_stream("Rome?")][-2:] == ["Sun", "ny."]
        else:
            assert chat.send_message("Rome?").text == "Sunny."
        server.answers += [answer_of({"text": "Sunny too."})]
        if stream:
            list(chat.send_message_stream("Pisa?"))
        else:
            chat.send_message("Pisa?")
    (run,) = build_trajectories(spans())
    assert [placed.relation for placed in run.calls] == ["start", "extends", "extends"]
    assert not run.incomplete
    (tool,) = run.tool_calls
    assert (tool.name, tool.arguments, tool.result, tool.inferred) == (
        "weather", '{"town":"Rome"}', '{"result":"sun"}', True,
    )  # fmt: skip


def test_a_decorated_function_is_the_tool_that_was_asked_for(server: GeminiServer, spans: Spans) -> None:
    server.answers += [answer_of(*PARTS), answer_of({"text": "Sunny."})]
    with arttrace.trajectory(name="root"):
        c = client(server)
        chat = c.chats.create(model="gemini-x", config={"tools": [arttrace.tool(weather)]})
        assert chat.send_message("Rome?").text == "Sunny."
    (run,) = build_trajectories(spans())
    (tool,) = run.tool_calls
    assert (tool.name, tool.result, tool.inferred) == ("weather", "sun", False)
    (result,) = [node.message for node in run.nodes if node.message.role == "tool"]
    assert shown_with_tools(result, Timeline(run).below(run.agents[0]).answered)


def test_embeddings(server: GeminiServer, spans: Spans) -> None:
    asked: Any = {"contents": "secret text", "config": {"output_dimensionality": 2}}
    with arttrace.trajectory(name="root"):
        given(lambda c: c.models.embed_content(model="gemini-embedding", **asked), client(server))
        given(lambda c: c.models.embed_content(model="text-embedding", **asked), vertex(server))
    *found, _root = spans()
    assert [span.name for span in found] == ["embeddings gemini-embedding", "embeddings text-embedding"]
    assert [span.attributes[semconv.EMBEDDINGS_DIMENSION_COUNT] for span in found] == [2, 2]
    assert found[1].attributes[semconv.USAGE_INPUT_TOKENS] == 3
    assert "secret text" not in repr(found)


@pytest.mark.parametrize("status", [400, 403, 429, 503])
@pytest.mark.parametrize("name", ["whole", "streamed"])
def test_failures_are_the_users_own(name: str, status: int, server: GeminiServer, spans: Spans) -> None:
    def call() -> Any:
        server.failures.append(status)
        return given(CALLS[name], client(server))

    with arttrace.no_capture():
        bare = outcome(call)
    with arttrace.trajectory(name="root"):
        assert outcome(call) == bare
    found, _root = spans()
    assert (found.status_code, found.attributes[semconv.HTTP_STATUS_CODE]) == (2, status)
    assert "scripted" in found.status_message


@pytest.mark.parametrize("way", ["httpx2", "aiohttp"])
def test_retries_are_one_call(way: str, server: GeminiServer, spans: Spans) -> None:
    server.failures += [503, 500]
    c = client(server, retry_options=NO_WAIT)

    async def call() -> None:
        async with c.aio as asynchronous:
            await asynchronous.models.generate_content(**ASKED)

    with arttrace.trajectory(name="root"):
        asyncio.run(call()) if way == "aiohttp" else c.models.generate_content(**ASKED)
    found, _root = spans()
    assert found.attributes.pop(semconv.ATTEMPTS) == 3
    assert_recorded(found)
    assert len(found.events) == 2


def test_a_stream_that_is_cut_or_left_or_fails(server: GeminiServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        server.cut.append(1)
        with pytest.raises(httpx2.RemoteProtocolError):
            given(CALLS["streamed"], client(server))
        c = client(server)
        stream = c.models.generate_content_stream(**ASKED)
        next(stream)
        stream.close()
        for error in (
            b'data: {"error": {"code": 503, "message": "full"}}\r\n\r\n',
            b'{"error": {"code": 503, "message": "full"}}',
        ):
            server.error = error
            with pytest.raises(errors.APIError):
                given(CALLS["streamed"], client(server))
    cut, left, *failed, _root = spans()
    assert cut.attributes[semconv.INTERRUPTED] == "error"
    (answer,) = said(cut, semconv.OUTPUT_MESSAGES)
    assert answer["parts"] == [{"type": "reasoning", "content": "I shoul"}]
    assert left.attributes[semconv.INTERRUPTED] == "closed"
    for span in failed:
        assert (span.status_code, span.attributes[semconv.ERROR_TYPE]) == (2, "stream_error")
        assert span.status_message == "full"


def test_an_asynchronous_stream_that_is_cut_or_cancelled(server: GeminiServer, spans: Spans) -> None:
    async def read(begun: asyncio.Event) -> None:
        async with client(server).aio as c:
            async for _ in await c.models.generate_content_stream(**ASKED):
                begun.set()

    async def cancelled() -> None:
        begun = asyncio.Event()
        reading = asyncio.create_task(read(begun))
        await begun.wait()
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading

    with arttrace.trajectory(name="root"):
        server.cut.append(1)
        with pytest.raises(aiohttp.ClientPayloadError):
            asyncio.run(read(asyncio.Event()))
        server.goes_on.clear()
        asyncio.run(cancelled())
        server.goes_on.set()
    cut, left, _root = spans()
    assert cut.attributes[semconv.INTERRUPTED] == "error"
    assert left.attributes[semconv.INTERRUPTED] == "cancelled"
    (answer,) = said(left, semconv.OUTPUT_MESSAGES)
    assert answer["parts"] == [{"type": "reasoning", "content": "I shoul"}]


def test_what_is_not_to_be_recorded_is_not(server: GeminiServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        c = client(server)
        with arttrace.no_capture():
            c.models.generate_content(**ASKED)
        with suppress_instrumentation():
            c.models.generate_content(**ASKED)
        assert c.models.count_tokens(model="gemini-x", contents="Rome?").total_tokens == 12
    assert [span.name for span in spans()] == ["invoke_agent root"]
    before = model_call.orphans["gcp.gemini"]
    given(CALLS["whole"], client(server))
    assert model_call.orphans["gcp.gemini"] == before + 1


def test_content_is_kept_as_the_settings_say(server: GeminiServer, spans: Spans) -> None:
    server.answers += [answer_of(*PARTS)] * 2
    for mode in ("off", "redacted"):
        with arttrace.trajectory(name="root", capture_content=mode):
            given(CALLS["whole"], client(server))
    off, _, redacted, _ = spans()
    assert not {*semconv.CONTENT_OF_A_CALL, semconv.REQUEST_FIELDS} & off.attributes.keys()
    assert off.attributes[semconv.USAGE_INPUT_TOKENS] == 10
    shown = repr(redacted.attributes)
    assert not [text for text in ("Rome", "sun", "c2ln", BRIEFLY, "I should look") if text in shown]


@pytest.mark.parametrize("way", CLIENTS)
def test_plain_http_clients_are_captured_where_that_is_switched_on(
    way: str, server: GeminiServer, spans: Spans, tmp_path: Path
) -> None:
    """A stream without `alt=sse` is a JSON array."""
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=True)
    library, ask = CLIENTS[way]
    key, body = f"{way.replace(', ', '-')}-key-0123456789", json.dumps({"contents": HISTORY}).encode()
    address = f"{server.url}/v1beta/models/gemini-x"
    echo = {"text": f"Your key is {key}."}
    server.answers += [answer_of(echo), answer_of(*PARTS)]
    with arttrace.trajectory(name="root"):
        for asked in ("generateContent", "streamGenerateContent"):
            ask(importlib.import_module(library), "POST", f"{address}:{asked}?key={key}", content=body)
    whole, streamed, _root = spans()
    (message,) = said(whole, semconv.OUTPUT_MESSAGES)
    assert message["parts"] == [{"type": "text", "content": "Your key is [secret]."}]
    (answer,) = said(streamed, semconv.OUTPUT_MESSAGES)
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "text", "tool_call"]
    for span in (whole, streamed):
        assert span.attributes[semconv.PROVIDER_NAME] == "gcp.gemini"
        assert semconv.INTERRUPTED not in span.attributes
        assert key not in repr(span.attributes)


def test_a_session_of_google_auth_sends_the_call(
    server: GeminiServer, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a client certificate: by requests."""
    c = vertex(server)
    monkeypatch.setattr(c._api_client, "_use_google_auth_sync", lambda: True)
    monkeypatch.setattr(c._api_client, "_use_mtls_endpoint", lambda client_cert_loaded: False)
    c._api_client._authorized_session = session = requests.Session()
    monkeypatch.setattr(session, "configure_mtls_channel", lambda _: None, raising=False)
    monkeypatch.setattr(session, "_is_mtls", False, raising=False)
    monkeypatch.setattr(api_client.mtls, "default_client_cert_source", lambda: None)
    with arttrace.trajectory(name="root"):
        CALLS["whole"](c)
        CALLS["streamed"](c)
    *found, _root = spans()
    assert len(found) == 2
    for span in found:
        assert_recorded(span, "gcp.vertex_ai")


def test_what_a_route_does_not_reach_is_said_once(
    server: GeminiServer, spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_warned", set())
    here = {"to": "policy:latest", "base_url": "http://127.0.0.1:9/v1"}

    async def call() -> None:
        async with client(server).aio as c:
            await c.models.generate_content(**ASKED)

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.name == "arttrace"]

    with arttrace.trajectory(name="root"):
        with arttrace.route("gpt-x", **here):
            given(CALLS["whole"], client(server))
        assert not warnings()
        with arttrace.route("gemini-x", **here):
            asyncio.run(call())
            given(CALLS["whole"], client(server))
    (shown,) = warnings()
    assert "a call of Gemini's own protocol is neither routed nor asked for token ids" in shown
    assert "OpenAI-compatible address" in shown
    for found in spans()[:-1]:
        assert_recorded(found)


class _Declared(BaseModel, from_attributes=True):
    description: str | None = None


def test_a_decorated_function_is_one_to_pydantic() -> None:
    """As in google-genai 1, whose lists of tools take functions, and objects with the fields of a declared tool."""

    class Weather:
        @arttrace.tool
        def of(self, town: str) -> str:
            return "sun"

    @arttrace.tool
    def weather(town: str) -> str:
        return "sun"

    taken = TypeAdapter[Any](_Declared | Callable[..., Any])
    for function in (weather, Weather().of):
        assert taken.validate_python(function) is function
        assert function.__module__ == __name__
