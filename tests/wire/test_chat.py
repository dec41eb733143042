"""The decoder against exchanges as servers write them: whole, streamed, cut anywhere, or nonsense."""

from __future__ import annotations

import gzip
import json
import sys
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from arttrace.records import semconv
from arttrace.records.values.tokens import decode_logprobs, decode_token_ids
from arttrace.wire import Decoded, Exchange
from arttrace.wire import decode as wire_decode
from arttrace.wire.apis.anthropic.messages import decode_messages
from arttrace.wire.apis.openai.chat import decode_chat
from arttrace.wire.compression import decompress
from arttrace.wire.sse import event_data

REQUEST: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
STREAM = {"content-type": "text/event-stream"}


def decode(response: Any = None, request: Any = REQUEST, **options: Any) -> Decoded:
    body = response if isinstance(response, bytes) else json.dumps(response).encode()
    exchange = Exchange(json.dumps(request).encode(), **{"status": 200, "body": body, **options})
    return decode_chat(exchange)


def sse(*chunks: Any, done: bool = True) -> bytes:
    events = [chunk if isinstance(chunk, str) else json.dumps(chunk) for chunk in chunks] + ["[DONE]"] * done
    return "".join(f"data: {event}\n\n" for event in events).encode()


def answers(decoded: Decoded) -> Any:
    return json.loads(decoded.attributes[semconv.OUTPUT_MESSAGES])


def test_the_counts_of_a_stream_of_groqs_are_in_a_place_of_its_own() -> None:
    counted = {"prompt_tokens": 2, "completion_tokens": 3}
    chunks = [{"x_groq": {"id": "r"}, "choices": []}, {"x_groq": {"id": "r", "usage": counted}, "choices": []}]
    decoded = decode(sse(*chunks), headers=STREAM)
    found = (decoded.attributes[semconv.USAGE_INPUT_TOKENS], decoded.attributes[semconv.USAGE_OUTPUT_TOKENS])
    assert found == (2, 3)
    assert decode(sse({"x_groq": "r", "choices": []}), headers=STREAM).failure is None


@pytest.mark.parametrize(
    ("said", "cost"),
    [
        ({"cost": 0.25}, 0.25),
        ({"cost": 0}, 0.0),
        ({"cost": 0.25, "is_byok": False, "cost_details": {"upstream_inference_cost": 0.25}}, 0.25),
        ({"cost": 0.0, "is_byok": True, "cost_details": {"upstream_inference_cost": 0.25}}, 0.25),
        ({"cost": None}, None),
        ({"cost": {"total_cost": []}}, None),
        ({"cost": -1}, None),
        ({"cost": 1e999}, None),
        ({"cost": 10**400}, None),
    ],
)
def test_the_cost_that_openrouter_states_is_kept(said: dict[str, Any], cost: float | None) -> None:
    usage = {"prompt_tokens": 2, "completion_tokens": 3, **said}
    whole = decode({"choices": [], "usage": usage})
    streamed = decode(sse({"choices": []}, {"choices": [], "usage": usage}), headers=STREAM)
    assert [one.attributes.get(semconv.USAGE_COST) for one in (whole, streamed)] == [cost, cost]


def test_every_request_parameter_has_its_attribute() -> None:
    request = {
        **REQUEST, "temperature": 0.5, "top_p": 1, "top_k": 4, "max_completion_tokens": 9, "stop": "x", "seed": 3,
        "n": 2, "frequency_penalty": 0.1, "presence_penalty": 0.2, "stream": True, "tools": [{"type": "function"}],
    }  # fmt: skip
    decoded = decode({}, request)
    assert decoded.name == "chat m"
    expected = {
        semconv.OPERATION_NAME: "chat", semconv.OPENAI_API_TYPE: "chat_completions", semconv.REQUEST_MODEL: "m",
        semconv.REQUEST_TEMPERATURE: 0.5, semconv.REQUEST_TOP_P: 1, semconv.REQUEST_TOP_K: 4,
        semconv.REQUEST_MAX_TOKENS: 9, semconv.REQUEST_STOP_SEQUENCES: ["x"], semconv.REQUEST_SEED: 3,
        semconv.REQUEST_CHOICE_COUNT: 2, semconv.REQUEST_FREQUENCY_PENALTY: 0.1, semconv.REQUEST_PRESENCE_PENALTY: 0.2,
        semconv.REQUEST_STREAM: True, semconv.TOOL_DEFINITIONS: '[{"type":"function"}]',
    }  # fmt: skip
    assert {name: decoded.attributes[name] for name in expected} == expected


