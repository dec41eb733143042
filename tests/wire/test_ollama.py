"""Ollama's API: chats and prompts, whole and streamed, cut anywhere, or nonsense."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hostile import closed, damaged
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ollama_server import CALL, DONE, MESSAGE, message_of

from arttrace.records import semconv
from arttrace.records.message import Message, ToolCallPart, ToolResultPart, has_media
from arttrace.records.values.tokens import decode_logprobs
from arttrace.wire import Decoded, Exchange, api_of, decode, is_call, operation_of, provider_of
from arttrace.wire.apis.ollama.messages import messages_of

CHAT, GENERATE, EMBED = "/api/chat", "/api/generate", "/api/embed"
LINES = {"content-type": "application/x-ndjson"}
WHOLE = {"content-type": "application/json; charset=utf-8"}
REQUEST: dict[str, Any] = {
    "model": "llama-x",
    "messages": [
        {"role": "USER", "content": "Rome?", "images": ["iVBORw0KGgo=", "AAAA"]},
        MESSAGE,
        {"role": "tool", "content": "sun", "tool_name": "weather", "tool_call_id": "c1"},
    ],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}],
    "options": {"top_p": 0.5, "stop": "x", "repeat_penalty": 1.0, "mirostat": 2},
}
STREAM = [
    {"model": "llama-x", "message": message_of("", thinking="I should "), "done": False,
     "logprobs": [{"token": "a", "logprob": -0.5}]},
    {"model": "llama-x", "message": message_of("", thinking="look."), "done": False},
    {"model": "llama-x", "message": message_of("Söt"), "done": False, "logprobs": [{"token": "a", "logprob": -0.25}]},
    {"model": "llama-x", "message": message_of("", {"id": "c1", **CALL}), "done": False},
    {"model": "llama-x", "message": message_of("", CALL), "done": False},
    {"model": "llama-x", "message": message_of(), **DONE},
]  # fmt: skip
BODY = b"".join(json.dumps(line, ensure_ascii=False).encode() + b"\n" for line in STREAM)


def run(
    path: str = CHAT,
    body: Any = BODY,
    request: Any = REQUEST,
    *,
    headers: Mapping[str, str] = LINES,
    status: int = 200,
    ending: Any = "complete",
    **options: Any,
) -> Decoded:
    asked = request if isinstance(request, bytes) else json.dumps(request).encode()
    answered = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode(Exchange(asked, status, dict(headers), answered, ending, path=path), **options)


def said(decoded: Decoded, name: str) -> Any:
    return json.loads(decoded.attributes[name])


@pytest.mark.parametrize(
    ("path", "api", "operation"),
    [
        ("/api/chat", "ollama_chat", "chat"),
        ("/ollama/api/chat", "ollama_chat", "chat"),
        ("/api/generate", "ollama_generate", "text_completion"),
        ("/api/embed", "ollama_embed", "embeddings"),
        ("/api/embeddings", "ollama_embed", "embeddings"),
    ],
)
def test_the_path_says_what_is_asked(path: str, api: str, operation: str) -> None:
    assert (api_of(path), operation_of(path), provider_of(path, "127.0.0.1")) == (api, operation, "ollama")
    decoded = run(path, {})
    assert decoded.name == f"{operation} llama-x"
    assert semconv.OPENAI_API_TYPE not in decoded.attributes


@pytest.mark.parametrize("path", ["/api/chats", "/api/chat/history", "/api/show", "/api/pull", "/v1/chat", "/chat"])
def test_other_paths_are_no_calls(path: str) -> None:
    assert api_of(path) is None
    assert is_call(path, lambda: b"{}") is None


ASKED = {"model": "m", "messages": [{"role": "user", "content": "\ud83d"}], "prompt": "a", "input": ["a"]}


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        ({}, (True, True, True)),
        ({"messages": [], "prompt": "", "input": None}, (False, False, False)),
        ({"messages": None, "prompt": None, "input": []}, (False, False, False)),
        ({"model": None}, (None, None, None)),
        ({"model": {"id": "m"}}, (None, None, None)),
    ],
)
def test_a_body_says_whether_a_model_is_asked(change: dict[str, Any], calls: tuple[bool | None, ...]) -> None:
    body = json.dumps(ASKED | change).encode()
    assert tuple(is_call(path, lambda: body) for path in (CHAT, GENERATE, EMBED)) == calls


@pytest.mark.parametrize("body", [None, b"", b"[]", b"{", b"\xff", closed(100_000).encode()])
def test_what_is_no_request_of_ollamas_is_no_call(body: bytes | None) -> None:
    assert is_call(CHAT, lambda: body) is None


def test_a_request_is_read_whole() -> None:
    decoded = run()
    attributes = decoded.attributes
    messages = messages_of(REQUEST["messages"])
    assert messages is not None
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert [has_media(message) for message in messages] == [True, False, False]
    assert messages[2] == Message("tool", (ToolResultPart("sun", "c1"),), "weather")
    _, *images = said(decoded, semconv.INPUT_MESSAGES)[0]["parts"]
    assert [image["value"] for image in images] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
        {"type": "blob", "modality": "image", "content": "AAAA"},
    ]
    assert (attributes[semconv.REQUEST_TOP_P], attributes[semconv.REQUEST_STOP_SEQUENCES]) == (0.5, ["x"])
    assert attributes[semconv.SAMPLING_SETTINGS] == ["mirostat"]
    assert said(decoded, semconv.REQUEST_FIELDS) == {"options": {"stop": "x", "repeat_penalty": 1.0, "mirostat": 2}}
    begun = run(request=REQUEST | {"messages": REQUEST["messages"][:2]})
    assert begun.attributes[semconv.PROMPT_FORM] == "begun"


def test_a_stream_is_put_together() -> None:
    decoded = run()
    (answer,) = said(decoded, semconv.OUTPUT_MESSAGES)
    call = {"type": "tool_call", "name": "weather", "arguments": '{"town":"Rome"}', "id": None}
    assert answer["parts"] == [
        {"type": "reasoning", "content": "I should look."},
        {"type": "text", "content": "Söt"},
        {**call, "id": "c1"},
        call,
    ]
    assert decode_logprobs(decoded.attributes[semconv.LOGPROBS]) == (-0.5, -0.25)
    assert decoded.attributes[semconv.USAGE_OUTPUT_TOKENS] == 7
    assert (decoded.failure, decoded.is_done) == (None, True)
    assert semconv.INTERRUPTED not in decoded.attributes


@pytest.mark.parametrize("headers", [WHOLE, {}, LINES])
def test_a_whole_answer_may_be_written_over_several_lines(headers: dict[str, str]) -> None:
    whole = json.dumps({"model": "llama-x", "message": MESSAGE, **DONE}, indent=2 if headers != LINES else None)
    decoded = run(body=whole.encode(), request=REQUEST | {"stream": False}, headers=headers)
    (answer,) = said(decoded, semconv.OUTPUT_MESSAGES)
    assert [part["type"] for part in answer["parts"]] == ["reasoning", "text", "tool_call"]
    assert (decoded.failure, semconv.INTERRUPTED in decoded.attributes) == (None, False)


@pytest.mark.parametrize("ending", ["closed", "error", "cancelled"])
def test_a_stream_cut_anywhere_is_read_as_far_as_it_came(ending: Any) -> None:
    whole = BODY.rstrip(b"\n")
    for end in range(len(whole)):
        decoded = run(body=whole[:end], ending=ending)
        assert decoded.failure is None, end
        assert decoded.attributes[semconv.INTERRUPTED] == ending
        assert not decoded.is_done
    assert run(body=whole, ending=ending).is_done


def test_a_stream_that_the_server_ends_in_the_middle_is_interrupted() -> None:
    for end in range(len(BODY) - 1):
        if BODY[end - 1 : end] == b"\n":
            assert run(body=BODY[:end]).attributes[semconv.INTERRUPTED] == "error"
    assert run(body=BODY[:-20]).failure == ("invalid_response", "1 lines of the stream are no JSON objects")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"done_reason": "length"}, "length"),
        ({"done_reason": "stop"}, "stop"),
        ({}, None),
    ],
)
def test_why_it_ended(options: dict[str, Any], reason: str | None) -> None:
    whole = {"model": "llama-x", "response": "a", "done": True, **options}
    decoded = run(GENERATE, whole, {"model": "llama-x", "prompt": "b", "stream": False}, headers=WHOLE)
    assert decoded.attributes.get(semconv.RESPONSE_FINISH_REASONS) == (None if reason is None else [reason])


@pytest.mark.parametrize(
    ("body", "status", "stream", "failure"),
    [
        ({"error": "model 'x' not found"}, 404, True, ("404", "model 'x' not found")),
        (BODY[: BODY.index(b"\n") + 1] + b'{"error":"broke"}\n', 200, True, ("stream_error", "broke")),
        ([], 200, False, ("invalid_response", "the response is no JSON object")),
        (b"<html>", 200, False, ("invalid_response", "the response is no JSON object")),
        ({"reply": "hi"}, 200, False,
         ("invalid_response", "the response is none of Ollama's: it has no `message` and no `response`")),
    ],
)  # fmt: skip
def test_an_answer_that_tells_of_a_failure_is_one(body: Any, status: int, stream: bool, failure: Any) -> None:
    headers = WHOLE if status == 404 or not stream else LINES
    assert run(body=body, status=status, request=REQUEST | {"stream": stream}, headers=headers).failure == failure


def test_embeddings_that_are_answered_as_openais_are_counted() -> None:
    decoded = run("/api/embeddings", {"data": [], "model": "e", "usage": {"prompt_tokens": 3}}, headers=WHOLE)
    assert decoded.attributes[semconv.USAGE_INPUT_TOKENS] == 3


def test_a_call_without_arguments_has_an_empty_object() -> None:
    calls = [{"id": "", "function": {"name": "now"}}, {"function": {"name": "now", "arguments": {}}}]
    (message,) = messages_of([{"role": "assistant", "tool_calls": calls}]) or ()
    assert message.parts == (ToolCallPart("now", "{}"), ToolCallPart("now", "{}"))


def test_nothing_that_was_said_is_kept_without_content() -> None:
    shown = repr(run(content=False).attributes)
    assert not [text for text in ("Rome", "sun", "look", "Söt") if text in shown]
    assert run(content=False).attributes[semconv.USAGE_INPUT_TOKENS] == 10


_quiet = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
_BODIES = st.one_of(
    st.binary(max_size=60),
    damaged({"message": MESSAGE, **DONE}).map(str.encode),
    damaged({"response": "a", "thinking": "b", "image": "c", "logprobs": [{"logprob": 1}], **DONE}).map(str.encode),
    damaged(STREAM).map(lambda text: text.replace("},", "}\n").encode()),
)
_REQUESTS = st.one_of(
    st.binary(max_size=60),
    damaged(REQUEST | {"prompt": "a", "suffix": "b", "images": ["AAAA"], "system": "c"}).map(str.encode),
)


@_quiet
@given(
    st.sampled_from([CHAT, GENERATE, EMBED]),
    st.sampled_from(["application/json", "application/x-ndjson"]),
    _REQUESTS,
    _BODIES,
    st.sampled_from(["complete", "closed", "error"]),
)
def test_no_exchange_makes_decode_raise(path: str, kind: str, request: bytes, body: bytes, ending: Any) -> None:
    is_call(path, lambda: request)
    for status in (200, 500):
        for limit in (8 << 20, 60):
            exchange = Exchange(request, status, {"content-type": kind}, body, ending, path=path)
            json.dumps(decode(exchange, limit=limit).attributes)
