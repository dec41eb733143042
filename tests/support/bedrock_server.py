"""A stand-in for Amazon Bedrock's runtime on 127.0.0.1: Converse and InvokeModel, whole and in Amazon's event stream,
and what goes wrong there. It keeps what it was sent, and checks no signature."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from messages_server import aws_frame, events, whole
from provider_server import StandIn, stand_in

CALL = {"toolUse": {"toolUseId": "tooluse_1", "name": "weather", "input": {"town": "Rome"}}}
THOUGHT = {"reasoningContent": {"reasoningText": {"text": "I should look.", "signature": "sig"}}}
CONTENT: list[dict[str, Any]] = [THOUGHT, {"text": "Let me look."}, CALL]
USAGE = {
    "inputTokens": 3, "outputTokens": 4, "totalTokens": 14, "cacheReadInputTokens": 6, "cacheWriteInputTokens": 1,
}  # fmt: skip
TOOL_CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Rome"}'}}
COMPLETION: dict[str, Any] = {"id": "chatcmpl-1", "model": "gpt-oss", "choices": [{"index": 0, "finish_reason": "stop",
    "message": {"role": "assistant", "content": "Let me look."}}]}  # fmt: skip
METRICS = {"amazon-bedrock-invocationMetrics": {"inputTokenCount": 10, "outputTokenCount": 4}}


def answer_of(*content: dict[str, Any], reason: str = "end_turn", **more: Any) -> dict[str, Any]:
    """An answer of Converse that says these blocks."""
    message = {"role": "assistant", "content": list(content)}
    return {"output": {"message": message}, "stopReason": reason, "usage": USAGE, "metrics": {"latencyMs": 9}, **more}


def pieces_of(answer: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events of an answer as it streams, each text in two pieces."""
    yield "messageStart", {"role": "assistant"}
    for index, block in enumerate(answer["output"]["message"]["content"]):
        (kind, said), at = next(iter(block.items())), {"contentBlockIndex": index}
        if kind == "toolUse":
            yield "contentBlockStart", {"start": {kind: {**said, "input": None}}, **at}
            for piece in _halves(json.dumps(said["input"])):
                yield "contentBlockDelta", {"delta": {kind: {"input": piece}}, **at}
        elif kind == "reasoningContent":
            for name, text in said["reasoningText"].items():
                for piece in _halves(text):
                    yield "contentBlockDelta", {"delta": {kind: {name: piece}}, **at}
        else:
            for piece in _halves(said):
                yield "contentBlockDelta", {"delta": {kind: piece}, **at}
        yield "contentBlockStop", at
    yield "messageStop", {"stopReason": answer["stopReason"]}
    yield "metadata", {name: answer[name] for name in ("usage", "metrics", "trace") if name in answer}


def _halves(text: str) -> tuple[str, str]:
    return text[: len(text) // 2], text[len(text) // 2 :]


def frame(kind: str, payload: Any, message: str = "event") -> bytes:
    """One event, or an exception, as it is framed."""
    named = {"event": ":event-type", "exception": ":exception-type"}[message]
    data = json.dumps({**payload, "p": "abcdefgh"} if message == "event" else payload).encode()
    return aws_frame(data, **{named: kind, ":content-type": "application/json", ":message-type": message})


def framed(answer: dict[str, Any]) -> Iterator[bytes]:
    """An answer of Converse in Amazon's event stream."""
    return (frame(kind, payload) for kind, payload in pieces_of(answer))


def chunks(documents: Iterator[Any]) -> Iterator[bytes]:
    """Documents of a model's own form in Amazon's event stream."""
    for document in documents:
        yield frame("chunk", {"bytes": base64.b64encode(json.dumps(document).encode()).decode()})


def completion_chunks() -> Iterator[dict[str, Any]]:
    """A chat completion as it streams, which has no counts of its own."""
    for delta in ({"role": "assistant", "content": "Let me "}, {"content": "look."}):
        yield {"id": "chatcmpl-1", "model": "gpt-oss", "choices": [{"index": 0, "delta": delta}]}
    yield {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], **METRICS}


@dataclass
class BedrockServer:
    """The server's side of a test: `url` for clients, `sent` as (path, headers, body) in order of arrival.

    `failures` are the next answers' statuses and errors, `cut` breaks the next streams off after so many events, and
    `cut_bytes` after so many bytes;
    `exception` is what streams have in place of their third event. `refused` is a model that there is none of.
    `answers` are the next answers in place of the usual.
    """

    url: str = ""
    sent: list[tuple[str, dict[str, str], dict[str, Any]]] = field(default_factory=list)
    failures: list[tuple[int, str]] = field(default_factory=list)
    cut: list[int] = field(default_factory=list)
    cut_bytes: list[int] = field(default_factory=list)
    exception: str | None = None
    refused: str | None = None
    answers: list[dict[str, Any]] = field(default_factory=list)


class _Handler(StandIn):
    state: BedrockServer

    def do_POST(self) -> None:
        request, state = self.read_request(), self.state
        if state.failures:
            status, kind = state.failures.pop(0)
            return self.send_json(status, {"message": "scripted"}, {"x-amzn-errortype": f"{kind}:http://internal"})
        *_, model, operation = self.path.split("/")
        if model == state.refused:
            return self.send_json(400, {"message": "no such model"}, {"x-amzn-errortype": "ValidationException"})
        if operation == "count-tokens":
            return self.send_json(200, {"inputTokens": 12})
        if operation.startswith("converse"):
            answer = state.answers.pop(0) if state.answers else answer_of(*CONTENT, reason="tool_use")
            return self._reply(operation, answer, framed(answer))
        if "anthropic_version" in request:
            said = whole("claude-x") | (state.answers.pop(0) if state.answers else {})
            return self._reply(operation, said, chunks(events("claude-x")))
        if "schemaVersion" in request:
            said = answer_of(*CONTENT, reason="tool_use")
            return self._reply(operation, said, chunks({kind: event} for kind, event in pieces_of(said)))
        return self._reply(
            operation, state.answers.pop(0) if state.answers else COMPLETION, chunks(completion_chunks())
        )

    def _reply(self, operation: str, answer: dict[str, Any], stream: Iterator[bytes]) -> None:
        if "stream" in operation:
            self.state.cut += [1] * bool(self.state.cut_bytes)
            return self.stream(self._going_wrong(stream), "application/vnd.amazon.eventstream")
        counts = {"x-amzn-bedrock-input-token-count": "10", "x-amzn-bedrock-output-token-count": "4"}
        return self.send_json(200, answer, counts if operation == "invoke" else {})

    def _going_wrong(self, stream: Iterator[bytes]) -> Iterator[bytes]:
        if self.state.cut_bytes:
            whole = b"".join(stream)
            yield whole[: self.state.cut_bytes.pop(0)] or whole[:1]
            yield b"never sent"
            return
        for number, part in enumerate(stream):
            if number == 2 and self.state.exception is not None:
                yield frame(self.state.exception, {"message": "scripted"}, "exception")
                return
            yield part


def serve_bedrock() -> AbstractContextManager[BedrockServer]:
    """A running stand-in for Bedrock's runtime."""
    return stand_in(_Handler, BedrockServer())
