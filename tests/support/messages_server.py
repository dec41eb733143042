"""A stand-in for Anthropic's server on 127.0.0.1: /v1/messages, whole and streamed, Bedrock's and Vertex AI's paths,
and what goes wrong there. It keeps what it was sent."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from provider_server import StandIn, stand_in

CONTENT = [
    {"type": "thinking", "thinking": "I should look.", "signature": "sig"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"town": "Rome"}},
]
USAGE = {"input_tokens": 3, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 1, "output_tokens": 4}
TOKENS = {"prompt_token_ids": [1, 2, 3], "token_ids": [7, 8], "logprobs": [-0.5, -0.25]}


@dataclass
class MessagesServer:
    """The server's side of a test: `url` for clients, `sent` as (path, headers, body) in order of arrival.

    `failures` are the statuses of the next answers, `cut` breaks the next streams off after so many events, and
    `tokens` puts token ids beside the answer, as `arttrace serve` does. `answers` are what the next answers have in the
    place of the usual; `script` makes each from its request.
    """

    url: str = ""
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    failures: list[int] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    tokens: bool = False
    error_event: bool = False
    answers: list[dict[str, Any]] = field(default_factory=list)
    script: Callable[[dict[str, Any]], dict[str, Any]] | None = None


def whole(model: str) -> dict[str, Any]:
    """The answer to every request."""
    start = {"id": "msg_1", "type": "message", "role": "assistant", "model": model, "content": CONTENT}
    return {**start, "stop_reason": "tool_use", "stop_sequence": None, "usage": USAGE}


def events(model: str, tokens: dict[str, Any] | None = None) -> Iterator[dict[str, Any]]:
    """The same answer as it streams."""
    empty = {"content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
    yield {"type": "message_start", "message": {**whole(model), **empty}}
    yield {"type": "ping"}
    thinking, text, tool = CONTENT
    starts = [{**thinking, "thinking": "", "signature": ""}, {**text, "text": ""}, {**tool, "input": {}}]
    deltas = [
        [{"type": "thinking_delta", "thinking": "I should "}, {"type": "thinking_delta", "thinking": "look."}],
        [{"type": "text_delta", "text": "Let me "}, {"type": "text_delta", "text": "look."}],
        [{"type": "input_json_delta", "partial_json": part} for part in ('{"town"', ': "Rome"}')],
    ]
    deltas[0].append({"type": "signature_delta", "signature": "sig"})
    for index, start in enumerate(starts):
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas[index]:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end = {"delta": {"stop_reason": "tool_use", "stop_sequence": None}, "usage": {"output_tokens": 4}}
    yield {"type": "message_delta", **end, **({} if tokens is None else {"arttrace": tokens})}
    yield {"type": "message_stop"}


def streamed(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An answer as it streams, each block in one piece."""
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    for index, block in enumerate(message["content"]):
        start, deltas = block, []
        if block["type"] == "text":
            start, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
        elif block["type"] == "tool_use":
            start, deltas = {**block, "input": {}}, [_json_delta(block["input"])]
        elif block["type"] == "thinking":
            start = {**block, "thinking": "", "signature": ""}
            deltas = [
                {"type": "thinking_delta", "thinking": block["thinking"]},
                {"type": "signature_delta", "signature": block["signature"]},
            ]
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    ended = {name: message[name] for name in ("stop_reason", "stop_sequence", "stop_details") if name in message}
    yield {"type": "message_delta", "delta": ended, "usage": {"output_tokens": 4}}
    yield {"type": "message_stop"}


def _json_delta(value: Any) -> dict[str, Any]:
    return {"type": "input_json_delta", "partial_json": json.dumps(value)}


def aws_frame(payload: bytes, **headers: str) -> bytes:
    """One frame of Amazon's event stream."""
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + len(value).to_bytes(2) + value.encode()
        for name, value in headers.items()
    )
    prelude = (16 + len(head) + len(payload)).to_bytes(4) + len(head).to_bytes(4)
    frame = prelude + binascii.crc32(prelude).to_bytes(4) + head + payload
    return frame + binascii.crc32(frame).to_bytes(4)


class _Handler(StandIn):
    state: MessagesServer

    def do_POST(self) -> None:
        request, state = self.read_request(), self.state
        model = request.get("model", "claude")
        if state.failures:
            error = {"type": "error", "error": {"type": "api_error", "message": "scripted"}}
            return self.send_json(state.failures.pop(0), error)
        if "count_tokens" in self.path:
            return self.send_json(200, {"input_tokens": 12})
        if self.path.endswith("/invoke-with-response-stream"):
            return self.stream(self._framed(model), "application/vnd.amazon.eventstream")
        if request.get("stream") or self.path.endswith(":streamRawPredict"):
            return self.stream(self._lines(model, self._next_answer(request)), "text/event-stream; charset=utf-8")
        answer = whole(model) | (self._next_answer(request) or {})
        return self.send_json(200, answer | ({"arttrace": TOKENS} if state.tokens else {}))

    def _next_answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        if self.state.script is not None:
            return self.state.script(request)
        return self.state.answers.pop(0) if self.state.answers else None

    def _lines(self, model: str, answer: dict[str, Any] | None) -> Iterator[bytes]:
        usual = events(model, TOKENS if self.state.tokens else None)
        for event in usual if answer is None else streamed(whole(model) | answer):
            if self.state.error_event and event["type"] == "content_block_stop":
                event = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
            yield f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()

    def _framed(self, model: str) -> Iterator[bytes]:
        kinds = {":event-type": "chunk", ":content-type": "application/json", ":message-type": "event"}
        for event in events(model):
            payload = {"bytes": base64.b64encode(json.dumps(event).encode()).decode()}
            yield aws_frame(json.dumps(payload).encode(), **kinds)


def serve_messages() -> AbstractContextManager[MessagesServer]:
    """A running stand-in for Anthropic's server."""
    return stand_in(_Handler, MessagesServer())