def test_settings_that_the_conventions_do_not_name_but_that_change_what_is_sampled_are_reported() -> None:
    request = {**REQUEST, "min_p": 0.1, "repetition_penalty": 1.2, "logit_bias": {"7": 5}}
    assert decode({}, request).attributes[semconv.SAMPLING_SETTINGS] == ["min_p", "repetition_penalty", "logit_bias"]
    neutral = {**REQUEST, "min_p": 0, "repetition_penalty": 1.0, "logit_bias": {}}
    assert semconv.SAMPLING_SETTINGS not in decode({}, neutral).attributes


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ({"tool_choice": "auto"}, []),
        ({"tool_choice": "required"}, ["tool_choice"]),
        ({"tool_choice": {"type": "function", "function": {"name": "look"}}}, ["tool_choice"]),
        ({"response_format": {"type": "text"}}, []),
        ({"response_format": {"type": "json_object"}}, ["response_format"]),
        ({"structured_outputs": {"regex": "a+"}}, ["structured_outputs"]),
        ({"guided_json": {"type": "object"}}, ["guided_json"]),
        ({"min_tokens": 4, "bad_words": [], "allowed_token_ids": [1, 2]}, ["min_tokens", "allowed_token_ids"]),
    ],
)
def test_constrained_sampling_is_reported(setting: dict[str, Any], changes: list[str]) -> None:
    assert decode({}, {**REQUEST, **setting}).attributes.get(semconv.SAMPLING_SETTINGS, []) == changes


def test_no_token_after_an_unreadable_chunk_is_kept() -> None:
    def chunk(token: int) -> dict[str, Any]:
        return {
            "prompt_token_ids": [1],
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": "w"},
                    "token_ids": [token],
                    "logprobs": {"content": [{"logprob": -1}]},
                }
            ],
        }

    decoded = decode(sse(chunk(5), "{garbage", chunk(7), done=False), ending="closed")
    assert decode_token_ids(decoded.attributes[semconv.TOKEN_IDS]) == (5,)
    assert decode_logprobs(decoded.attributes[semconv.LOGPROBS]) == (-1.0,)


def test_messages_of_every_role_and_form() -> None:
    messages = [
        {"role": "system", "content": [{"type": "text", "text": "be brief"}], "name": "boss"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "u"}}],
        },
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{bad"}},
                {"id": "2", "type": "custom", "custom": {"name": "g", "input": "x"}},
            ],
        },
        {"role": "tool", "tool_call_id": "1", "content": "4"},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "text", "text": "5"}]},
        {"role": "assistant", "content": "", "refusal": "no", "function_call": {"name": "h", "arguments": "{}"}},
    ]
    decoded = decode({}, {"model": "m", "messages": messages})
    assert json.loads(decoded.attributes[semconv.INPUT_MESSAGES]) == [
        {"role": "system", "parts": [{"type": "text", "content": "be brief"}], "name": "boss"},
        {
            "role": "user",
            "parts": [
                {"type": "text", "content": "see"},
                {"type": "other", "value": {"type": "image_url", "image_url": {"url": "u"}}},
            ],
            "name": None,
        },
        {
            "role": "assistant",
            "parts": [
                {"type": "reasoning", "content": "hm"},
                {"type": "tool_call", "name": "f", "arguments": "{bad", "id": "1"},
                {"type": "tool_call", "name": "g", "arguments": "x", "id": "2"},
            ],
            "name": None,
        },
        {"role": "tool", "parts": [{"type": "tool_call_response", "response": "4", "id": "1"}], "name": None},
        {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "response": [{"type": "text", "text": "5"}], "id": "2"}],
            "name": None,
        },
        {
            "role": "assistant",
            "parts": [
                {"type": "other", "value": {"type": "refusal", "refusal": "no"}},
                {"type": "tool_call", "name": "h", "arguments": "{}", "id": None},
            ],
            "name": None,
        },
    ]


