"""Bedrock's runtime: Converse and other APIs' bodies, whole and in Amazon's event stream, cut anywhere, or nonsense."""

from __future__ import annotations

import base64
import json
from itertools import pairwise
from typing import Any

import pytest
from bedrock_server import (
    CALL,
    COMPLETION,
    CONTENT,
    METRICS,
    THOUGHT,
    USAGE,
    answer_of,
    chunks,
    completion_chunks,
    frame,
    framed,
    pieces_of,
)
from hostile import closed, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from messages_server import aws_frame, events, whole

from arttrace.records import semconv
from arttrace.records.message import Message, ReasoningPart, TextPart, ToolCallPart, ToolResultPart, has_media
from arttrace.wire import Decoded, Exchange, api_of, decode, provider_of
from arttrace.wire.apis.bedrock.blocks import chat_messages
from arttrace.wire.apis.bedrock.invoke_model import api_of_body
from arttrace.wire.messages import parse_messages

MODEL = "/model/amazon.nova-x-v1%3A0"
WHOLE, STREAM = f"{MODEL}/converse", f"{MODEL}/converse-stream"
INVOKED, INVOKED_STREAM = f"{MODEL}/invoke", f"{MODEL}/invoke-with-response-stream"
EVENTS = {"content-type": "application/vnd.amazon.eventstream"}
IMAGE = {"image": {"format": "png", "source": {"bytes": "aGk="}}}
REQUEST: dict[str, Any] = {
    "system": [{"text": "Be brief."}, {"cachePoint": {"type": "default"}}],
    "messages": [
        {"role": "user", "content": [{"text": "Rome?"}, IMAGE]},
        {"role": "assistant", "content": [*CONTENT, {"reasoningContent": {"redactedContent": "aGk="}}]},
        {
            "role": "user",
            "content": [
                {"toolResult": {"toolUseId": "tooluse_1", "content": [{"text": "a"}, {"json": [1]}, IMAGE]}},
                {"toolResult": {"toolUseId": "tooluse_2", "content": [{"json": {"a": 1}}], "status": "error"}},
                {"document": {"format": "txt", "name": "notes", "source": {"text": "It rains."}}},
                {"document": {"format": "pdf", "name": "paper", "source": {"bytes": "aGk="}}},
                {"searchResult": {"source": "s", "title": "News", "content": [{"text": "x"}]}},
                {"guardContent": {"text": {"text": "guarded"}}},
                {"audio": {"format": "wav", "source": {"bytes": "aGk="}}},
                {"image": {"format": "png", "source": {"s3Location": {"uri": "s3://b/k"}}}},
                {"video": {"format": "mp4", "source": {"s3Location": {"uri": "s3://b/v"}}}},
            ],
        },
    ],
    "inferenceConfig": {"maxTokens": 64, "temperature": 0.5, "topP": 0.9, "stopSequences": ["END"]},
    "toolConfig": {
        "tools": [
            {"toolSpec": {"name": "weather", "inputSchema": {"json": {"type": "object"}}}},
            {"systemTool": {"name": "nova_grounding"}},
            {"cachePoint": {"type": "default"}},
        ],
        "toolChoice": {"tool": {"name": "weather"}},
    },
    "additionalModelRequestFields": {"thinking": {"type": "enabled"}},
    "requestMetadata": {"team": "a"},
}


def run(path: str, body: Any, request: Any = REQUEST, **options: Any) -> Decoded:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode(Exchange(json.dumps(request).encode(), **{"status": 200, "body": data, "path": path, **options}))


def said(decoded: Decoded, name: str) -> Any:
    return json.loads(decoded.attributes[name])


@pytest.mark.parametrize(
    ("path", "api", "model"),
    [
        (WHOLE, "converse", "amazon.nova-x-v1:0"),
        (STREAM, "converse", "amazon.nova-x-v1:0"),
        ("/prefix/model/us.meta.llama3/converse", "converse", "us.meta.llama3"),
        ("/model/arn:aws:bedrock:eu:1:inference-profile/eu.x/converse", "converse",
         "arn:aws:bedrock:eu:1:inference-profile/eu.x"),
        ("/model/arn%3Aaws%3Abedrock%3Aeu%3A1%3Ainference-profile%2Feu.x/converse-stream", "converse",
         "arn:aws:bedrock:eu:1:inference-profile/eu.x"),
        ("/model/eu.anthropic.claude-x/invoke", "messages", "eu.anthropic.claude-x"),
        ("/model/anthropic.claude-x/invoke-with-response-stream", "messages", "anthropic.claude-x"),
        (INVOKED, None, "amazon.nova-x-v1:0"),
        ("/model/mine.embedder/invoke", None, "mine.embedder"),
    ],
)  # fmt: skip
def test_the_path_says_what_is_asked_of_which_model(path: str, api: str | None, model: str) -> None:
    assert (api_of(path), provider_of(path, "h")) == (api, "aws.bedrock")
    decoded = run(path, b"{}", {})
    assert (decoded.attributes[semconv.REQUEST_MODEL], decoded.name) == (model, f"chat {model}")
    assert decoded.attributes.get(semconv.REQUEST_STREAM, False) is ("stream" in path)


