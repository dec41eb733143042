"""boto3's calls of models at Bedrock captured: the user gets what the bare client gives, what was said is recorded."""

from __future__ import annotations

import gc
import io
import json
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

import boto3
import faults
import pytest
from bedrock_server import CALL, CONTENT, BedrockServer, answer_of, framed, serve_bedrock
from botocore.config import Config
from botocore.eventstream import EventStream
from botocore.response import StreamingBody
from opentelemetry.instrumentation.utils import suppress_instrumentation
from outcomes import outcome

import arttrace
from arttrace.capture.base import guard
from arttrace.capture.calls import model_call, routing
from arttrace.capture.patches.model_clients import bedrock as bedrock_hook
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories import build_trajectories
from arttrace.views.timeline import Timeline, shown_with_tools
from arttrace.wire.apis import bedrock as bedrock_api

Spans = Callable[[], list[SpanRow]]
KEY = "AKIAIOSFODNN7EXAMPLE"
TOKEN = "session-token-0123456789"
MODEL = "eu.amazon.nova-x-v1:0"
PROFILE = "arn:aws:bedrock:eu-west-1:1:application-inference-profile/abc"
HISTORY: Any = [
    {"role": "user", "content": [{"text": "Rome?"}, {"cachePoint": {"type": "default"}}]},
    {"role": "assistant", "content": [CALL]},
    {"role": "user", "content": [{"toolResult": {"toolUseId": "tooluse_1", "content": [{"json": {"sky": "sun"}}]}}]},
]
SCHEMA = {"type": "object", "properties": {"town": {"type": "string"}}}
ASKED: dict[str, Any] = {
    "messages": HISTORY,
    "system": [{"text": "Be brief."}],
    "inferenceConfig": {"maxTokens": 64, "temperature": 0.5, "stopSequences": ["END"]},
    "toolConfig": {
        "tools": [{"toolSpec": {"name": "weather", "description": "Of a town", "inputSchema": {"json": SCHEMA}}}]
    },
    "additionalModelRequestFields": {"top_k": 40},
    "guardrailConfig": {"guardrailIdentifier": "g1", "guardrailVersion": "1"},
}
ANTHROPICS = {"anthropic_version": "bedrock-2023-05-31", "max_tokens": 64,
    "messages": [{"role": "user", "content": "Rome?"}]}  # fmt: skip
CHATS = {"messages": [{"role": "user", "content": "Rome?"}], "max_completion_tokens": 64}
NOVAS = {"schemaVersion": "messages-v1", "messages": [{"role": "user", "content": [{"text": "Rome?"}]}],
    "inferenceConfig": {"maxTokens": 64}}  # fmt: skip


@pytest.fixture
def server() -> Iterator[BedrockServer]:
    with serve_bedrock() as running:
        yield running


def client(server: BedrockServer, attempts: int = 1, **options: Any) -> Any:
    config = Config(retries={"total_max_attempts": attempts, "mode": "standard"}, read_timeout=60)
    keys = {"aws_access_key_id": KEY, "aws_secret_access_key": "s" * 20, "aws_session_token": TOKEN}
    session = boto3.Session(region_name="eu-west-1", **keys)
    return session.client("bedrock-runtime", endpoint_url=server.url, config=config, **options)


def invoked(c: Any, model: str, body: Any) -> Any:
    return json.loads(c.invoke_model(modelId=model, body=json.dumps(body))["body"].read())


def invoked_in_chunks(c: Any, model: str, body: Any) -> Any:
    return list(c.invoke_model_with_response_stream(modelId=model, body=json.dumps(body))["body"])


def conversed(c: Any, model: str = MODEL, **asked: Any) -> Any:
    answer = c.converse(modelId=model, **ASKED | asked)
    return {name: value for name, value in answer.items() if name != "ResponseMetadata"}


def conversed_in_events(c: Any, model: str = MODEL, **asked: Any) -> Any:
    return list(c.converse_stream(modelId=model, **ASKED | asked)["stream"])


def said(span: SpanRow, name: str) -> Any:
    return json.loads(span.attributes[name])


