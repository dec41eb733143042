"""The anthropic client captured: the user gets what the bare client gives, what was said is recorded."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import anthropic
import httpx2
import pytest
from messages_server import CONTENT, TOKENS, MessagesServer, serve_messages
from outcomes import outcome, plain
from scripted_server import Reply, serve_script

import arttrace
from arttrace.capture.calls import routing
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import decode_logprobs, decode_token_ids
from arttrace.wire import Exchange, decode

Spans = Callable[[], list[SpanRow]]
KEY = "sk-ant-secret-0123456789"
TOOL: Any = {"name": "weather", "description": "Of a town", "input_schema": {"type": "object"}}
HISTORY: Any = [
    {"role": "user", "content": "Rome?"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "t0", "name": "weather", "input": {"town": "Rome"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t0", "content": "sun"}]},
]
ASKED: dict[str, Any] = {
    "model": "claude-x", "max_tokens": 64, "system": "Be brief.", "messages": HISTORY, "tools": [TOOL],
    "stop_sequences": ["END"],
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with serve_messages() as running:
        yield running


def client(server: MessagesServer, **more: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=server.url, api_key=KEY, **{"max_retries": 0, **more})


def stream_helper(c: anthropic.Anthropic) -> Any:
    with c.messages.stream(**ASKED) as stream:
        return [[event.type for event in stream], stream.get_final_message()]


def streamed_raw(c: anthropic.Anthropic) -> Any:
    with c.messages.with_streaming_response.create(**ASKED) as response:
        return response.parse()


CALLS: dict[str, Callable[[anthropic.Anthropic], Any]] = {
    "create": lambda c: c.messages.create(**ASKED),
    "create, streamed": lambda c: list(c.messages.create(**ASKED, stream=True)),
    "stream": stream_helper,
    "raw": lambda c: c.messages.with_raw_response.create(**ASKED).parse(),
    "streaming response": streamed_raw,
    "beta": lambda c: c.beta.messages.create(**ASKED, betas=["x-1"]),
    "by hand": lambda c: c.post("/v1/messages", cast_to=object, body=ASKED),
}


def messages(span: SpanRow, name: str) -> Any:
    return json.loads(span.attributes[name])


def assert_recorded(span: SpanRow, provider: str = "anthropic", model: str = "claude-x") -> None:
    said = span.attributes
    assert (span.name, span.status_code) == (f"chat {model}", 0)
    assert said[semconv.PROVIDER_NAME] == provider
    assert said[semconv.REQUEST_MODEL] == model
    assert said[semconv.REQUEST_MAX_TOKENS] == 64
    assert list(said[semconv.REQUEST_STOP_SEQUENCES]) == ["END"]
    assert messages(span, semconv.TOOL_DEFINITIONS)[0]["function"]["name"] == "weather"
    sent = messages(span, semconv.INPUT_MESSAGES)
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool"]
    assert sent[3]["parts"] == [{"type": "tool_call_response", "response": "sun", "id": "t0"}]
    (answer,) = messages(span, semconv.OUTPUT_MESSAGES)
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "text", "tool_call"]
    assert answer["parts"][0]["content"] == CONTENT[0]["thinking"]
    assert json.loads(answer["parts"][2]["arguments"]) == CONTENT[2]["input"]
    assert list(said[semconv.RESPONSE_FINISH_REASONS]) == ["tool_calls"]
    assert (said[semconv.USAGE_INPUT_TOKENS], said[semconv.USAGE_OUTPUT_TOKENS]) == (10, 4)
    assert said[semconv.USAGE_CACHE_READ_INPUT_TOKENS] == 6
    assert KEY not in repr(said)


@pytest.mark.parametrize("name", CALLS)
def test_every_way_to_call(name: str, server: MessagesServer, spans: Spans) -> None:
    call = CALLS[name]
    with arttrace.no_capture():
        bare = plain(call(client(server)))
    with arttrace.trajectory(name="root"):
        assert plain(call(client(server))) == bare
    found, _root = spans()
    assert_recorded(found)
    assert semconv.INTERRUPTED not in found.attributes


@pytest.mark.parametrize("name", ["create", "create, streamed", "stream"])
def test_the_asynchronous_client_too(name: str, server: MessagesServer, spans: Spans) -> None:
    async def call() -> Any:
        async with anthropic.AsyncAnthropic(base_url=server.url, api_key=KEY, max_retries=0) as c:
            if name == "create":
                return await c.messages.create(**ASKED)
            if name == "stream":
                async with c.messages.stream(**ASKED) as stream:
                    return await stream.get_final_message()
            return [event async for event in await c.messages.create(**ASKED, stream=True)]

    with arttrace.no_capture():
        bare = plain(asyncio.run(call()))
    with arttrace.trajectory(name="root"):
        assert plain(asyncio.run(call())) == bare
    found, _root = spans()
    assert_recorded(found)


@pytest.mark.parametrize("status", [400, 401, 429, 529])
def test_failures_are_the_users_own(status: int, server: MessagesServer, spans: Spans) -> None:
    def call() -> Any:
        server.failures.append(status)
        return client(server).messages.create(**ASKED)

    with arttrace.no_capture():
        bare = outcome(call)
    with arttrace.trajectory(name="root"):
        assert outcome(call) == bare
    found, _root = spans()
    assert (found.status_code, found.attributes[semconv.HTTP_STATUS_CODE]) == (2, status)
    assert "scripted" in found.status_message


def test_retries_are_one_call(server: MessagesServer, spans: Spans) -> None:
    server.failures += [529, 500]
    with arttrace.trajectory(name="root"):
        client(server, max_retries=3).messages.create(**ASKED)
    found, _root = spans()
    assert_recorded(found)
    assert found.attributes[semconv.ATTEMPTS] == 3


def test_a_stream_that_is_cut_or_left_or_fails(server: MessagesServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        server.cut.append(6)
        with pytest.raises(httpx2.RemoteProtocolError):
            list(client(server).messages.create(**ASKED, stream=True))
        with client(server).messages.stream(**ASKED) as stream:
            next(iter(stream))
        server.error_event = True
        with pytest.raises(anthropic.APIStatusError):
            list(client(server).messages.create(**ASKED, stream=True))
    cut, left, failed, _root = spans()
    assert cut.attributes[semconv.INTERRUPTED] == "error"
    (answer,) = messages(cut, semconv.OUTPUT_MESSAGES)
    assert answer["parts"] == [{"type": "reasoning", "content": "I should look."}]
    assert left.attributes[semconv.INTERRUPTED] == "closed"
    assert (failed.status_code, failed.attributes[semconv.ERROR_TYPE]) == (2, "stream_error")


def test_counting_tokens_is_no_call(server: MessagesServer, spans: Spans) -> None:
    with arttrace.trajectory(name="root"):
        assert client(server).messages.count_tokens(model="m", messages=HISTORY).input_tokens == 12
    assert [span.name for span in spans()] == ["invoke_agent root"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "model", ["anthropic.claude-x", "arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc"]
)
def test_bedrock(model: str, stream: bool, server: MessagesServer, spans: Spans) -> None:
    bedrock = anthropic.AnthropicBedrock(
        base_url=server.url, aws_region="eu-west-1", aws_access_key="k", aws_secret_key="s", max_retries=0
    )
    asked = ASKED | {"model": model}

    def call() -> Any:
        return list(bedrock.messages.create(**asked, stream=True)) if stream else bedrock.messages.create(**asked)

    with arttrace.no_capture():
        bare = plain(call())
    with arttrace.trajectory(name="root"):
        assert plain(call()) == bare
    found, _root = spans()
    assert_recorded(found, "aws.bedrock", model)
    assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in found.attributes) is stream


@pytest.mark.parametrize("stream", [False, True])
def test_vertex(stream: bool, server: MessagesServer, spans: Spans) -> None:
    vertex = anthropic.AnthropicVertex(
        base_url=server.url, region="r", project_id="p", access_token="t-0123456789", max_retries=0
    )
    with arttrace.trajectory(name="root"):
        if stream:
            list(vertex.messages.create(**ASKED, stream=True))
        else:
            vertex.messages.create(**ASKED)
    found, _root = spans()
    assert_recorded(found, "gcp.vertex_ai")


@pytest.mark.parametrize("stream", [False, True])
def test_bedrock_and_vertex_asynchronously(stream: bool, server: MessagesServer, spans: Spans) -> None:
    keys = {"aws_region": "eu-west-1", "aws_access_key": "k", "aws_secret_key": "s"}
    project = {"region": "r", "project_id": "p", "access_token": "t-0123456789"}

    @arttrace.trajectory(name="root")
    async def asks(made: Any, **asked: Any) -> None:
        async with made as cloud:
            if stream:
                assert [event async for event in await cloud.messages.create(**ASKED | asked, stream=True)]
            else:
                await cloud.messages.create(**ASKED | asked)

    asyncio.run(
        asks(anthropic.AsyncAnthropicBedrock(base_url=server.url, max_retries=0, **keys), model="anthropic.claude-x")
    )
    asyncio.run(asks(anthropic.AsyncAnthropicVertex(base_url=server.url, max_retries=0, **project)))
    bedrock, vertex = (span for span in spans() if span.name.startswith("chat "))
    assert_recorded(bedrock, "aws.bedrock", "anthropic.claude-x")
    assert_recorded(vertex, "gcp.vertex_ai")


@pytest.mark.parametrize("stream", [False, True])
def test_the_policys_tokens_are_recorded(stream: bool, server: MessagesServer, spans: Spans) -> None:
    server.tokens = True
    with arttrace.trajectory(name="root"):
        if stream:
            stream_helper(client(server))
        else:
            client(server).messages.create(**ASKED)
    found, _root = spans()
    assert_recorded(found)
    assert decode_token_ids(found.attributes[semconv.PROMPT_TOKEN_IDS]) == tuple(TOKENS["prompt_token_ids"])
    assert decode_token_ids(found.attributes[semconv.TOKEN_IDS]) == tuple(TOKENS["token_ids"])
    assert decode_logprobs(found.attributes[semconv.LOGPROBS]) == tuple(TOKENS["logprobs"])


def test_a_route_leads_to_the_policy(server: MessagesServer, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ARTTRACE_POLICY_API_KEY", "policy-key-0123456789")
    with serve_script(lambda _: Reply("x")) as vendor:
        vendors = anthropic.Anthropic(base_url=vendor.url.removesuffix("/v1"), api_key=KEY, max_retries=0)
        with (
            arttrace.route("*", to="policy:latest", base_url=f"{server.url}/v1", sampling="policy"),
            arttrace.trajectory(name="root"),
        ):
            vendors.messages.create(**ASKED, tool_choice={"type": "any"}, extra_body={"temperature": 0.2})
        assert not vendor.sent
    (path, headers, body) = server.sent[0]
    assert (path, body["model"], headers["authorization"]) == (
        "/v1/messages", "policy:latest", "Bearer policy-key-0123456789",
    )  # fmt: skip
    assert "x-api-key" not in headers
    assert body["tool_choice"] == {"type": "auto"}
    assert "temperature" not in body
    found, _root = spans()
    assert found.attributes[semconv.ROUTED_FROM] == "claude-x"


def test_what_a_route_does_not_reach_is_said_once(
    server: MessagesServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_warned", set())
    vertex = anthropic.AnthropicVertex(
        base_url=server.url, region="r", project_id="p", access_token="t-0123456789", max_retries=0
    )
    with arttrace.route("*", to="policy:latest", base_url="http://127.0.0.1:9/v1"), arttrace.trajectory(name="root"):
        for _ in range(2):
            vertex.messages.create(**ASKED)
    shown = [one.getMessage() for one in caplog.records if "Vertex AI" in one.getMessage()]
    assert len(shown) == 1
    assert "neither routed nor asked for token ids; use the Anthropic client itself" in shown[0]


@pytest.mark.parametrize(
    ("path", "streamed"),
    [
        ("/v1/projects/p/locations/r/publishers/anthropic/models/m:streamRawPredict", True),
        ("/model/anthropic.m/invoke-with-response-stream", True),
        ("/v1/projects/p/locations/r/publishers/anthropic/models/m:rawPredict", False),
        ("/model/anthropic.m/invoke", False),
    ],
)
def test_the_paths_of_the_clouds_say_whether_a_call_streams(path: str, streamed: bool) -> None:
    said = decode(Exchange(b'{"messages": []}', path=path)).attributes
    assert said.get(semconv.REQUEST_STREAM, False) is streamed
    assert said[semconv.REQUEST_MODEL].removeprefix("anthropic.") == "m"


@pytest.mark.parametrize(
    ("kind", "body", "failure"),
    [
        ("application/json", b'{"type": "error", "error": {"message": "full"}}', ("stream_error", "full")),
        (
            "text/event-stream",
            b'data: {"type": "message_start", "message": {}}\n\ndata: {"type"\n\ndata: 3\n\n',
            ("invalid_response", "2 events of the stream are no JSON objects"),
        ),
    ],
)
def test_an_answer_that_tells_of_a_failure_is_one(kind: str, body: bytes, failure: tuple[str, str]) -> None:
    assert decode(Exchange(b"{}", 200, {"content-type": kind}, body, path="/v1/messages")).failure == failure


def test_what_is_no_message_is_said_and_never_raises() -> None:
    for body in (b"", b"[]", b"{", b'{"content": 3}', b'{"content": [3, {"type": 3}]}', b"event: x\ndata: 3\n\n"):
        for kind in ("application/json", "text/event-stream", "application/vnd.amazon.eventstream"):
            for request in (b"{}", b'{"messages": [3]}', b'{"messages": [{"content": [[], {"type": "tool_result"}]}]}'):
                exchange = Exchange(request, 200, {"content-type": kind}, body, path="/v1/messages")
                assert decode(exchange).name.startswith("chat")


def test_blocks_of_unknown_types_are_kept() -> None:
    block = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
    body = json.dumps({"content": [block, {"type": "text", "text": "a"}], "stop_reason": "end_turn"}).encode()
    request = json.dumps({"messages": [{"role": "assistant", "content": [block]}]}).encode()
    said = decode(Exchange(request, 200, {}, body, path="/v1/messages")).attributes
    (answer,) = json.loads(said[semconv.OUTPUT_MESSAGES])
    assert answer["parts"] == [{"type": "other", "value": block}, {"type": "text", "content": "a"}], "in their order"
    assert json.loads(said[semconv.INPUT_MESSAGES])[0]["parts"] == [{"type": "other", "value": block}]


@pytest.mark.parametrize(
    ("field", "changes"),
    [
        ({"tool_choice": {"type": "auto"}}, False),
        ({"tool_choice": {"type": "any"}}, True),
        ({"output_config": {"effort": "low"}}, False),
        ({"output_config": {"format": {"type": "json_schema"}}}, True),
    ],
)
def test_what_changes_the_sampling_is_noted(field: dict[str, Any], changes: bool) -> None:
    exchange = Exchange(json.dumps({"messages": []} | field).encode(), path="/v1/messages")
    assert (semconv.SAMPLING_SETTINGS in decode(exchange).attributes) is changes