@pytest.mark.parametrize(
    "path", [f"{MODEL}/count-tokens", "/model/converse", "/guardrail/g/version/1/apply", f"{WHOLE}/x", "/v1/converse"]
)
def test_other_paths_are_no_calls(path: str) -> None:
    assert api_of(path) is None


def test_a_request_is_read_whole() -> None:
    decoded = run(WHOLE, answer_of(*CONTENT, reason="tool_use"))
    attributes = decoded.attributes
    assert decoded.failure is None
    assert (attributes[semconv.REQUEST_MAX_TOKENS], attributes[semconv.REQUEST_TOP_P]) == (64, 0.9)
    assert attributes[semconv.SAMPLING_SETTINGS] == ["toolChoice"]
    assert said(decoded, semconv.REQUEST_FIELDS) == {
        "additionalModelRequestFields": {"thinking": {"type": "enabled"}},
        "requestMetadata": {"team": "a"},
        "toolConfig": {"toolChoice": {"tool": {"name": "weather"}}},
    }
    function = {"name": "weather", "parameters": {"type": "object"}}
    assert said(decoded, semconv.TOOL_DEFINITIONS) == [
        {"type": "function", "function": function}, {"systemTool": {"name": "nova_grounding"}},
    ]  # fmt: skip
    assert said(decoded, semconv.SYSTEM_INSTRUCTIONS) == [{"type": "text", "content": "Be brief."}]
    user, answer, first, second, rest = parse_messages(chat_messages(REQUEST["messages"])) or ()
    assert user.parts[0] == TextPart("Rome?")
    assert has_media(user)
    assert answer.parts[:1] == (ReasoningPart("I should look."),)
    assert answer.tool_calls == (ToolCallPart("weather", '{"town":"Rome"}', "tooluse_1"),)
    assert first == Message("tool", (ToolResultPart("a\n[1]", "tooluse_1"),))
    assert second == Message("tool", (ToolResultPart({"a": 1}, "tooluse_2"),))
    assert [part.content for part in rest.parts if isinstance(part, TextPart)] == [
        "notes\n\nIt rains.", "News\n\nx", "guarded",
    ]  # fmt: skip
    kinds = [part.value["type"] for part in rest.parts if not isinstance(part, TextPart)]  # type: ignore[union-attr]
    assert kinds == ["image_url", "document", "input_audio", "image_url", "video"]
    assert [message["role"] for message in said(decoded, semconv.INPUT_MESSAGES)] == [
        "user", "assistant", "tool", "tool", "user",
    ]  # fmt: skip


def test_a_prompt_that_bedrock_keeps_is_not_in_the_request() -> None:
    prompt = "/model/arn%3Aaws%3Abedrock%3Aeu%3A1%3Aprompt%2FP1%3A1/converse"
    decoded = run(prompt, answer_of({"text": "a"}), {"promptVariables": {"town": {"text": "Rome"}}})
    assert decoded.attributes[semconv.MESSAGES_KEPT] == ["modelId"]
    assert said(decoded, semconv.REQUEST_FIELDS) == {"promptVariables": {"town": {"text": "Rome"}}}


@pytest.mark.parametrize(
    ("field", "altered"),
    [
        ({"toolConfig": {"toolChoice": {"auto": {}}}}, None),
        ({"toolConfig": {"toolChoice": {"any": {}}}}, ["toolChoice"]),
        ({"outputConfig": {"effort": "low"}}, None),
        ({"outputConfig": {"textFormat": {"type": "json_schema"}}}, ["outputConfig"]),
    ],
)
def test_what_changes_the_sampling_is_noted(field: dict[str, Any], altered: list[str] | None) -> None:
    assert run(WHOLE, b"{}", {"messages": [], **field}).attributes.get(semconv.SAMPLING_SETTINGS) == altered


