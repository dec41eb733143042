"""Gemini's API: contents and answers, whole, streamed as events or as an array, cut anywhere, or nonsense."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import pytest
from gemini_server import CALL, PARTS, USAGE, answer_of, chunks_of
from hostile import closed, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from arttrace.records import semconv
from arttrace.records.message import Message, ToolCallPart, has_media
from arttrace.records.values.tokens import decode_logprobs
from arttrace.wire import Decoded, Exchange, api_of, decode, operation_of, provider_of
from arttrace.wire.apis.gemini.contents import messages_of, parts_of

MODEL = "/v1beta/models/gemini-x"
WHOLE, STREAM = f"{MODEL}:generateContent", f"{MODEL}:streamGenerateContent"
MCP = {
    "mcpServers": [
        {"name": "crm", "streamableHttpTransport": {"url": "https://crm", "headers": {"X-Tenant": "s3cret"}}}
    ]
}
EVENTS = {"content-type": "text/event-stream"}
REQUEST: dict[str, Any] = {
    "systemInstruction": {"parts": [{"text": "Be brief."}]},
    "contents": [
        {"role": "user", "parts": [{"text": "Rome?"}, {"inlineData": {"mimeType": "image/png", "data": "aGk="}}]},
        {"role": "model", "parts": [*PARTS, {"executableCode": {"language": "PYTHON", "code": "1"}}]},
        {"role": "function", "parts": [{"functionResponse": {"name": "weather", "id": "c1", "response": {"a": 1}}}]},
    ],
    "tools": [
        {"functionDeclarations": [{"name": "weather", "parameters": {"type": "OBJECT"}}], "googleSearch": {}},
        MCP,
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "AUTO"}},
    "generationConfig": {
        "topP": 0.5,
        "candidateCount": 2,
        "seed": 7,
        "stopSequences": ["x"],
        "responseMimeType": "a/b",
    },
    "cachedContent": "cachedContents/x",
}


def run(path: str, body: Any, request: Any = REQUEST, **options: Any) -> Decoded:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode(Exchange(json.dumps(request).encode(), **{"status": 200, "body": data, "path": path, **options}))


def sse(chunks: Any) -> bytes:
    return b"".join(f"data: {json.dumps(chunk)}\r\n\r\n".encode() for chunk in chunks)


def said(decoded: Decoded, name: str) -> Any:
    return json.loads(decoded.attributes[name])


@pytest.mark.parametrize(
    ("path", "api", "model", "provider"),
    [
        (WHOLE, "generate_content", "gemini-x", "gcp.gemini"),
        (STREAM, "generate_content", "gemini-x", "gcp.gemini"),
        ("/v1beta/tunedModels/mine:generateContent", "generate_content", "tunedModels/mine", "gcp.gemini"),
        (
            "/v1/projects/p/locations/l/publishers/google/models/gemini-x:streamGenerateContent",
            "generate_content", "gemini-x", "gcp.vertex_ai",
        ),
        (
            "/v1/projects/p/locations/l/endpoints/12:generateContent",
            "generate_content", "endpoints/12", "gcp.vertex_ai",
        ),
        ("/v1beta1/publishers/google/models/gemini-x:generateContent", "generate_content", "gemini-x", "gcp.vertex_ai"),
        (f"{MODEL}:embedContent", "embed_content", "gemini-x", "gcp.gemini"),
        (f"{MODEL}:batchEmbedContents", "embed_content", "gemini-x", "gcp.gemini"),
        ("/v1/projects/p/locations/l/publishers/google/models/text-embedding-5:predict",
         "embed_content", "text-embedding-5", "gcp.vertex_ai"),
    ],
)  # fmt: skip
def test_the_path_says_what_is_asked_of_which_model(path: str, api: str, model: str, provider: str) -> None:
    assert (api_of(path), provider_of(path, "127.0.0.1")) == (api, provider)
    decoded = run(path, {})
    assert decoded.name == f"{operation_of(path)} {model}"
    assert decoded.attributes.get(semconv.REQUEST_STREAM, False) is ("stream" in path)
    assert semconv.OPENAI_API_TYPE not in decoded.attributes


@pytest.mark.parametrize(
    "end", ["countTokens", "batchGenerateContent", "predict", "generateContents", "generateAnswer"]
)
def test_other_paths_are_no_calls(end: str) -> None:
    assert api_of(f"{MODEL}:{end}") is None


def test_a_request_is_read_whole() -> None:
    decoded = run(WHOLE, answer_of(*PARTS))
    attributes = decoded.attributes
    user, model, tool = said(decoded, semconv.INPUT_MESSAGES)
    image = {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "aGk="}
    assert user["parts"] == [{"type": "text", "content": "Rome?"}, {"type": "other", "value": image}]
    assert [part["type"] for part in model["parts"]] == ["reasoning", "text", "tool_call", "other"]
    assert (model["role"], tool["role"], tool["name"]) == ("assistant", "tool", "weather")
    assert tool["parts"] == [{"type": "tool_call_response", "response": {"a": 1}, "id": "c1"}]
    assert said(decoded, semconv.SYSTEM_INSTRUCTIONS) == [{"type": "text", "content": "Be brief."}]
    function = {"name": "weather", "parameters": {"type": "object"}}
    kept = json.loads(json.dumps(MCP).replace("s3cret", "[secret]"))
    assert said(decoded, semconv.TOOL_DEFINITIONS) == [
        {"type": "function", "function": function},
        {"googleSearch": {}},
        kept,
    ]
    assert (attributes[semconv.REQUEST_TOP_P], attributes[semconv.REQUEST_SEED]) == (0.5, 7)
    assert (attributes[semconv.REQUEST_CHOICE_COUNT], attributes[semconv.REQUEST_STOP_SEQUENCES]) == (2, ["x"])
    assert said(decoded, semconv.REQUEST_FIELDS) == {
        "toolConfig": REQUEST["toolConfig"],
        "cachedContent": "cachedContents/x",
        "generationConfig": {"responseMimeType": "a/b"},
    }
    assert attributes[semconv.SAMPLING_SETTINGS] == ["responseMimeType"]
    assert attributes[semconv.MESSAGES_KEPT] == ["cachedContent"]
    messages = messages_of(REQUEST["contents"])
    assert messages is not None
    assert [has_media(message) for message in messages] == [True, False, False]


def snake(value: Any) -> Any:
    if isinstance(value, list):
        return [snake(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name): snake(item) for name, item in value.items()}


def test_names_in_snake_case_are_read_as_well() -> None:
    camel, other = (run(WHOLE, answer_of(*PARTS), request).attributes for request in (REQUEST, snake(REQUEST)))
    differing = {semconv.REQUEST_FIELDS, semconv.INPUT_MESSAGES, semconv.TOOL_DEFINITIONS}
    assert {name: camel[name] for name in camel if name not in differing} == {
        name: other[name] for name in other if name not in differing
    }
    for name in differing:  # what is kept as it came has its own names
        as_camel = camel[name].replace('"executableCode"', '"executable_code"')
        assert snake(json.loads(other[name])) == snake(json.loads(as_camel))


@pytest.mark.parametrize(
    ("config", "altered"),
    [
        ({"generationConfig": {"responseMimeType": "text/plain", "temperature": 0.1}}, None),
        ({"generationConfig": {"responseJsonSchema": {"type": "object"}}}, ["responseJsonSchema"]),
        ({"toolConfig": {"functionCallingConfig": {"mode": "ANY"}}}, ["toolConfig"]),
    ],
)
def test_what_changes_the_sampling_is_noted(config: dict[str, Any], altered: list[str] | None) -> None:
    assert run(WHOLE, answer_of(), {"contents": [], **config}).attributes.get(semconv.SAMPLING_SETTINGS) == altered


ANSWERS = {
    "tools": answer_of(*PARTS),
    "text": answer_of({"text": "It is sunny."}),
    "cut short": answer_of({"text": "It is"}, reason="MAX_TOKENS"),
    "signed text": answer_of({"text": "It is sunny.", "thoughtSignature": "c2ln"}),
    "blocked": {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": USAGE, "responseId": "r1"},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_a_stream_gives_what_the_whole_gives(name: str) -> None:
    request = {**REQUEST, "generationConfig": {}}
    whole = run(WHOLE, ANSWERS[name], request)
    chunks = list(chunks_of(ANSWERS[name]))
    for body, headers in ((sse(chunks), EVENTS), (json.dumps(chunks, indent=2).encode(), {})):
        streamed = run(STREAM, body, request, headers=headers)
        assert streamed.attributes.pop(semconv.REQUEST_STREAM) is True
        assert (streamed.attributes, streamed.failure) == (whole.attributes, None)


def test_how_an_answer_ended_is_said_in_the_words_of_chat() -> None:
    ended = {name: run(WHOLE, answer).attributes[semconv.RESPONSE_FINISH_REASONS] for name, answer in ANSWERS.items()}
    assert ended == {
        "tools": ["tool_calls"], "text": ["stop"], "cut short": ["length"], "signed text": ["stop"],
        "blocked": ["content_filter"],
    }  # fmt: skip
    (said_why,) = said(run(WHOLE, ANSWERS["blocked"]), semconv.OUTPUT_MESSAGES)[0]["parts"]
    assert said_why["value"] == {"type": "prompt_feedback", "blockReason": "SAFETY"}


def test_several_candidates_are_as_many_answers() -> None:
    candidates = [
        {"content": {"parts": [{"text": text}]}, "finishReason": "STOP", "index": index,
         "logprobsResult": {"chosenCandidates": [{"token": text, "logProbability": -0.5 - index}]}}
        for index, text in ((1, "b"), (0, "a"))
    ]  # fmt: skip
    chunks = [{"candidates": [one]} for one in candidates]
    for path, body, headers in (
        (WHOLE, json.dumps({"candidates": candidates}).encode(), {}),
        (STREAM, sse(chunks), EVENTS),
    ):
        decoded = run(path, body, headers=headers)
        assert [answer["parts"][0]["content"] for answer in said(decoded, semconv.OUTPUT_MESSAGES)] == ["a", "b"]
        assert decode_logprobs(decoded.attributes[semconv.LOGPROBS]) == (-0.5,)
        assert decode_logprobs(decoded.attributes[semconv.LOGPROBS + ".1"]) == (-1.5,)
        assert semconv.INTERRUPTED not in decoded.attributes
    one_missing = run(STREAM, sse(chunks[:1]), headers=EVENTS)
    assert one_missing.attributes[semconv.INTERRUPTED] == "error"


def test_the_counts_are_of_all_that_was_read_and_sampled() -> None:
    usage = {"promptTokenCount": 5, "toolUsePromptTokenCount": 2, "thoughtsTokenCount": 3}
    said_so = run(WHOLE, answer_of({"text": "a"}, usageMetadata=usage)).attributes
    assert (said_so[semconv.USAGE_INPUT_TOKENS], said_so[semconv.USAGE_OUTPUT_TOKENS]) == (7, 3)
    assert semconv.USAGE_CACHE_READ_INPUT_TOKENS not in said_so


@pytest.mark.parametrize("ending", ["complete", "closed", "error"])
@pytest.mark.parametrize("form", ["events", "array"])
def test_a_stream_that_is_cut_anywhere_gives_its_beginning(form: str, ending: Any) -> None:
    chunks = list(chunks_of(answer_of(*PARTS)))
    body = sse(chunks) if form == "events" else json.dumps(chunks, indent=2).encode()
    request = {**REQUEST, "generationConfig": {}}
    lengths = []
    for end in range(0, len(body) - 4, 7):
        decoded = run(STREAM, body[:end], request, headers=EVENTS if form == "events" else {}, ending=ending)
        attributes = decoded.attributes
        is_whole = semconv.RESPONSE_FINISH_REASONS in attributes
        if not is_whole:
            assert attributes[semconv.INTERRUPTED] == ("error" if ending == "complete" else ending)
        parts = said(decoded, semconv.OUTPUT_MESSAGES)[0]["parts"] if semconv.OUTPUT_MESSAGES in attributes else []
        lengths.append(len(json.dumps(parts)))
    assert all(before <= after for before, after in pairwise(lengths))
    assert lengths[0] < lengths[-1]


def test_a_failure_behind_the_whole_answer_is_the_users() -> None:
    """A client has no end mark to know that nothing more comes: it raises, where the connection breaks."""
    chunks = sse(chunks_of(answer_of(*PARTS)))
    request = {**REQUEST, "generationConfig": {}}
    broken = run(STREAM, chunks, request, headers=EVENTS, ending="error")
    assert (broken.is_done, broken.attributes[semconv.INTERRUPTED]) == (False, "error")
    closed = run(STREAM, chunks, request, headers=EVENTS, ending="closed")
    assert closed.is_done
    assert semconv.INTERRUPTED not in closed.attributes


@pytest.mark.parametrize(
    ("path", "body", "headers", "failure"),
    [
        (WHOLE, b"", {}, ("invalid_response", "the response is no JSON object")),
        (WHOLE, b"<html>", {}, ("invalid_response", "the response is no JSON object")),
        (STREAM, b"<html>", {}, ("invalid_response", "the response is no JSON object")),
        (STREAM, sse([3]), EVENTS, ("invalid_response", "1 events of the stream are no JSON objects")),
        (STREAM, sse([{"error": {"message": "full"}}]), EVENTS, ("stream_error", "full")),
        (STREAM, sse([{}]) + b'{\n"error": {"message": "full"}}', EVENTS, ("stream_error", "full")),
        (STREAM, b'[{"candidates": []},\n{"error": {"message": "full"}}]', {}, ("stream_error", "full")),
        (WHOLE, b'{"error": {"message": "full"}}', {}, ("stream_error", "full")),
    ],
)
def test_an_answer_that_tells_of_a_failure_is_one(path: str, body: bytes, headers: Any, failure: Any) -> None:
    assert run(path, body, headers=headers).failure == failure


def test_the_error_of_a_stream_that_was_refused_is_alone_in_a_list() -> None:
    refused = run(STREAM, [{"error": {"code": 429, "message": "slower"}}], status=429)
    assert refused.failure == ("429", "slower")


def test_a_call_whose_arguments_come_in_pieces_is_one() -> None:
    """As Vertex AI streams them."""
    pieces: list[dict[str, Any]] = [
        {"name": "book", "id": "c1", "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.to.city", "stringValue": "Ro", "willContinue": True}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.to.city", "stringValue": "me"}], "willContinue": True},
        {"partialArgs": [{"jsonPath": "$.seats[1]", "numberValue": 2}, {"jsonPath": "$.now", "boolValue": False}],
         "willContinue": True},
        {},
    ]  # fmt: skip
    parts = [{"functionCall": piece} for piece in pieces] + [{"functionCall": {"name": "book", "args": {"a": 1}}}]
    first, second = parts_of([{"parts": [part]} for part in parts])
    assert isinstance(first, ToolCallPart)
    assert (first.name, first.id) == ("book", "c1")
    assert json.loads(first.arguments) == {"to": {"city": "Rome"}, "seats": [None, 2], "now": False}
    assert second == ToolCallPart("book", '{"a":1}')


def test_what_a_client_keeps_of_a_stream_is_one_message() -> None:
    """It sends back a content for each chunk."""
    chunks = [chunk["candidates"][0]["content"] for chunk in chunks_of(answer_of(*PARTS))]
    assert messages_of([*chunks, {"parts": [{"text": "So?"}]}]) == (
        Message("assistant", parts_of([{"parts": PARTS}])),
        Message("user", parts_of([{"parts": [{"text": "So?"}]}])),
    )


def test_content_too_deep_to_be_written_costs_itself() -> None:
    for depth in range(880, 1000, 3):
        deep = json.loads(closed(200))
        text = json.dumps({"contents": [{"parts": [{"functionCall": {"name": "f", "args": {"a": deep}}}]}]})
        text = text.replace(closed(200), closed(depth))
        tools = '{"contents": [], "tools": [{"functionDeclarations": [{"name": "f", "parameters": @}]}]}'
        for request in (text, tools.replace("@", closed(depth))):
            decoded = decode(Exchange(request.encode(), 200, {}, json.dumps(answer_of(CALL)).encode(), path=WHOLE))
            assert decoded.attributes[semconv.RESPONSE_ID] == "r1"


_PATHS = st.sampled_from([WHOLE, STREAM, f"{MODEL}:embedContent"])
_TYPES = st.sampled_from(["application/json", "text/event-stream"])
_quiet = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
_BODIES = st.one_of(
    st.binary(max_size=60),
    damaged([answer_of(*PARTS)]).map(str.encode),
    damaged(list(chunks_of(answer_of(*PARTS)))).map(lambda text: text.encode()[:-3]),
    damaged(answer_of(*PARTS, CALL)).map(lambda text: f"data: {text}\n\n".encode()),
)
_REQUESTS = st.one_of(st.binary(max_size=60), damaged(REQUEST).map(str.encode))


@_quiet
@given(_PATHS, _TYPES, _REQUESTS, _BODIES, st.sampled_from(["complete", "closed", "error"]))
def test_no_exchange_makes_decode_raise(path: str, kind: str, request: bytes, body: bytes, ending: Any) -> None:
    for status in (200, 500):
        for limit in (8 << 20, 60):
            exchange = Exchange(request, status, {"content-type": kind}, body, ending, path=path)
            json.dumps(decode(exchange, limit=limit).attributes)