@pytest.mark.parametrize("model", [MODEL, PROFILE])
@pytest.mark.parametrize("call", [conversed, conversed_in_events])
def test_converse(call: Callable[..., Any], model: str, server: BedrockServer, spans: Spans) -> None:
    bedrock = client(server)
    with arttrace.no_capture():
        bare = call(bedrock, model)
    with arttrace.trajectory(name="root"):
        assert call(bedrock, model) == bare
    span, _root = spans()
    attributes = span.attributes
    assert (span.name, span.status_code) == (f"chat {model}", 0)
    assert (attributes[semconv.PROVIDER_NAME], attributes[semconv.REQUEST_MODEL]) == ("aws.bedrock", model)
    assert attributes.get(semconv.REQUEST_STREAM, False) is (call is conversed_in_events)
    assert (semconv.RESPONSE_TIME_TO_FIRST_CHUNK in attributes) is (call is conversed_in_events)
    assert (attributes[semconv.REQUEST_TEMPERATURE], attributes[semconv.REQUEST_MAX_TOKENS]) == (0.5, 64)
    assert (attributes[semconv.REQUEST_TOP_K], list(attributes[semconv.REQUEST_STOP_SEQUENCES])) == (40, ["END"])
    assert attributes[semconv.AWS_BEDROCK_GUARDRAIL_ID] == "g1"
    assert said(span, semconv.SYSTEM_INSTRUCTIONS) == [{"type": "text", "content": "Be brief."}]
    function = {"name": "weather", "description": "Of a town", "parameters": SCHEMA}
    assert said(span, semconv.TOOL_DEFINITIONS) == [{"type": "function", "function": function}]
    user, asking, result = said(span, semconv.INPUT_MESSAGES)
    assert (user["role"], user["parts"]) == ("user", [{"type": "text", "content": "Rome?"}])
    assert (asking["parts"][0]["name"], json.loads(asking["parts"][0]["arguments"])) == ("weather", {"town": "Rome"})
    assert (result["role"], result["parts"][0]["response"], result["parts"][0]["id"]) == (
        "tool", {"sky": "sun"}, "tooluse_1",
    )  # fmt: skip
    (answer,) = said(span, semconv.OUTPUT_MESSAGES)
    thought, text, tool = answer["parts"]
    assert (thought["type"], thought["content"]) == ("reasoning", "I should look.")
    assert text == {"type": "text", "content": "Let me look."}
    assert (tool["name"], json.loads(tool["arguments"]), tool["id"]) == ("weather", {"town": "Rome"}, "tooluse_1")
    assert list(attributes[semconv.RESPONSE_FINISH_REASONS]) == ["tool_calls"]
    assert (attributes[semconv.USAGE_INPUT_TOKENS], attributes[semconv.USAGE_OUTPUT_TOKENS]) == (10, 4)
    assert attributes[semconv.USAGE_CACHE_READ_INPUT_TOKENS] == 6
    assert attributes[semconv.USAGE_CACHE_WRITE_INPUT_TOKENS] == 1
    assert not {semconv.INTERRUPTED, semconv.ATTEMPTS, semconv.MESSAGES_KEPT}.intersection(attributes)
    assert not any(secret in repr(attributes) for secret in (KEY, TOKEN, "Signature"))
    (bare_path, bare_headers, bare_body), (path, headers, body) = server.sent
    assert (path, body) == (bare_path, bare_body)
    signed = "host;x-amz-date;x-amz-security-token"
    assert signed in headers["authorization"]
    assert headers.keys() == bare_headers.keys()


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("anthropic.claude-x", ANTHROPICS),
        (PROFILE, ANTHROPICS),
        ("openai.gpt-oss-120b-1:0", CHATS),
        (PROFILE, CHATS),
        ("amazon.nova-x", NOVAS),
    ],
    ids=["anthropic", "anthropic by a profile", "chat", "chat by a profile", "nova"],
)
@pytest.mark.parametrize("call", [invoked, invoked_in_chunks])
def test_invoke_model(
    call: Callable[..., Any], model: str, body: dict[str, Any], server: BedrockServer, spans: Spans
) -> None:
    bedrock = client(server)
    with arttrace.no_capture():
        bare = call(bedrock, model, body)
    with arttrace.trajectory(name="root"):
        assert call(bedrock, model, body) == bare
    span, _root = spans()
    attributes = span.attributes
    assert (span.name, span.status_code) == (f"chat {model}", 0)
    assert (attributes[semconv.PROVIDER_NAME], attributes[semconv.REQUEST_MODEL]) == ("aws.bedrock", model)
    assert attributes.get(semconv.REQUEST_STREAM, False) is (call is invoked_in_chunks)
    assert attributes[semconv.REQUEST_MAX_TOKENS] == 64
    (asked,) = said(span, semconv.INPUT_MESSAGES)
    assert (asked["role"], asked["parts"]) == ("user", [{"type": "text", "content": "Rome?"}])
    (answer,) = said(span, semconv.OUTPUT_MESSAGES)
    assert {"type": "text", "content": "Let me look."} in answer["parts"]
    assert list(attributes[semconv.RESPONSE_FINISH_REASONS]) == ["stop" if body is CHATS else "tool_calls"]
    assert (attributes[semconv.USAGE_INPUT_TOKENS], attributes[semconv.USAGE_OUTPUT_TOKENS]) == (10, 4)
    assert semconv.INTERRUPTED not in attributes