token = st.tuples(st.text(max_size=4), st.integers(0, 2**31 - 1), st.floats(-30, 0, width=32) | st.none())
call = st.tuples(st.text("abc", min_size=1, max_size=4), st.lists(st.text(max_size=5), min_size=1, max_size=4))
choice_content = st.tuples(st.lists(token, max_size=6), st.lists(call, max_size=3))


@given(contents=st.lists(choice_content, min_size=1, max_size=3), data=st.data())
@settings(deadline=None, max_examples=120)
def test_a_stream_gives_what_the_whole_answer_gives_in_any_interleaving(contents: list[Any], data: Any) -> None:
    whole = {"id": "c", "model": "m2", "prompt_token_ids": [5, 6], "usage": {"prompt_tokens": 2}, "choices": []}
    pending: list[list[dict[str, Any]]] = []
    for index, (tokens, calls) in enumerate(contents):
        named = [
            {"id": f"t{n}", "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
            for n, (name, pieces) in enumerate(calls)
        ]
        message = {"role": "assistant", "content": "".join(text for text, _, _ in tokens), "tool_calls": named or None}
        choice: dict[str, Any] = {"index": index, "message": message, "finish_reason": "stop"}
        queue: list[dict[str, Any]] = [{"index": index, "delta": {"role": "assistant", "content": None}}]
        if tokens:
            choice["token_ids"] = [id for _, id, _ in tokens]
            choice["logprobs"] = {"content": [{"logprob": value} for _, _, value in tokens]}
            queue += [
                {
                    "index": index,
                    "delta": {"content": text},
                    "token_ids": [id],
                    "logprobs": {"content": [{"logprob": value}]},
                }
                for text, id, value in tokens
            ]
        for n, (name, pieces) in enumerate(calls):
            head = {"index": n, "id": f"t{n}", "type": "function", "function": {"name": name, "arguments": None}}
            queue.append({"index": index, "delta": {"tool_calls": [head]}, "token_ids": None, "logprobs": None})
            queue += [
                {"index": index, "delta": {"tool_calls": [{"index": n, "function": {"arguments": piece}}]}}
                for piece in pieces
            ]
        queue.append({"index": index, "delta": None, "finish_reason": "stop"})
        whole["choices"].append(choice)
        pending.append(queue)
    chunks: list[Any] = [{"id": "c", "model": "m2", "choices": None, "prompt_token_ids": [5, 6]}]
    while any(pending):
        index = data.draw(st.sampled_from([n for n, queue in enumerate(pending) if queue]))
        chunks.append({"id": "c", "model": "m2", "choices": [pending[index].pop(0)]})
    chunks.append({"choices": [], "usage": {"prompt_tokens": 2}})
    streamed = decode(b": ping\r\n\r\n" + sse(*chunks), headers=STREAM)
    assert streamed == decode(whole)


def test_a_streamed_function_call_of_the_old_api_and_sound_are_put_together() -> None:
    called = {"name": "look", "arguments": '{"q": "x"}'}
    whole = {"role": "assistant", "content": None, "function_call": called}
    pieces = [
        {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": ""}},
        *({"function_call": {"arguments": piece}} for piece in ('{"q":', ' "x"}')),
    ]
    expected = [{"type": "tool_call", "name": "look", "arguments": '{"q": "x"}', "id": None}]
    for body, headers in (
        ({"model": "m", "choices": [{"index": 0, "message": whole, "finish_reason": "function_call"}]}, {}),
        (sse(*({"model": "m", "choices": [{"index": 0, "delta": delta}]} for delta in pieces)), STREAM),
    ):
        [answer] = answers(decode(body, headers=headers))
        assert answer["parts"] == expected

    sound = [{"id": "audio_1", "data": "AAA", "transcript": "Good "}, {"id": "audio_1", "data": "BBB"}]
    sound += [{"transcript": "day"}, {"expires_at": 9}]
    chunks = [{"choices": [{"index": 0, "delta": {"audio": each}}]} for each in sound]
    [answer] = answers(decode(sse(*chunks), headers=STREAM))
    assert "Good day" in json.dumps(answer["parts"])
    assert "AAABBB" in json.dumps(answer["parts"])


@given(cut=st.integers(0, 400))
@settings(deadline=None)
def test_a_stream_cut_anywhere_keeps_whole_chunks_and_says_so(cut: int) -> None:
    words = [{"choices": [{"index": 0, "delta": {"content": f"w{n} "}, "token_ids": [n]}]} for n in range(5)]
    body = sse(*words)
    cut = min(cut, len(body) - len(b"data: [DONE]\n\n"))
    decoded = decode(body[:cut], headers=STREAM, ending="closed")
    assert decoded.attributes[semconv.INTERRUPTED] == "closed"
    whole = body[:cut].count(b"\n\n")
    if whole:
        assert answers(decoded)[0]["parts"] == [{"type": "text", "content": "".join(f"w{n} " for n in range(whole))}]
        assert decode_token_ids(decoded.attributes[semconv.TOKEN_IDS]) == tuple(range(whole))
    else:
        assert semconv.OUTPUT_MESSAGES not in decoded.attributes
    assert decoded.failure is None


@pytest.mark.parametrize("ending", ["complete", "closed", "error"])
def test_a_stream_read_to_done_is_whole_however_the_response_was_closed(ending: Any) -> None:
    decoded = decode(sse({"choices": [{"index": 0, "delta": {"content": "a"}}]}), headers=STREAM, ending=ending)
    assert semconv.INTERRUPTED not in decoded.attributes


@pytest.mark.parametrize(
    ("last", "beside", "begun"),
    [
        ({"role": "assistant", "content": "{"}, {"continue_final_message": True}, True),
        ({"role": "assistant", "content": "{", "prefix": True}, {}, True),
        ({"role": "assistant", "content": "{"}, {}, False),  # after which OpenAI and vLLM begin another message
        ({"role": "user", "content": "{", "prefix": True}, {"continue_final_message": True}, False),
    ],
)
def test_a_request_that_begins_the_answer_says_so(last: dict[str, Any], beside: dict[str, Any], begun: bool) -> None:
    request = {"messages": [{"role": "user", "content": "json"}, last], **beside}
    asked = Exchange(json.dumps(request).encode())
    assert decode_chat(asked).attributes.get(semconv.PROMPT_FORM) == ("begun" if begun else None)
    of_anthropic = Exchange(json.dumps({"messages": request["messages"]}).encode(), path="/v1/messages")
    found = decode_messages(of_anthropic).attributes.get(semconv.PROMPT_FORM)
    assert found == ("begun" if last["role"] == "assistant" else None)


def test_a_server_that_ends_the_stream_too_early_is_noticed() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    assert decode(sse(chunk, done=False), headers=STREAM).attributes[semconv.INTERRUPTED] == "error"


def test_an_error_inside_a_stream_and_chunks_that_are_no_json() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": "a"}}]}
    died = decode(sse(chunk, {"error": {"message": "engine died"}}), headers=STREAM)
    assert died.failure == ("stream_error", "engine died")
    odd = decode(sse("{not json", "[1]", chunk), headers=STREAM)
    assert odd.failure == ("invalid_response", "2 chunks of the stream are no JSON objects")
    assert answers(odd)[0]["parts"] == [{"type": "text", "content": "a"}]


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (400, b'{"error": {"message": "bad"}}', ("400", "bad")),
        (500, b'{"error": "plain"}', ("500", "plain")),
        (502, b"<html>bad gateway", ("502", "<html>bad gateway")),
        (200, b"{not json", ("invalid_response", "the response is no JSON object")),
        (200, b"[]", ("invalid_response", "the response is no JSON object")),
    ],
)
def test_failures(status: int, body: bytes, failure: tuple[str, str]) -> None:
    decoded = decode(body, status=status)
    assert decoded.failure == failure
    assert decoded.attributes[semconv.HTTP_STATUS_CODE] == status


