"""An answer of Ollama's API, whole or in the lines of a stream, each of which is a JSON object.

The last line says `done`, with the counts; one that holds an `error` is the end as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from arttrace.records import semconv
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.tokens import encode_logprobs
from arttrace.wire.apis.ollama.messages import message_of
from arttrace.wire.apis.openai.completion_response import numbers
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import OutputMessage
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft, error_of, json_or_none

_COUNTS = {"prompt_eval_count": "input_tokens", "eval_count": "output_tokens"}


@dataclass(slots=True)
class OllamaAnswer:
    """What came of it. A prompt is answered by `response`, and what is beside it, in the place of a message."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Any] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    logprobs: list[float | None] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    model: Any = None
    reason: Any = None
    error: str | None = None
    came: bool = False
    done: bool = False

    def add(self, line: dict[str, Any]) -> None:
        """What one line has of it."""
        self.error = self.error or error_of(line)
        self.model = line.get("model") or self.model
        self.usage |= {ours: line[name] for name, ours in _COUNTS.items() if type(line.get(name)) is int}
        self.logprobs += numbers([one.get("logprob") for one in json_objects(line.get("logprobs"))])
        if line.get("done") is True:
            self.done, self.reason = True, line.get("done_reason")
        said = json_object(line.get("message")) or {**line, "content": line.get("response")}
        self.came = self.came or "message" in line or "response" in line
        for name, texts in (("content", self.texts), ("thinking", self.thoughts)):
            if isinstance(said.get(name), str):
                texts.append(said[name])
        for name, listed in (("tool_calls", self.calls), ("images", self.images)):
            if isinstance(said.get(name), list):
                listed += said[name]
        if isinstance(line.get("image"), str):
            self.images.append(line["image"])

    def message(self) -> OutputMessage:
        """What it says, and why it ended: by its tool calls, where it has some and nothing cut it short."""
        said = {"content": "".join(self.texts), "thinking": "".join(self.thoughts) or None}
        message = message_of({"role": "assistant", **said, "tool_calls": self.calls, "images": self.images})
        reason = finish_reason(self.reason)
        return OutputMessage("assistant", message.parts, "tool_calls" if reason == "stop" and self.calls else reason)


def decode_answer(span: SpanDraft, exchange: Exchange) -> Decoded:
    """The span with its answer."""
    return span.decoded(_answer(span, exchange))


def _answer(span: SpanDraft, exchange: Exchange) -> Failure | None:
    streams = span.attributes.get(semconv.REQUEST_STREAM, False)
    body = span.body(streams=streams)
    if not isinstance(body, bytes):
        return body
    lines = _lines(body, exchange)
    answer = OllamaAnswer()
    for line in lines:
        if isinstance(line, dict):
            answer.add(line)
    if streams:
        span.stream_ended(done=answer.done, whole=answer.done)
    _put(span, answer)
    if answer.error is not None:
        return ("stream_error", answer.error)
    unreadable = sum(not isinstance(line, dict) for line in lines)
    if unreadable and not streams:
        return ("invalid_response", "the response is no JSON object")
    if unreadable:
        return ("invalid_response", f"{unreadable} lines of the stream are no JSON objects")
    if lines and not answer.came:
        return ("invalid_response", "the response is none of Ollama's: it has no `message` and no `response`")
    return None


def _lines(body: bytes, exchange: Exchange) -> list[Any]:
    """The objects of the answer, None for a line that is none; without the line in which it was cut off."""
    if "ndjson" not in exchange.headers.get("content-type", "").lower():
        document = json_or_none(body)
        if document is not None:
            return [document]
    texts = [line for line in body.split(b"\n") if line.strip()]
    lines = [json_or_none(line) for line in texts]
    is_cut = exchange.ending != "complete" or exchange.body_cut
    return lines[:-1] if lines and lines[-1] is None and is_cut else lines


def _put(span: SpanDraft, answer: OllamaAnswer) -> None:
    span.put_text(semconv.RESPONSE_MODEL, answer.model)
    span.usage(answer.usage)
    if not answer.came:
        return
    message = answer.message()
    span.put(semconv.RESPONSE_FINISH_REASONS, [message.finish_reason] if message.finish_reason else None)
    span.put_messages(semconv.OUTPUT_MESSAGES, [message])
    if answer.logprobs:
        span.put_tokens(semconv.LOGPROBS, encode_logprobs(answer.logprobs))