def test_a_body_that_is_a_file_is_sent_as_it_is(server: BedrockServer, spans: Spans) -> None:
    """It cannot be read before it is sent: the call is marked where its path tells its API, else it is none."""
    bedrock = client(server)
    with arttrace.trajectory(name="root"):
        for model in ("anthropic.claude-x", "openai.gpt-oss"):
            body = io.BytesIO(json.dumps(ANTHROPICS).encode())
            assert (
                json.loads(bedrock.invoke_model(modelId=model, body=body)["body"].read())["stop_reason"] == "tool_use"
            )
    span, _root = spans()
    assert [sent[2] for sent in server.sent] == [ANTHROPICS] * 2
    assert list(span.attributes[semconv.TRUNCATED]) == [semconv.INPUT_MESSAGES]
    assert semconv.OUTPUT_MESSAGES in span.attributes


def test_whatever_of_ours_fails_the_program_never_notices(
    server: BedrockServer, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    bedrock = client(server)

    def program() -> Any:
        with arttrace.trajectory(name="root"):
            called = [call(bedrock) for call in (conversed, conversed_in_events)]
            called += [call(bedrock, "anthropic.x", ANTHROPICS) for call in (invoked, invoked_in_chunks)]
        return called

    expected = program()
    monkeypatch.setenv("ARTTRACE_RAISE", "0")
    ours = [
        *faults.functions(bedrock_api).values(),
        *(hook for hook in vars(bedrock_hook).values() if isinstance(hook, FunctionType)),
    ]
    for function in ours:
        if function.__module__.startswith("arttrace.wire.apis.bedrock") or function.__name__ in ASKED_BY_HOOKS:
            guard.failures.clear()
            with faults.failing(function):
                assert program() == expected, function
            arttrace.flush()
            spans()
    guard.failures.clear()


ASKED_BY_HOOKS = ("_begin", "_path", "_headers", "_call_of")
"""The functions of the hooks' module that its hooks call."""


def test_a_stream_that_is_cut_at_any_byte_is_the_users_own(server: BedrockServer, spans: Spans) -> None:
    bedrock = client(server)
    server.answers += [answer_of({"text": "Sunny."})] * 400
    whole = len(b"".join(framed(answer_of({"text": "Sunny."}))))
    with arttrace.trajectory(name="root"):
        for place in range(0, whole, 23):
            server.cut_bytes += [place, place]
            with arttrace.no_capture():
                bare = outcome(lambda: conversed_in_events(bedrock))
            assert outcome(lambda: conversed_in_events(bedrock)) == bare
    *found, _root = spans()
    assert len(found) == len(range(0, whole, 23))
    assert {span.attributes.get(semconv.INTERRUPTED) for span in found} == {"error"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        ("amazon.titan-embed-text-v2:0", {"inputText": "secret text", "dimensions": 256}),
        ("cohere.embed-v4:0", {"texts": ["secret text"], "input_type": "search_document"}),
    ],
)
def test_embeddings(model: str, body: dict[str, Any], server: BedrockServer, spans: Spans) -> None:
    server.answers += [{"embedding": [0.5, 0.25], "inputTextTokenCount": 10}] * 2
    bedrock = client(server)
    with arttrace.no_capture():
        bare = invoked(bedrock, model, body)
    with arttrace.trajectory(name="root"):
        assert invoked(bedrock, model, body) == bare
    span, _root = spans()
    attributes = span.attributes
    assert (span.name, attributes[semconv.PROVIDER_NAME]) == (f"embeddings {model}", "aws.bedrock")
    assert attributes[semconv.USAGE_INPUT_TOKENS] == 10
    assert attributes.get(semconv.EMBEDDINGS_DIMENSION_COUNT) == body.get("dimensions")
    assert "secret" not in repr(attributes)
    assert "0.25" not in repr(attributes)
    assert semconv.OPENAI_API_TYPE not in attributes