def test_a_call_cancelled_between_attempts_says_so() -> None:
    decoded = decode({"error": "busy"}, status=503, ending="cancelled")
    assert decoded.attributes[semconv.INTERRUPTED] == "cancelled"
    assert decoded.failure == ("503", "busy")


def test_token_data_that_is_no_token_data_is_left_out() -> None:
    for odd in ([1.5], ["1"], [True], [2**31], "12", {"a": 1}):
        choice = {"index": 0, "message": {}, "token_ids": odd}
        decoded = decode({"choices": [choice], "prompt_token_ids": odd})
        assert not {semconv.TOKEN_IDS, semconv.PROMPT_TOKEN_IDS} & decoded.attributes.keys()
    choice = {"index": 0, "message": {}, "logprobs": {"content": [{"logprob": None}, "x", {"logprob": -1}]}}
    assert decode_logprobs(decode({"choices": [choice]}).attributes[semconv.LOGPROBS]) == (None, None, -1.0)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "message", "messages", "delta", "content", "role", "tool_calls", "function",
                         "index", "usage", "logprobs", "token_ids", "error", "name", "arguments", "n", "stop"]),
        inner, max_size=5,
    ),
    max_leaves=20,
)  # fmt: skip


@given(request=json_values, response=json_values, stream=st.booleans(), status=st.sampled_from([200, 400]))
@settings(deadline=None, max_examples=150)
def test_nothing_raises_for_any_json(request: Any, response: Any, stream: bool, status: int) -> None:
    body = sse(response, response) if stream else json.dumps(response).encode()
    decode(body, request, headers=STREAM if stream else {}, status=status)


