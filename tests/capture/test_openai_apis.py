"""The openai client beyond single calls: other APIs, helpers, Azure and custom clients, chains."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from model_server import IDS, LOGPROBS, TEXT, ModelServer, serve_model
from outcomes import plain

import arttrace
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.tokens import decode_logprobs, decode_token_ids

Spans = Callable[[], list[SpanRow]]
KEY = "sk-secret-0123456789"


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with serve_model() as running:
        yield running


def responses_helper(client: openai.OpenAI) -> Any:
    with client.responses.stream(model="tools", input="hi") as stream:
        return [[event.type for event in stream], stream.get_final_response()]


def chat_helper(client: openai.OpenAI) -> Any:
    with client.chat.completions.stream(model="tools", messages=[{"role": "user", "content": "hi"}]) as stream:
        return [[event.type for event in stream], stream.get_final_completion()]


def left_helper(client: openai.OpenAI) -> Any:
    with client.responses.stream(model="m", input="hi") as stream:
        return [event.type for event, _ in zip(stream, range(3), strict=False)]


CALLS: dict[str, tuple[str, Callable[[openai.OpenAI], Any]]] = {
    "completion": ("text_completion m", lambda c: c.completions.create(model="m", prompt="hi")),
    "completion of two prompts": (
        "text_completion two-ids",
        lambda c: c.completions.create(model="two-ids", prompt=["a", "b"], n=2, echo=True, logprobs=1),
    ),
    "completion, streamed": (
        "text_completion ids",
        lambda c: list(c.completions.create(model="ids", prompt="hi", logprobs=1, stream=True)),
    ),
    "embeddings": ("embeddings m", lambda c: c.embeddings.create(model="m", input=["secret"])),
    "responses helper": ("chat tools", responses_helper),
    "responses helper, left": ("chat m", left_helper),
    "chat helper": ("chat tools", chat_helper),
    "by hand": (
        "chat m",
        lambda c: c.post("/responses", cast_to=object, body={"model": "m", "input": "hi"}),
    ),
}


def test_a_path_by_hand_needs_no_slash(server: ModelServer, spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    client = openai.OpenAI(base_url=server.url, api_key=KEY)
    server.reset()
    with arttrace.trajectory(name="root"):
        client.post("responses", cast_to=object, body={"model": "m-flaky", "input": "hi"})
    call, _root = spans()
    assert call.attributes[semconv.ATTEMPTS] == len(server.sent) == 2
    assert caplog.text == ""


@pytest.mark.parametrize("name", CALLS)
def test_other_apis_and_helpers(name: str, server: ModelServer, spans: Spans) -> None:
    client = openai.OpenAI(base_url=server.url, api_key=KEY)
    span_name, call = CALLS[name]
    with arttrace.no_capture():
        bare = plain(call(client))
    with arttrace.trajectory(name="root"):
        assert plain(call(client)) == bare
    found, _root = spans()
    assert found.name == span_name
    assert found.status_code == 0
    assert semconv.INTERRUPTED not in found.attributes or name.endswith("left")
    if name == "completion, streamed":
        assert decode_token_ids(found.attributes[semconv.TOKEN_IDS]) == tuple(IDS)
        assert decode_logprobs(found.attributes[semconv.LOGPROBS]) == tuple(LOGPROBS)
        assert decode_token_ids(found.attributes[semconv.PROMPT_TOKEN_IDS]) == (0, 2)
    if name == "embeddings":
        assert "secret" not in str(found)
        assert not {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES} & found.attributes.keys()


def test_a_chain_of_responses_names_the_one_before(server: ModelServer, spans: Spans) -> None:
    client = openai.OpenAI(base_url=server.url, api_key=KEY)
    with arttrace.trajectory(name="root"):
        first = client.responses.create(model="m", input="hi", instructions="be good")
        client.responses.create(model="m", input="more", previous_response_id=first.id)
    one, two, _ = spans()
    assert semconv.PREVIOUS_RESPONSE_ID not in one.attributes
    assert two.attributes[semconv.PREVIOUS_RESPONSE_ID] == one.attributes[semconv.RESPONSE_ID] == first.id
    assert json.loads(two.attributes[semconv.INPUT_MESSAGES])[0]["parts"] == [{"type": "text", "content": "more"}]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_azure_clients_put_the_deployment_into_the_path(asynchronous: bool, server: ModelServer, spans: Spans) -> None:
    options: dict[str, Any] = {
        "azure_endpoint": server.url.removesuffix("/v1"), "api_version": "2025-01-01", "api_key": KEY,
    }  # fmt: skip
    ask: dict[str, Any] = {"model": "gpt-x", "messages": [{"role": "user", "content": "hi"}]}

    async def program() -> Any:
        async with openai.AsyncAzureOpenAI(**options) as client:
            return await client.chat.completions.create(**ask)

    with arttrace.trajectory(name="root"):
        answer = (
            asyncio.run(program()) if asynchronous else openai.AzureOpenAI(**options).chat.completions.create(**ask)
        )
    assert answer.choices[0].message.content == TEXT
    assert server.sent[-1].path == "/openai/deployments/gpt-x/chat/completions"
    call, _ = spans()
    assert call.name == "chat gpt-x"
    assert call.attributes[semconv.PROVIDER_NAME] == "azure.ai.openai"
    assert KEY not in str(call)


def test_a_retried_call_is_one_span_with_an_event_for_the_attempt_that_failed(
    server: ModelServer, spans: Spans
) -> None:
    server.reset()
    with arttrace.trajectory(name="root"):
        openai.OpenAI(base_url=server.url, api_key=KEY).responses.create(model="flaky", input="hi")
    assert len(server.sent) == 2
    call, _ = spans()
    assert call.attributes[semconv.ATTEMPTS] == 2
    (event,) = call.events
    assert event.name == semconv.ATTEMPT_EVENT
    assert event.attributes == {semconv.HTTP_STATUS_CODE: 429, semconv.ERROR_TYPE: "429"}
    assert call.start_ns < event.time_ns < call.end_ns
    assert call.status_code == 0


def test_the_openai_clients_calls_are_not_counted_again_as_http(
    server: ModelServer, spans: Spans, tmp_path: Any
) -> None:
    arttrace.init(project="test", dir=tmp_path / "data", capture_http=True)
    client = openai.OpenAI(base_url=server.url, api_key=KEY)
    with arttrace.trajectory(name="root"):
        client.responses.create(model="m", input="hi")
        list(client.responses.create(model="m", input="hi", stream=True))
        with arttrace.no_capture():
            client.responses.create(model="m", input="hi")
    assert len(spans()) == 3