def test_a_message_of_the_models_at_the_end_begins_the_answer() -> None:
    begun = {"messages": [{"role": "user", "content": []}, {"role": "assistant", "content": [{"text": "{"}]}]}
    assert run(WHOLE, b"{}", begun).attributes[semconv.PROMPT_FORM] == "begun"


SERVERS_OWN = [
    {"toolUse": {"toolUseId": "s1", "name": "nova_grounding", "input": {"q": "x"}, "type": "server_tool_use"}},
    {"toolResult": {"toolUseId": "s1", "type": "nova_grounding_result", "content": [{"text": "y"}]}},
    {"text": "So it is."},
]


@pytest.mark.parametrize("content", [CONTENT, [{"text": "Fine."}], [THOUGHT], SERVERS_OWN[2:]])
def test_a_stream_gives_what_the_whole_gives(content: list[dict[str, Any]]) -> None:
    answer = answer_of(*content, reason="tool_use", trace={"promptRouter": {"invokedModelId": "arn:m"}})
    whole_one, streamed = run(WHOLE, answer), run(STREAM, b"".join(framed(answer)), headers=EVENTS)
    novas = chunks({kind: event} for kind, event in pieces_of(answer))
    invoked = decode(
        Exchange(json.dumps(REQUEST).encode(), 200, EVENTS, b"".join(novas), path=INVOKED_STREAM), called="converse"
    )
    assert whole_one.attributes[semconv.RESPONSE_MODEL] == "arn:m"
    for decoded in (streamed, invoked):
        assert decoded.failure is None
        assert decoded.is_done
        attributes = {name: value for name, value in decoded.attributes.items() if name != semconv.REQUEST_STREAM}
        (mine,), (theirs,) = (
            json.loads(attributes.pop(semconv.OUTPUT_MESSAGES)),
            said(whole_one, semconv.OUTPUT_MESSAGES),
        )
        for part in (*mine["parts"], *theirs["parts"]):
            if part["type"] == "tool_call":
                part["arguments"] = json.loads(part["arguments"])
        assert mine == theirs
        rest = {name: value for name, value in whole_one.attributes.items() if name != semconv.OUTPUT_MESSAGES}
        assert attributes == rest


def test_the_servers_own_tools_are_no_tool_calls() -> None:
    decoded = run(WHOLE, answer_of(*SERVERS_OWN))
    (answer,) = said(decoded, semconv.OUTPUT_MESSAGES)
    assert [part["type"] for part in answer["parts"]] == ["other", "other", "text"]
    start = [("contentBlockStart", {"start": {kind: {**block[kind]}}, "contentBlockIndex": index})
             for index, block in enumerate(SERVERS_OWN[:2]) for kind in block]  # fmt: skip
    pieces = [
        ("messageStart", {"role": "assistant"}), *start,
        ("contentBlockDelta", {"delta": {"toolUse": {"input": '{"q":"x"}'}}, "contentBlockIndex": 0}),
        ("contentBlockDelta", {"delta": {"toolResult": [{"text": "y"}]}, "contentBlockIndex": 1}),
        ("contentBlockDelta", {"delta": {"text": "So it is."}, "contentBlockIndex": 2}),
        ("messageStop", {"stopReason": "end_turn"}),
    ]  # fmt: skip
    streamed = run(STREAM, b"".join(frame(kind, event) for kind, event in pieces), headers=EVENTS)
    (said_in_pieces,) = said(streamed, semconv.OUTPUT_MESSAGES)
    assert [part["type"] for part in said_in_pieces["parts"]] == ["other", "other", "text"]
    assert said_in_pieces["parts"][1]["value"]["toolResult"]["content"] == [{"text": "y"}]


@pytest.mark.parametrize(
    ("stated", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("guardrail_intervened", "content_filter"),
        ("content_filtered", "content_filter"),
        ("malformed_tool_use", "error"),
    ],
)
def test_how_an_answer_ended_is_said_in_the_words_of_chat(stated: str, reason: str) -> None:
    decoded = run(WHOLE, answer_of({"text": "a"}, reason=stated))
    assert decoded.attributes[semconv.RESPONSE_FINISH_REASONS] == [reason]


