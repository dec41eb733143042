"""Half a surrogate pair, which UTF-8 cannot hold, costs a call none of its messages; what is no JSON at all is said."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import read_json, well_formed
from arttrace.trajectories.decoding.call import decode_call
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.wire import Exchange, decode

HALF = "cut \ud83d"
SAID = "cut \ufffd"


def attributes(request: bytes, body: bytes, path: str = "/v1/chat/completions", **headers: str) -> dict[str, Any]:
    exchange = Exchange(
        request=request, status=200, headers=headers, body=body, ending="complete", body_cut=False, path=path
    )
    decoded = decode(exchange)
    assert decoded.failure is None
    return decoded.attributes


def texts(value: str) -> list[str]:
    return [part["content"] for message in json.loads(value) for part in message["parts"]]


def test_a_chat_request_and_its_answer_keep_their_messages() -> None:
    request = {"model": "m", "messages": [{"role": "user", "content": HALF}], "user": HALF}
    answer = {"id": "r", "choices": [{"index": 0, "message": {"role": "assistant", "content": HALF}}]}
    found = attributes(json.dumps(request).encode(), json.dumps(answer).encode())
    assert texts(found[semconv.INPUT_MESSAGES]) == texts(found[semconv.OUTPUT_MESSAGES]) == [SAID]
    assert (found[semconv.REQUEST_MODEL], found[semconv.RESPONSE_ID]) == ("m", "r")
    assert semconv.TRUNCATED not in found


def test_a_stream_and_a_response_do_too() -> None:
    chunk = {"choices": [{"index": 0, "delta": {"content": HALF}, "finish_reason": "stop"}]}
    stream = f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode()
    found = attributes(b"{}", stream, **{"content-type": "text/event-stream"})
    assert texts(found[semconv.OUTPUT_MESSAGES]) == [SAID]
    output = [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": HALF}]}]
    asked, answered = ({"model": "m", "input": HALF}, {"id": "r", "status": "completed", "output": output})
    found = attributes(json.dumps(asked).encode(), json.dumps(answered).encode(), "/v1/responses")
    assert texts(found[semconv.INPUT_MESSAGES]) == texts(found[semconv.OUTPUT_MESSAGES]) == [SAID]


@pytest.mark.parametrize("raw", [b'"a\xffb"', b'"a\xed\xa0\xbdb"'], ids=["no UTF-8", "half a pair in bytes"])
def test_bytes_that_are_no_utf8_cost_no_message(raw: bytes) -> None:
    request = b'{"model": "m", "messages": [{"role": "user", "content": %s}]}' % raw
    (text,) = texts(attributes(request, b"{}")[semconv.INPUT_MESSAGES])
    assert text.replace("\ufffd", "") == "ab"


@pytest.mark.parametrize("request_body", [b"no JSON", b"[]", b'{"messages": '])
def test_a_request_that_cannot_be_read_is_not_taken_for_one_without_messages(request_body: bytes) -> None:
    assert attributes(request_body, b"{}")[semconv.TRUNCATED] == [semconv.INPUT_MESSAGES]
    assert semconv.TRUNCATED not in attributes(b"", b"{}")


def test_spans_of_other_senders_keep_theirs() -> None:
    message = {"role": "user", "parts": [{"type": "text", "content": HALF}]}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": HALF}], "finish_reason": "stop"}
    span = SpanRow(
        trace_id="1" * 32, span_id="2" * 16, name="chat m", start_ns=1, end_ns=2,
        attributes={
            semconv.OPERATION_NAME: "chat", semconv.REQUEST_MODEL: "m",
            semconv.INPUT_MESSAGES: json.dumps([message]), semconv.OUTPUT_MESSAGES: json.dumps([answer]),
        },
    )  # fmt: skip
    call = decode_call(span, MessageReader())
    assert [(said.role, said.parts[0].content) for said in call.messages] == [("user", SAID)]  # type: ignore[union-attr]
    (choice,) = call.choices
    assert choice.message.parts[0].content == SAID  # type: ignore[union-attr]
    assert choice.finish_reason == "stop"


@pytest.mark.parametrize(
    "text",
    ['"a"', " [1e999]", "[NaN]", "NaN", "Infinity", "-Infinity", "1e999", '{"a": "\\ud83d"}', "\t1", "true", "null "],
)
def test_what_python_takes_for_json_is_json(text: str) -> None:
    assert repr(read_json(text)) == repr(well_formed(json.loads(text)))


@pytest.mark.parametrize("text", ["", "found", "true story", "none", "<b>", "\ufeff1", "\ud83d", "nullify", "I", "-"])
def test_text_is_no_json(text: str) -> None:
    with pytest.raises(json.JSONDecodeError):
        json.loads(text)
    with pytest.raises((msgspec.DecodeError, UnicodeError)):
        read_json(text)