@given(
    request=st.binary(max_size=40), body=st.binary(max_size=60), encoding=st.sampled_from(["", "gzip", "zstd", "odd"])
)
@settings(deadline=None)
def test_nothing_raises_for_any_bytes(request: bytes, body: bytes, encoding: str) -> None:
    headers = {"content-type": "text/event-stream", "content-encoding": encoding}
    decode_chat(Exchange(request, status=200, body=body, headers=headers))


def test_without_content_nothing_that_was_said_is_there() -> None:
    exchange = Exchange(
        json.dumps({**REQUEST, "tools": [{"x": 1}]}).encode(),
        status=200,
        body=json.dumps(
            {"prompt_token_ids": [1], "choices": [{"index": 0, "message": {"content": "secret"}, "token_ids": [1]}]}
        ).encode(),
    )
    decoded = decode_chat(exchange, content=False)
    names = {semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES, semconv.TOOL_DEFINITIONS, semconv.TOKEN_IDS}
    assert not (names | {semconv.PROMPT_TOKEN_IDS, semconv.LOGPROBS}) & decoded.attributes.keys()
    assert decoded.attributes[semconv.REQUEST_MODEL] == "m"


@given(
    texts=st.lists(st.text(max_size=200), min_size=1, max_size=10),
    limit=st.integers(2, 3000),
)
@settings(deadline=None)
def test_content_never_exceeds_its_bound_and_stays_json(texts: list[str], limit: int) -> None:
    messages = [{"role": "user", "content": text} for text in texts]
    exchange = Exchange(json.dumps({"model": "m", "messages": messages}).encode(), status=None)
    attributes = decode_chat(exchange, limit=limit).attributes
    text = attributes[semconv.INPUT_MESSAGES]
    kept = json.loads(text)
    assert len(text.encode()) <= limit
    whole = [part["content"] for message in kept for part in message["parts"]] == [text for text in texts if text]
    assert whole or attributes[semconv.TRUNCATED] == [semconv.INPUT_MESSAGES]


def test_token_data_over_the_bound_is_left_out_and_marked() -> None:
    exchange = Exchange(
        json.dumps(REQUEST).encode(),
        status=200,
        body=json.dumps({"choices": [{"index": 0, "message": {}, "token_ids": list(range(500))}]}).encode(),
    )
    attributes = decode_chat(exchange, limit=1000).attributes
    assert semconv.TOKEN_IDS not in attributes
    assert attributes[semconv.TRUNCATED] == [semconv.TOKEN_IDS]


