"""Model calls of plain HTTP clients, by their exchange: the same to the user, each recorded once, where switched on."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import Mock

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
from model_server import TEXT, ModelServer, serve_model

import arttrace
from arttrace.capture.calls import routing
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import SpanRow

Spans = Callable[[], list[SpanRow]]
HEADERS = {"authorization": "Bearer sk-secret-0123456789"}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with serve_model() as running:
        yield running


@pytest.fixture
def spans(records: Callable[[], list[Record]], tmp_path: Any) -> Spans:
    """Capture with plain HTTP clients switched on; gives the spans of calls."""
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=True)

    def read() -> list[SpanRow]:
        found = [record for record in records() if isinstance(record, SpanRow)]
        return [span for span in found if semconv.OPENAI_API_TYPE in span.attributes]

    return read


def body(model: str, stream: bool) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": "hi"}], "stream": stream}


def with_httpx(library: Any) -> Callable[..., Any]:
    def ask(url: str, model: str, stream: bool, leave: bool) -> Any:
        with library.Client(headers=HEADERS) as client:
            if not stream:
                answer = client.post(url, json=body(model, stream))
                return answer.status_code, answer.json()
            with client.stream("POST", url, json=body(model, stream)) as answer:
                return answer.status_code, first_or_all(answer.iter_lines(), leave)

    return ask


def with_async_httpx(library: Any) -> Callable[..., Any]:
    async def ask(url: str, model: str, stream: bool, leave: bool) -> Any:
        async with library.AsyncClient(headers=HEADERS) as client:
            if not stream:
                answer = await client.post(url, json=body(model, stream))
                return answer.status_code, answer.json()
            async with client.stream("POST", url, json=body(model, stream)) as answer:
                lines = []
                async for line in answer.aiter_lines():
                    lines.append(line)
                    if leave:
                        break
                return answer.status_code, lines

    return lambda *args: asyncio.run(ask(*args))


def with_requests(url: str, model: str, stream: bool, leave: bool) -> Any:
    with requests.Session() as session:
        answer = session.post(url, json=body(model, stream), headers=HEADERS, stream=stream)
        if not stream:
            return answer.status_code, answer.json()
        with answer:
            return answer.status_code, first_or_all(answer.iter_lines(), leave)


async def _aiohttp(url: str, model: str, stream: bool, leave: bool) -> Any:
    async with (
        aiohttp.ClientSession(headers=HEADERS) as session,
        session.post(url, json=body(model, stream)) as answer,
    ):
        if not stream:
            return answer.status, await answer.json()
        lines = []
        async for line in answer.content:
            lines.append(line)
            if leave:
                break
        return answer.status, lines


def with_aiohttp(*args: Any) -> Any:
    return asyncio.run(_aiohttp(*args))


def first_or_all(lines: Iterator[Any], leave: bool) -> list[Any]:
    return [next(lines)] if leave else list(lines)


CLIENTS: dict[str, Callable[..., Any]] = {
    "httpx": with_httpx(httpx),
    "httpx, async": with_async_httpx(httpx),
    "httpx2": with_httpx(httpx2),
    "httpx2, async": with_async_httpx(httpx2),
    "requests": with_requests,
    "aiohttp": with_aiohttp,
}


def seen(client: str, url: str, model: str, stream: bool, leave: bool) -> Any:
    try:
        return CLIENTS[client](url, model, stream, leave)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_plain_client_sees_no_difference_and_its_calls_are_recorded(
    client: str, server: ModelServer, spans: Spans
) -> None:
    url = server.url + "/chat/completions"
    for model, stream, leave in (("m", False, False), ("400", False, False), ("m", True, False), ("stall", True, True)):
        server.reset()
        with arttrace.no_capture():
            bare = seen(client, url, model, stream, leave)
        before = len(spans())
        with arttrace.trajectory(name="root"):
            captured = seen(client, url, model, stream, leave)
        server.release()
        gc.collect()
        assert captured == bare, model
        assert [each.request for each in server.sent[:1]] == [each.request for each in server.sent[1:]], model
        found = spans()
        assert len(found) == before + 1, model
        call = found[-1].attributes
        assert json.loads(call[semconv.INPUT_MESSAGES])[0]["parts"] == [{"type": "text", "content": "hi"}]
        assert call[semconv.HTTP_STATUS_CODE] == (400 if model == "400" else 200)
        assert call[semconv.SERVER_PORT] == int(server.url.split(":")[2].split("/")[0])
        if model == "m":
            assert json.loads(call[semconv.OUTPUT_MESSAGES])[0]["parts"] == [{"type": "text", "content": TEXT}]
            assert semconv.INTERRUPTED not in call
        if leave:
            assert call[semconv.INTERRUPTED] == "closed"
        assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in call) == stream
    refused = seen(client, "http://127.0.0.1:9/v1/chat/completions", "m", False, False)
    assert isinstance(refused, type)
    assert spans()[-1].attributes[semconv.ERROR_TYPE].endswith(refused.__name__)


class FromAFile(requests.adapters.BaseAdapter):
    """Answers from what is no response of urllib3's, as adapters for files, tests and other transports do."""

    def send(self, request: requests.PreparedRequest, *_: Any, **__: Any) -> requests.Response:
        answer = requests.Response()
        answer.status_code, answer.request, answer.url = 200, request, request.url or ""
        answer.headers["content-type"] = "application/json"
        said = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
        answer.raw = io.BytesIO(json.dumps({"id": "c1", "model": "m", "choices": [said]}).encode())
        return answer

    def close(self) -> None: ...


