"""Streams of Anthropic's Messages API: each kind of block gives what it gives in a whole answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from arttrace.records import semconv
from arttrace.records.values.tokens import decode_logprobs
from arttrace.wire import Decoded, Exchange, decode

ASK = {"model": "claude-x", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}
SUMMARY = {"type": "compaction", "content": "What was said.", "encrypted_content": "e"}
SEARCH = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "q"}}
BLOCKS: list[tuple[dict[str, Any], dict[str, Any], list[dict[str, Any]]]] = [
    (
        SUMMARY,
        {"type": "compaction", "content": None, "encrypted_content": None},
        [{"type": "compaction_delta", "content": "What was said.", "encrypted_content": "e"}],
    ),
    (
        {"type": "compaction", "content": None, "encrypted_content": "e"},
        {"type": "compaction", "content": None, "encrypted_content": None},
        [{"type": "compaction_delta", "content": None, "encrypted_content": "e"}],
    ),
    (SEARCH, {**SEARCH, "input": {}}, [{"type": "input_json_delta", "partial_json": '{"query": "q"}'}]),
    (
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {"type": "refusal"}},
        {"type": "fallback", "from": {"model": "a"}, "to": {"model": "b"}, "trigger": {"type": "refusal"}},
        [],
    ),
]


def read(body: bytes, **headers: str) -> Decoded:
    return decode(Exchange(json.dumps(ASK).encode(), status=200, body=body, headers=headers, path="/v1/messages"))


@pytest.mark.parametrize(("block", "start", "deltas"), BLOCKS)
def test_a_block_that_is_streamed_is_that_of_a_whole_answer(
    block: dict[str, Any], start: dict[str, Any], deltas: list[dict[str, Any]]
) -> None:
    message = {"id": "msg_1", "role": "assistant", "model": "claude-x", "usage": {"input_tokens": 1}}
    events = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2, "cost": 0.5}},
        {"type": "message_stop"},
    ]
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    usage = {"input_tokens": 1, "output_tokens": 2, "cost": 0.5}  # as OpenRouter states it
    whole = read(json.dumps({**message, "content": [block], "stop_reason": "end_turn", "usage": usage}).encode())
    assert read(stream, **{"content-type": "text/event-stream"}) == whole
    assert whole.attributes[semconv.USAGE_COST] == 0.5
    (answer,) = json.loads(whole.attributes[semconv.OUTPUT_MESSAGES])
    assert answer["parts"] == [{"type": "other", "value": block}]


@pytest.mark.parametrize("ended", [True, False])
def test_the_tokens_of_an_answer_are_counted_by_its_end(ended: bool) -> None:
    """A stream begins with a count of what was written by then: that of one which is broken off is not of its text."""
    usage = {"input_tokens": 25, "output_tokens": 1}
    message = {"id": "msg_1", "role": "assistant", "model": "claude-x", "content": [], "usage": usage}
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": message},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": "One two three four five."},
        },
    ]
    if ended:
        events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 6}})
    stream = "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events).encode()
    said = read(stream, **{"content-type": "text/event-stream"}).attributes
    assert said[semconv.USAGE_INPUT_TOKENS] == 25
    assert said.get(semconv.USAGE_OUTPUT_TOKENS) == (6 if ended else None)
    assert said.get(semconv.INTERRUPTED) == (None if ended else "error")


def test_a_log_probability_that_was_written_again_as_a_whole_number_is_one() -> None:
    """By JavaScript, say, which writes -0.0 and 0.0 as 0."""
    tokens = {"prompt_token_ids": [1], "token_ids": [7, 8, 9], "logprobs": [0, -0.5, None]}
    answer = {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn", "arttrace": tokens}
    found = decode_logprobs(read(json.dumps(answer).encode()).attributes[semconv.LOGPROBS])
    assert found == (0.0, -0.5, None)


@pytest.mark.parametrize("pieces", [(), ("",), ("", "{}")])
def test_a_tool_without_arguments_is_called_with_none(pieces: tuple[str, ...]) -> None:
    """The API sends one empty piece; its client keeps the object that the block begins with."""
    deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    events = [
        {"type": "message_start", "message": {"role": "assistant", "content": []}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "tool_use", "id": "t", "name": "f", "input": {}},
        },
        *({"type": "content_block_delta", "index": 0, "delta": delta} for delta in deltas),
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    ]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    [answer] = json.loads(read(stream, **{"content-type": "text/event-stream"}).attributes[semconv.OUTPUT_MESSAGES])
    assert answer["parts"] == [{"type": "tool_call", "name": "f", "arguments": "{}", "id": "t"}]