def test_the_streams_are_botocores_own(server: BedrockServer, spans: Spans) -> None:
    bedrock = client(server)
    with arttrace.trajectory(name="root"):
        body = bedrock.invoke_model(modelId="anthropic.x", body=json.dumps(ANTHROPICS))["body"]
        assert type(body) is StreamingBody
        body.set_socket_timeout(30)
        assert json.loads(b"".join(body.iter_chunks(7)))["stop_reason"] == "tool_use"
        with bedrock.invoke_model(modelId="anthropic.x", body=json.dumps(ANTHROPICS))["body"] as raw:
            assert json.load(raw)["stop_reason"] == "tool_use"
        stream = bedrock.converse_stream(modelId=MODEL, **ASKED)["stream"]
        assert type(stream) is EventStream
        assert [next(iter(event)) for event in stream][-1] == "metadata"
    *found, _root = spans()
    assert [semconv.INTERRUPTED in span.attributes for span in found] == [False, False, False]
    assert [bool(span.attributes[semconv.OUTPUT_MESSAGES]) for span in found] == [True, True, True]


@pytest.mark.parametrize("call", [conversed, conversed_in_events, lambda c: invoked(c, "anthropic.x", ANTHROPICS)])
@pytest.mark.parametrize(
    ("status", "kind"), [(400, "ValidationException"), (403, "AccessDeniedException"), (429, "ThrottlingException")]
)
def test_failures_are_the_users_own(
    call: Callable[..., Any], status: int, kind: str, server: BedrockServer, spans: Spans
) -> None:
    bedrock = client(server)

    def failing() -> Any:
        server.failures.append((status, kind))
        return call(bedrock)

    with arttrace.no_capture():
        bare = outcome(failing)
    with arttrace.trajectory(name="root"):
        assert outcome(failing) == bare
    span, _root = spans()
    assert (span.status_code, span.attributes[semconv.HTTP_STATUS_CODE]) == (2, status)
    assert span.attributes[semconv.ERROR_TYPE] == str(status)
    assert span.status_message == "scripted"


def test_nobody_answers(spans: Spans) -> None:
    with serve_bedrock() as gone:
        bedrock = client(gone)
    with arttrace.no_capture():
        bare = outcome(lambda: conversed(bedrock))
    with arttrace.trajectory(name="root"):
        assert outcome(lambda: conversed(bedrock)) == bare
    span, _root = spans()
    assert (span.status_code, span.attributes[semconv.ERROR_TYPE]) == (
        2, "botocore.exceptions.EndpointConnectionError",
    )  # fmt: skip
    assert semconv.INPUT_MESSAGES in span.attributes


def test_what_fails_before_it_is_sent_is_a_failed_call(server: BedrockServer, spans: Spans) -> None:
    """As where there are no credentials, or they cannot be refreshed: the run was "unread", as if content were off."""
    bedrock = client(server)

    def expired(**_: Any) -> None:
        raise PermissionError("the token has expired")

    bedrock.meta.events.register("before-sign.bedrock-runtime", expired)
    with arttrace.trajectory(name="root"):
        assert outcome(lambda: conversed(bedrock)) == outcome(expired)
    span, _root = found = spans()
    assert (span.attributes[semconv.ERROR_TYPE], span.attributes[semconv.ATTEMPTS]) == ("PermissionError", 0)
    (run,) = build_trajectories(found)
    assert (run.unread, run.incomplete) == ({}, "")
    assert not server.sent