READINGS: dict[str, Callable[[requests.Response], Any]] = {
    "content": lambda answer: answer.content,
    "pieces": lambda answer: b"".join(answer.iter_content(7)),
    "lines of the file": lambda answer: list(answer.raw),
    "the file": lambda answer: (answer.raw.read(3), answer.raw.read()),
    "into a buffer": lambda answer: (answer.raw.readinto(bytearray(4096)), answer.raw.readinto(bytearray(4096))),
    "line by line": lambda answer: list(iter(answer.raw.readline, b"")),
    "parts of lines": lambda answer: list(iter(lambda: answer.raw.readline(5), b"")),
    "all lines": lambda answer: answer.raw.readlines(),
    "the next line": lambda answer: list(iter(lambda: next(answer.raw, None), None)),
    "as text": lambda answer: list(io.TextIOWrapper(answer.raw)),
    "by a buffer": lambda answer: list(io.BufferedReader(answer.raw)),
    "some at a time": lambda answer: list(iter(lambda: answer.raw.read1(9), b"")),
}
OF_URLLIB3: dict[str, Callable[[requests.Response], Any]] = {
    "what is there": lambda answer: list(iter(answer.raw.read1, b"")),
    "as data": lambda answer: (answer.raw.data, answer.raw.data),
    "as JSON": lambda answer: answer.raw.json(),
}


@pytest.mark.parametrize("how", READINGS)
def test_what_requests_reads_from_a_file_is_read_and_recorded_as_well(how: str, spans: Spans) -> None:
    def ask() -> Any:
        with requests.Session() as session:
            session.mount("http://", FromAFile())
            answer = session.post("http://h/v1/chat/completions", json=body("m", False), stream=True)
            return READINGS[how](answer)

    with arttrace.no_capture():
        bare = ask()
    assert ask() == bare
    (call,) = spans()
    assert json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == TEXT


@pytest.mark.parametrize("how", READINGS | OF_URLLIB3)
def test_whatever_reads_the_response_of_urllib3_is_tapped(how: str, server: ModelServer, spans: Spans) -> None:
    def ask() -> Any:
        url, stream = server.url + "/chat/completions", how != "as JSON"
        with requests.post(url, json=body("m", stream), headers=HEADERS, stream=True) as answer:
            read = (READINGS | OF_URLLIB3)[how](answer)
            return answer.raw.closed, answer.raw.tell(), read if isinstance(read, dict) else None

    with arttrace.no_capture():
        bare = ask()
    assert ask() == bare
    (call,) = spans()
    assert json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == TEXT
    assert semconv.INTERRUPTED not in call.attributes


def test_a_response_of_urllib3_that_is_left_early_is_closed_there(server: ModelServer, spans: Spans) -> None:
    with requests.post(server.url + "/chat/completions", json=body("m", True), headers=HEADERS, stream=True) as answer:
        with answer.raw as raw:
            lines = [raw.readline() for _ in range(6)]
        (call,) = spans()
    assert b"content" in b"".join(lines)
    assert call.attributes[semconv.INTERRUPTED] == "closed"
    said = json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"]
    assert TEXT.startswith(said)