@pytest.mark.parametrize("ending", ["complete", "closed", "error"])
def test_a_stream_that_is_cut_anywhere_gives_its_beginning(ending: Any) -> None:
    body = b"".join(framed(answer_of(*CONTENT, reason="tool_use")))
    lengths = []
    for end in range(0, len(body) + 1, 5):
        decoded = run(STREAM, body[:end], headers=EVENTS, ending=ending)
        attributes = decoded.attributes
        assert decoded.failure is None
        if semconv.RESPONSE_FINISH_REASONS not in attributes:
            assert attributes[semconv.INTERRUPTED] == ("error" if ending == "complete" else ending)
        parts = said(decoded, semconv.OUTPUT_MESSAGES)[0]["parts"] if semconv.OUTPUT_MESSAGES in attributes else []
        lengths.append(len(json.dumps(parts)))
    assert all(before <= after for before, after in pairwise(lengths))
    assert lengths[0] < lengths[-1]


@pytest.mark.parametrize(
    ("path", "body", "headers", "failure"),
    [
        (WHOLE, b"", {}, ("invalid_response", "the response is no JSON object")),
        (WHOLE, b"<html>", {}, ("invalid_response", "the response is no JSON object")),
        (STREAM, frame("modelStreamErrorException", {"message": "full"}, "exception"), EVENTS,
         ("stream_error", "modelStreamErrorException: full")),
        (STREAM, aws_frame(b"", **{":message-type": "error", ":error-code": "x", ":error-message": "y"}), EVENTS,
         ("stream_error", "x: y")),
        (STREAM, aws_frame(b"{", **{":event-type": "messageStart"}), EVENTS,
         ("invalid_response", "1 events of the stream are no JSON objects")),
        ("/model/anthropic.x/invoke-with-response-stream",
         frame("throttlingException", {"message": "slower"}, "exception"), EVENTS,
         ("stream_error", "throttlingException: slower")),
    ],
)  # fmt: skip
def test_an_answer_that_tells_of_a_failure_is_one(path: str, body: bytes, headers: Any, failure: Any) -> None:
    assert run(path, body, headers=headers).failure == failure


def test_what_a_refused_request_was_told_is_the_failure() -> None:
    assert run(WHOLE, {"message": "Too many tokens"}, status=429).failure == ("429", "Too many tokens")


ANTHROPICS = {"anthropic_version": "bedrock-2023-05-31", "messages": [{"role": "user", "content": [{"text": "a"}]}]}
CHATS = {"messages": [{"role": "user", "content": "a"}]}


@pytest.mark.parametrize(
    ("body", "api"),
    [
        (ANTHROPICS, "messages"),
        (CHATS, "chat_completions"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}, "chat_completions"),
        ({"messages": [{"role": "user", "content": [{"text": "a"}]}]}, "converse"),
        ({"messages": []}, None),
        ({"messages": [3]}, None),
        ({"prompt": "a"}, None),
        ({"inputText": "a"}, None),
        ([], None),
    ],
)
def test_a_body_tells_its_form(body: Any, api: str | None) -> None:
    assert api_of_body(json.dumps(body).encode()) == api
    assert api_of_body(b"{") is api_of_body(closed(3000)) is None


def chat(body: Any, path: str = INVOKED, **options: Any) -> Decoded:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    exchange = Exchange(json.dumps(CHATS).encode(), **{"status": 200, "body": data, "path": path, **options})
    return decode(exchange, called="chat_completions")


COUNTED = {"x-amzn-bedrock-input-token-count": "10", "x-amzn-bedrock-output-token-count": "4"}


def test_the_counts_of_a_body_without_any_are_bedrocks() -> None:
    for decoded in (
        chat(COMPLETION, headers=COUNTED),
        chat(b"".join(chunks(completion_chunks())), INVOKED_STREAM, headers=EVENTS),
    ):
        attributes = decoded.attributes
        assert (attributes[semconv.USAGE_INPUT_TOKENS], attributes[semconv.USAGE_OUTPUT_TOKENS]) == (10, 4)
        assert attributes[semconv.RESPONSE_FINISH_REASONS] == ["stop"]
        assert semconv.INTERRUPTED not in attributes
    own = chat({**COMPLETION, "usage": {"prompt_tokens": 7, "completion_tokens": 2}}, headers=COUNTED)
    assert (own.attributes[semconv.USAGE_INPUT_TOKENS], own.attributes[semconv.USAGE_OUTPUT_TOKENS]) == (7, 2)
    odd = chat(COMPLETION, headers=dict.fromkeys(COUNTED, "many"))
    assert semconv.USAGE_INPUT_TOKENS not in odd.attributes


def test_mistrals_chat_ends_by_a_stop_reason() -> None:
    said_so = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "a"}, "stop_reason": "length"}]}
    assert chat(said_so).attributes[semconv.RESPONSE_FINISH_REASONS] == ["length"]