def test_retries_are_one_call(server: BedrockServer, spans: Spans, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    bedrock = client(server, attempts=3)
    with arttrace.trajectory(name="root"):
        for call in (conversed, conversed_in_events):
            server.failures += [(429, "ThrottlingException"), (500, "InternalServerException")]
            call(bedrock)
    whole, streamed, _root = spans()
    for span in (whole, streamed):
        assert (span.attributes[semconv.ATTEMPTS], span.status_code) == (3, 0)
        assert len([event for event in span.events if event.name == semconv.ATTEMPT_EVENT]) == 2
        assert semconv.OUTPUT_MESSAGES in span.attributes


def test_a_stream_that_is_cut_or_left_or_fails(server: BedrockServer, spans: Spans) -> None:
    bedrock = client(server)
    with arttrace.trajectory(name="root"):
        server.cut.append(6)
        cut = outcome(lambda: conversed_in_events(bedrock))
        left = bedrock.converse_stream(modelId=MODEL, **ASKED)["stream"]
        next(iter(left))
        left.close()
        dropped = bedrock.converse_stream(modelId=MODEL, **ASKED)
        next(iter(dropped["stream"]))
        del dropped
        gc.collect()  # botocore's streams refer to themselves
        ended = bedrock.converse_stream(modelId=MODEL, **ASKED)["stream"]
        for event in ended:
            if "messageStop" in event:
                break
        ended.close()
        server.exception = "throttlingException"
        failed = outcome(lambda: conversed_in_events(bedrock))
    with arttrace.no_capture():
        server.exception, server.cut = None, [6]
        assert outcome(lambda: conversed_in_events(bedrock)) == cut
        server.exception = "throttlingException"
        assert outcome(lambda: conversed_in_events(bedrock)) == failed
    cut_off, closed, gone, whole, broken, _root = spans()
    assert cut_off.attributes[semconv.INTERRUPTED] == "error"
    (answer,) = said(cut_off, semconv.OUTPUT_MESSAGES)
    assert [part["content"] for part in answer["parts"]] == ["I should look."]
    assert (closed.attributes[semconv.INTERRUPTED], gone.attributes[semconv.INTERRUPTED]) == ("closed", "closed")
    assert semconv.INTERRUPTED not in whole.attributes
    assert (broken.status_code, broken.attributes[semconv.ERROR_TYPE]) == (2, "stream_error")
    assert broken.status_message == "throttlingException: scripted"


def test_what_is_not_to_be_recorded_is_not(server: BedrockServer, spans: Spans) -> None:
    bedrock = client(server)
    with arttrace.trajectory(name="root"):
        with arttrace.no_capture():
            conversed(bedrock)
        with suppress_instrumentation():
            conversed(bedrock)
        asked = {"converse": {"messages": [{"role": "user", "content": [{"text": "hi"}]}]}}
        assert bedrock.count_tokens(modelId=MODEL, input=asked)["inputTokens"] == 12
    assert [span.name for span in spans()] == ["invoke_agent root"]
    before = model_call.orphans["aws.bedrock"]
    conversed(bedrock)
    assert model_call.orphans["aws.bedrock"] == before + 1


def test_what_a_route_does_not_reach_is_said_once(
    server: BedrockServer, spans: Spans, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "_warned", set())
    bedrock, here = client(server), {"to": "policy:latest", "base_url": "http://127.0.0.1:9/v1"}

    def said_of(model: str) -> list[str]:
        with arttrace.route(model, **here), arttrace.trajectory(name="root"):
            for _ in range(2):
                conversed(bedrock)
                invoked(bedrock, "openai.gpt-oss", CHATS)
                invoked(bedrock, "anthropic.x", ANTHROPICS)
        return [one.getMessage() for one in caplog.records if "routed" in one.getMessage()]

    assert said_of("gpt-4o") == []
    own, anthropics = said_of("*")
    assert "a call of Bedrock's own protocol is neither routed nor asked for token ids" in own
    assert "a call to Bedrock or Vertex AI is neither routed nor asked for token ids" in anthropics
    assert len(server.sent) == 12


def test_an_agent_that_calls_tools_is_a_conversation(server: BedrockServer, spans: Spans) -> None:
    @arttrace.tool
    def weather(town: str) -> dict[str, str]:
        return {"sky": f"sun over {town}"}

    server.answers += [answer_of(*CONTENT, reason="tool_use"), answer_of({"text": "It shines."})]
    bedrock = client(server)

    @arttrace.trajectory
    def agent(question: str) -> str:
        messages = [{"role": "user", "content": [{"text": question}]}]
        while True:
            answer = conversed(bedrock, messages=messages)
            messages.append(answer["output"]["message"])
            if answer["stopReason"] != "tool_use":
                return str(messages[-1]["content"][0]["text"])
            results = [
                {"toolResult": {"toolUseId": asked["toolUseId"], "content": [{"json": weather(**asked["input"])}]}}
                for block in messages[-1]["content"]
                if (asked := block.get("toolUse"))
            ]
            messages.append({"role": "user", "content": results})

    assert agent("Rome?") == "It shines."
    (run,) = build_trajectories(spans())
    assert [placed.relation for placed in run.calls] == ["start", "extends"]
    assert not run.incomplete
    (tool,) = run.tool_calls
    assert (tool.name, tool.id, tool.result, tool.inferred) == (
        "weather", "tooluse_1", '{"sky":"sun over Rome"}', False,
    )  # fmt: skip
    (result,) = [node.message for node in run.nodes if node.message.role == "tool"]
    assert shown_with_tools(result, Timeline(run).below(run.agents[0]).answered)