def test_ctrl_c_before_a_request_goes_out_costs_that_call_alone(
    server: ModelServer, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask() -> None:
        requests.post(f"{server.url}/chat/completions", json=body("m", stream=False), headers=HEADERS, timeout=30)

    with monkeypatch.context() as patched:
        patched.setattr(routing, "active", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            ask()
    ask()
    interrupted, whole = spans()
    assert interrupted.attributes[semconv.INTERRUPTED] == "cancelled"
    assert semconv.OUTPUT_MESSAGES in whole.attributes


async def test_a_session_of_aiohttp_with_a_base_url_is_asked_for_the_rest_of_it(
    server: ModelServer, spans: Spans
) -> None:
    async with aiohttp.ClientSession(server.url + "/", headers=HEADERS) as session:
        for path in ("chat/completions", "responses", "embeddings"):
            async with session.post(path, json=body("m", False) | {"input": "hi"}) as answer:
                assert answer.status == 200
        with pytest.raises(TypeError):
            await session.post(7, json={})  # type: ignore[arg-type]
    assert [each.attributes[semconv.OPENAI_API_TYPE] for each in spans()] == [
        "chat_completions",
        "responses",
        "embeddings",
    ]


def test_nothing_is_recorded_of_other_paths_nor_where_it_is_not_switched_on(
    server: ModelServer, spans: Spans, tmp_path: Any
) -> None:
    with arttrace.trajectory(name="root"):
        for client in CLIENTS:
            seen(client, server.url + "/moderations", "m", False, False)
    assert spans() == []
    arttrace.init(project="test", dir=tmp_path / "off")
    with arttrace.trajectory(name="root"):
        for client in CLIENTS:
            assert seen(client, server.url + "/chat/completions", "m", False, False)[0] == 200
    arttrace.flush()
    written = b"".join(path.read_bytes() for path in (tmp_path / "off" / "spool").iterdir())
    assert semconv.OPENAI_API_TYPE.encode() not in written


def test_the_openai_client_and_litellm_are_counted_once(server: ModelServer, spans: Spans) -> None:
    os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    options: Any = {"base_url": server.url, "api_key": "sk-secret-0123456789"}
    messages: Any = [{"role": "user", "content": "hi"}]
    with arttrace.trajectory(name="root"):
        openai.OpenAI(**options).chat.completions.create(model="m", messages=messages)
        assert len(spans()) == 1
        # By the openai client, by litellm's own handler, and by that over aiohttp.
        litellm.completion(model="openai/m", messages=messages, **options)
        list(litellm.completion(model="hosted_vllm/m", messages=messages, stream=True, **options))
        assert len(spans()) == 3

        async def ask() -> None:
            await litellm.acompletion(model="openai/m", messages=messages, **options)
            answer = await litellm.acompletion(model="hosted_vllm/m", messages=messages, stream=True, **options)
            assert "".join([chunk.choices[0].delta.content or "" async for chunk in answer]) == TEXT

        asyncio.run(ask())
    calls = spans()
    assert len(calls) == 5
    for call in calls:
        assert json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"] == [{"type": "text", "content": TEXT}]


class HandsOn(httpx.Client):
    """A client that lets another one send, as those do that choose among several."""

    def __init__(self, other: httpx.Client) -> None:
        super().__init__()
        self.other = other

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        self.other.get(f"{str(request.url).partition('/v1')[0]}/token")
        return self.other.send(request, **options)


class HandsOnAsync(httpx.AsyncClient):
    async def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        async with httpx.AsyncClient() as other:
            answer = await other.send(request, **options)
            await answer.aread()
            return answer


class HandsDown(httpx.BaseTransport):
    """A transport that does."""

    def __init__(self, other: httpx.Client) -> None:
        self.other = other

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        return self.other.send(request, stream=True)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["client", "client of a client", "transport", "async"])
def test_a_client_that_lets_another_one_send_has_one_call_with_its_content(
    how: str, stream: bool, server: ModelServer, spans: Spans
) -> None:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": stream}
    options: Any = {"base_url": server.url, "api_key": "sk-secret-0123456789"}

    async def ask() -> str:
        async with openai.AsyncOpenAI(http_client=HandsOnAsync(), **options) as client:
            answer = await client.chat.completions.create(**asked)
            return "".join([said(chunk) async for chunk in answer]) if stream else said(answer)

    def said(answer: Any) -> str:
        choice = answer.choices[0] if answer.choices else None
        return "" if choice is None else (choice.delta if stream else choice.message).content or ""

    with httpx.Client() as other:
        if how == "async":
            text = asyncio.run(ask())
        else:
            client = {
                "client": lambda: HandsOn(other),
                "client of a client": lambda: HandsOn(HandsOn(other)),
                "transport": lambda: httpx.Client(transport=HandsDown(other)),
            }[how]()
            answer = openai.OpenAI(http_client=client, **options).chat.completions.create(**asked)
            text = "".join(map(said, answer)) if stream else said(answer)
    assert text == TEXT
    (call,) = spans()
    assert json.loads(call.attributes[semconv.INPUT_MESSAGES])[0]["parts"][0]["content"] == "hi"
    assert json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == TEXT
    assert semconv.ATTEMPTS not in call.attributes


class Fetches(httpx.Client):
    """A client that fetches a token by itself before it sends."""

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        if "x-token" not in request.headers:
            fetches_a_token(self, request)
        return super().send(request, **options)


def fetches_a_token(client: httpx.Client, request: httpx.Request) -> None:
    if "moderations" not in request.url.path:
        secret = {"model": "m", "client_secret": "no message"}
        client.post(str(request.url.copy_with(path="/v1/moderations")), json=secret, headers={"x-token": "none"})


@pytest.mark.parametrize("how", ["its send", "a hook", "plain, a hook"])
def test_what_a_client_sends_for_a_call_is_not_that_call(how: str, server: ModelServer, spans: Spans) -> None:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    server.reset()
    with Fetches() if how == "its send" else httpx.Client() as client:
        if how != "its send":
            client.event_hooks = {"request": [lambda request: fetches_a_token(client, request)]}
        if how.startswith("plain"):
            client.post(f"{server.url}/chat/completions", json=asked)
        else:
            openai.OpenAI(
                base_url=server.url, api_key="sk-secret-0123456789", http_client=client
            ).chat.completions.create(**asked)
    assert [one.path for one in server.sent] == ["/v1/moderations", "/v1/chat/completions"]
    is_that_call(spans())


async def test_what_middleware_of_aiohttp_sends_for_a_call_is_not_that_call(server: ModelServer, spans: Spans) -> None:
    async def signed(request: aiohttp.ClientRequest, handler: Any) -> Any:
        for moment in ("before", "after"):
            if moment == "after":
                answer = await handler(request)
            async with session.post(
                server.url + "/moderations", json={"model": "m", "moment": moment}, middlewares=()
            ) as told:
                assert told.status == 200
        return answer

    async with aiohttp.ClientSession(headers=HEADERS) as session:
        url = server.url + "/chat/completions"
        async with session.post(url, json=body("m", False), middlewares=(signed,)) as answer:
            await answer.read()
    is_that_call(spans())


async def test_headers_that_aiohttp_can_read_but_once_are_sent(server: ModelServer, spans: Spans) -> None:
    async with aiohttp.ClientSession() as session:
        url = server.url + "/chat/completions"
        async with session.post(url, json=body("m", False), headers=iter(HEADERS.items())) as answer:
            await answer.read()
    assert server.sent[-1].headers["authorization"] == HEADERS["authorization"]
    is_that_call(spans())


def is_that_call(spans: list[SpanRow]) -> None:
    (call,) = spans
    assert json.loads(call.attributes[semconv.INPUT_MESSAGES])[0]["parts"][0]["content"] == "hi"
    assert json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == TEXT
    assert semconv.ATTEMPTS not in call.attributes


def streamed_httpx(library: Any) -> Callable[[str, bytes], int]:
    return lambda url, sent: int(library.post(url, content=iter([sent])).status_code)


def streamed_requests(url: str, sent: bytes) -> int:
    return requests.post(url, data=iter([sent]), timeout=60).status_code


def streamed_aiohttp(url: str, sent: bytes) -> int:
    async def pieces() -> Any:
        yield sent

    async def ask() -> int:
        async with aiohttp.ClientSession() as session, session.post(url, data=pieces()) as answer:
            await answer.read()
            return answer.status

    return asyncio.run(ask())


@pytest.mark.parametrize(
    "ask",
    [streamed_httpx(httpx), streamed_httpx(httpx2), streamed_requests, streamed_aiohttp],
    ids=["httpx", "httpx2", "requests", "aiohttp"],
)
def test_a_request_that_is_streamed_is_said_to_be_missing(
    ask: Callable[[str, bytes], int], server: ModelServer, spans: Spans
) -> None:
    assert ask(f"{server.url}/chat/completions", json.dumps(body("m", False)).encode()) == 200
    (call,) = spans()
    assert call.attributes[semconv.TRUNCATED] == [semconv.INPUT_MESSAGES]
    assert json.loads(call.attributes[semconv.OUTPUT_MESSAGES])[0]["parts"][0]["content"] == TEXT