def test_what_a_guardrail_wrote_is_no_answer_of_the_models() -> None:
    acted = {"amazon-bedrock-guardrailAction": "INTERVENED"}
    streamed = [*events("claude-x")]
    streamed[-1] |= acted
    for decoded in (
        run("/model/anthropic.x/invoke", whole("claude-x") | acted, ANTHROPICS),
        run("/model/anthropic.x/invoke-with-response-stream", b"".join(chunks(iter(streamed))), ANTHROPICS,
            headers=EVENTS),
        chat(COMPLETION | acted),
    ):  # fmt: skip
        assert decoded.attributes[semconv.RESPONSE_FINISH_REASONS] == ["content_filter"]
        assert said(decoded, semconv.OUTPUT_MESSAGES)[0]["finish_reason"] == "content_filter"
    passed = run("/model/anthropic.x/invoke", whole("x") | {"amazon-bedrock-guardrailAction": "NONE"}, ANTHROPICS)
    assert passed.attributes[semconv.RESPONSE_FINISH_REASONS] == ["tool_calls"]


def test_content_is_left_out_where_it_is_not_wanted() -> None:
    decoded = decode(
        Exchange(json.dumps(REQUEST).encode(), 200, {}, json.dumps(answer_of(*CONTENT)).encode(), path=WHOLE),
        content=False,
    )
    assert not {*semconv.CONTENT_OF_A_CALL, semconv.REQUEST_FIELDS}.intersection(decoded.attributes)
    assert decoded.attributes[semconv.USAGE_INPUT_TOKENS] == 10


_PATHS = st.sampled_from([WHOLE, STREAM, INVOKED, INVOKED_STREAM, "/model/anthropic.x/invoke"])
_quiet = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
_CHUNK = damaged({**COMPLETION, **METRICS}).map(
    lambda text: aws_frame(json.dumps({"bytes": base64.b64encode(text.encode()).decode()}).encode())
)
_FRAMES = st.lists(
    st.one_of(
        st.sampled_from([*framed(answer_of(*CONTENT)), *chunks(completion_chunks())]),
        damaged([*pieces_of(answer_of(*CONTENT))]).map(
            lambda text: b"".join(
                aws_frame(json.dumps(event).encode(), **{":event-type": str(kind)[:200]})
                for kind, event in (pair for pair in json.loads(text) if isinstance(pair, list) and len(pair) == 2)
            )
        ),
        _CHUNK,
        st.binary(max_size=40).map(lambda data: aws_frame(data, **{":event-type": "chunk"})),
        st.binary(max_size=40),
    ),
    max_size=4,
).map(b"".join)
_BODIES = st.one_of(
    damaged(answer_of(*CONTENT, CALL, usage=USAGE)).map(str.encode), damaged(COMPLETION | METRICS).map(str.encode)
)
_REQUESTS = st.one_of(st.binary(max_size=60), damaged(REQUEST).map(str.encode), damaged(CHATS).map(str.encode))


@_quiet
@given(_PATHS, _REQUESTS, st.one_of(_FRAMES, _BODIES), st.sampled_from(["complete", "closed", "error"]))
def test_no_exchange_makes_decode_raise(path: str, request: bytes, body: bytes, ending: Any) -> None:
    api_of_body(request)
    for status in (200, 500):
        for kind in ("application/json", "application/vnd.amazon.eventstream"):
            for called in ("converse", "chat_completions"):
                exchange = Exchange(request, status, {"content-type": kind, **COUNTED}, body, ending, path=path)
                for limit in (8 << 20, 60):
                    json.dumps(decode(exchange, called=called, limit=limit).attributes)  # type: ignore[arg-type]


@_quiet
@given(st.binary(max_size=200))
def test_no_bytes_make_a_frame_raise(data: bytes) -> None:
    for end in range(len(data)):
        size = (16 + end).to_bytes(4)
        odd = size + end.to_bytes(4) + data[: end + 8]
        decode(Exchange(b"{}", 200, EVENTS, odd + data, path=STREAM))


def test_content_too_deep_to_be_written_costs_itself() -> None:
    for depth in (*range(880, 1000, 7), 3000):
        deep = closed(depth)
        text = json.dumps({"messages": [{"role": "assistant", "content": [{"toolUse": {"name": "f", "input": "@"}}]}]})
        tools = '{"messages": [], "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": "@"}}}]}}'
        for request in (text, tools):
            exchange = Exchange(
                request.replace('"@"', deep).encode(), 200, {}, json.dumps(answer_of(CALL)).encode(), path=WHOLE
            )
            assert decode(exchange).attributes[semconv.USAGE_OUTPUT_TOKENS] == 4