def test_compression_is_undone_as_far_as_it_goes() -> None:
    data = json.dumps({"a": "b" * 5000}).encode()
    assert decompress(gzip.compress(data), "gzip") == data
    assert decompress(zlib.compress(data), "deflate") == data
    assert decompress(zlib.compress(data)[2:-4], "deflate") == data
    assert decompress(gzip.compress(zlib.compress(data)), "deflate, gzip") == data
    assert data.startswith(decompress(gzip.compress(data)[:40], "gzip"))
    assert decompress(gzip.compress(data) + gzip.compress(data), "gzip") == data + data
    for body, encoding in ((b"nonsense", "gzip"), (data, "unheard-of")):
        with pytest.raises(ValueError, match=r"damaged|unknown"):
            decompress(body, encoding)


@pytest.mark.parametrize("module", ["compression.zstd", "backports.zstd"])
def test_zstd_is_undone_by_what_the_client_asks_for_it_with(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """httpx2 asks for zstd with Python's own from 3.14 on, whose decompressor this one stands in for."""

    class ZstdDecompressor:
        def __init__(self) -> None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()

        def decompress(self, data: bytes) -> bytes:
            return self._frame.decompress(data)

        @property
        def eof(self) -> bool:
            return self._frame.eof

        @property
        def unused_data(self) -> bytes:
            return self._frame.unused_data

    for missing in ("zstandard", "compression.zstd", "backports.zstd"):
        monkeypatch.setitem(sys.modules, missing, None)
    monkeypatch.setitem(sys.modules, module, SimpleNamespace(ZstdDecompressor=ZstdDecompressor))
    body = sse(*[{"id": f"no two of these are the same {number}"} for number in range(3)])
    packed = zstandard.compress(body) + zstandard.compress(body)
    assert decompress(packed, "zstd") == 2 * body
    assert body.startswith(decompress(packed[:40], "zstd"))
    with pytest.raises(ValueError, match="damaged"):
        decompress(b"no zstd", "zstd")


def test_a_compression_bomb_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.wire.compression.MAX_BYTES", 1 << 20)
    bomb = gzip.compress(bytes(2 << 20))
    with pytest.raises(ValueError, match=r"more than 1 MiB: ask for less at once, or .*Accept-Encoding: identity"):
        decompress(bomb, "gzip")


def test_events_end_with_any_line_ending_and_hold_several_lines() -> None:
    body = b"\xef\xbb\xbfdata: a\r\ndata:b\r\n\r\nevent: x\ndata: c\n\n: note\n\ndata\n\rdata: cut"
    assert list(event_data(body)) == [b"a\nb", b"c", b""]


def test_a_stream_that_ends_before_each_answer_that_was_asked_for_is_cut() -> None:
    ended = [{"choices": [{"index": at, "delta": {"content": "a"}, "finish_reason": "stop"}]} for at in range(3)]

    def cut(path: str, asked: dict[str, Any], came: int, done: bool = False) -> Any:
        exchange = Exchange(
            json.dumps(REQUEST | asked).encode(),
            status=200,
            headers=STREAM,
            path=path,
            body=sse(*ended[:came], done=done),
        )
        return wire_decode(exchange).attributes.get(semconv.INTERRUPTED)

    for path in ("/v1/chat/completions", "/v1/completions"):
        assert [cut(path, {"n": 2}, came) for came in range(4)] == ["error", "error", None, None]
        assert cut(path, {"n": 2}, 1, done=True) is None, "servers that know no `n` answer once"
        assert [cut(path, {"n": n}, 1) for n in (0, -1, None, True, "2")] == [None] * 5
    begun = {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]}
    for reasons, interrupted in ((ended[:1], "error"), ([], None)):
        exchange = Exchange(b"{}", 200, STREAM, sse(*reasons, begun, done=True))
        assert wire_decode(exchange).attributes.get(semconv.INTERRUPTED) == interrupted, "servers may give no reasons"
    prompts = {"prompt": ["a", "b"]}
    assert [cut("/v1/completions", prompts, came) for came in (1, 2)] == ["error", None]
    assert [cut("/v1/completions", {"prompt": []}, came) for came in (0, 1)] == ["error", None]
