"""One exchange of Anthropic's Messages API becomes the attributes of its `chat` span.

Bedrock and Vertex AI have the same bodies at other paths; Bedrock streams its events inside frames of its own. A
request that continues a thread holds the new messages alone, and neither instructions nor tools:
`arttrace.request.previous_response_id` names the answer before. Token ids and log-probabilities are there when
`arttrace serve` answered. Source of the fields: the Messages API reference
(https://platform.claude.com/docs/en/api/messages).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
from msgspec import UNSET

from arttrace.records import semconv
from arttrace.records.values.costs import cost_of_usage
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.nesting import UNREADABLE
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.wire.apis.anthropic.chat import chat_messages, chat_tools
from arttrace.wire.apis.openai.completion_response import ChoiceAnswer, Completion, integers, numbers
from arttrace.wire.apis.openai.hidden_cuts import name_cuts
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import OutputMessage, parse_message, parse_messages
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft, error_of, json_or_none
from arttrace.wire.sse import event_data

TOKENS_FIELD = "arttrace"
"""Where `arttrace serve` puts the engine's tokens: {"prompt_token_ids", "token_ids", "logprobs"}, lists or null; and,
of an answer that is no stream, the engine's `stop_reason`."""

_MODEL_IN_PATH = re.compile(r"/models/([^/:]+):")


def decode_messages(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of messages; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_CHAT, content=content, limit=limit)
    request = span.request()
    named = _MODEL_IN_PATH.search(exchange.path)
    if named is not None and semconv.REQUEST_MODEL not in span.attributes:
        span.put(semconv.REQUEST_MODEL, unquote(named[1]))
    span.put_stops(request.get("stop_sequences"))
    if exchange.path.endswith(":streamRawPredict"):
        span.put(semconv.REQUEST_STREAM, True)
    span.put_text(semconv.PREVIOUS_RESPONSE_ID, json_object(request.get("thread")).get("previous_message_id"))
    if [message.get("role") for message in json_objects(request.get("messages"))][-1:] == ["assistant"]:
        span.put(semconv.PROMPT_FORM, "begun")
    tools = chat_tools(request.get("tools"))
    if tools:
        span.put_json(semconv.TOOL_DEFINITIONS, tools)
    span.put_messages(
        semconv.INPUT_MESSAGES, parse_messages(chat_messages(request.get("system"), request.get("messages")))
    )
    return span.decoded(_answer(span, exchange))


def _answer(span: SpanDraft, exchange: Exchange) -> Failure | None:
    body = span.body()
    if not isinstance(body, bytes):
        return body
    if not span.is_stream(body):
        message = json_or_none(body)
        if not isinstance(message, dict):
            return ("invalid_response", "the response is no JSON object")
        _put(span, message, exchange.headers)
        error = error_of(message)
        return None if error is None else ("stream_error", error)
    stream = read_message_events(event_data(body))
    span.stream_ended(done=stream.done, whole=stream.message.get("stop_reason") is not None)
    _put(span, stream.message, exchange.headers)
    if stream.error is not None:
        return ("stream_error", stream.error)
    if stream.unreadable_events:
        return ("invalid_response", f"{stream.unreadable_events} events of the stream are no JSON objects")
    return None


def _put(span: SpanDraft, message: dict[str, Any], headers: Mapping[str, str]) -> None:
    for key, name in (("id", semconv.RESPONSE_ID), ("model", semconv.RESPONSE_MODEL)):
        span.put_text(name, message.get(key))
    tokens = json_object(message.get(TOKENS_FIELD))
    answer = ChoiceAnswer(0, finish_reason=finish_reason(message.get("stop_reason")))
    answer.stop_reason, answer.token_ids = tokens.get("stop_reason", UNSET), integers(tokens.get("token_ids"))
    name_cuts(Completion([answer]), headers, span.attributes.get(semconv.REQUEST_MAX_TOKENS))
    reason = answer.finish_reason
    span.put(semconv.RESPONSE_FINISH_REASONS, None if reason is None else [reason])
    if isinstance(message.get("usage"), dict):
        span.usage(counts(message["usage"]))
    if isinstance(message.get("content"), list):
        said = chat_messages(None, [{"role": "assistant", "content": message["content"]}]) or []
        parts = [part for each in said for part in parse_message(each).parts]
        span.put_messages(semconv.OUTPUT_MESSAGES, [OutputMessage("assistant", tuple(parts), reason)])
    _put_tokens(span, tokens)


def counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """The counts as OpenAI's APIs have them, who count cached tokens among a prompt's; Anthropic counts them beside.
    The cost is as a server states it that has models of others too."""
    read, written = usage.get("cache_read_input_tokens") or 0, usage.get("cache_creation_input_tokens") or 0
    found: dict[str, Any] = {"output_tokens": usage.get("output_tokens"), "cost": cost_of_usage(usage)}
    cached = {"cached_tokens": read, "cache_write_tokens": written}
    if all(type(count) is int for count in (usage.get("input_tokens"), read, written)):
        found |= {"input_tokens": usage["input_tokens"] + read + written}
        found["input_tokens_details"] = {name: count for name, count in cached.items() if count}
    return found


def _put_tokens(span: SpanDraft, tokens: dict[str, Any]) -> None:
    for key, name in (("prompt_token_ids", semconv.PROMPT_TOKEN_IDS), ("token_ids", semconv.TOKEN_IDS)):
        if (ids := integers(tokens.get(key))) is not None:
            span.put_tokens(name, encode_token_ids(ids))
    if isinstance(logprobs := tokens.get("logprobs"), list):
        span.put_tokens(semconv.LOGPROBS, encode_logprobs(numbers(logprobs)))


@dataclass(slots=True)
class MessageEvents:
    """What came of a stream. `done` says that the answer is whole: the event with its stop reason and its counts came,
    behind which there is only `message_stop`, for which some clients do not wait."""

    message: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    done: bool = False
    unreadable_events: int = 0


def read_message_events(events: Iterable[bytes]) -> MessageEvents:
    """The message from the data of its events, as far as they came."""
    stream = MessageEvents()
    blocks: dict[int, _Block] = {}
    for data in events:
        event = json_or_none(data)
        if not isinstance(event, dict):
            stream.unreadable_events += 1
            continue
        match event.get("type"):
            case "message_start" if isinstance(event.get("message"), dict):
                stream.message = _begun(event["message"])
            case "content_block_start" | "content_block_delta" if isinstance(event.get("index"), int):
                blocks.setdefault(event["index"], _Block()).add(event)
            case "message_delta":
                _end(stream.message, event)
                stream.done = stream.done or stream.message.get("stop_reason") is not None
            case "message_stop":
                stream.done = True
            case "error":
                stream.error = error_of(event) or "error"
    if blocks:
        stream.message = {**stream.message, "content": [blocks[index].block() for index in sorted(blocks)]}
    return stream


def _begun(message: dict[str, Any]) -> dict[str, Any]:
    """The message without the count of its tokens, which is that of the first few: its end has the whole one."""
    usage = message.get("usage")
    if not isinstance(usage, dict):
        return message
    return {**message, "usage": {name: count for name, count in usage.items() if name != "output_tokens"}}


def _end(message: dict[str, Any], event: dict[str, Any]) -> None:
    delta, usage = event.get("delta"), event.get("usage")
    if isinstance(delta, dict):
        message |= {name: delta[name] for name in ("stop_reason", "stop_sequence") if name in delta}
    if isinstance(usage, dict):
        said = {name: count for name, count in usage.items() if count is not None}
        message["usage"] = {**json_object(message.get("usage")), **said}
    if TOKENS_FIELD in event:
        message[TOKENS_FIELD] = event[TOKENS_FIELD]


class _Block:
    """One content block while its events come."""

    _TEXTS = ("text", "thinking", "partial_json", "signature")

    def __init__(self) -> None:
        self._block: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}

    def add(self, event: dict[str, Any]) -> None:
        """One event of it."""
        if isinstance(event.get("content_block"), dict):
            self._block = event["content_block"]
        delta = event.get("delta")
        if not isinstance(delta, dict):
            return
        if delta.get("type") == "compaction_delta":  # which comes whole
            self._block = {**self._block, **{name: value for name, value in delta.items() if name != "type"}}
            return
        for name in self._TEXTS:
            if isinstance(delta.get(name), str):
                self._pieces.setdefault(name, []).append(delta[name])

    def block(self) -> dict[str, Any]:
        """It, as far as it came; arguments that are no JSON stay the text that they are."""
        block = dict(self._block)
        for name, pieces in self._pieces.items():
            text = "".join(pieces)
            if name != "partial_json":
                start = block.get(name)
                block[name] = (start if isinstance(start, str) else "") + text
                continue
            if not text:
                continue
            try:
                block["input"] = msgspec.json.decode(text)
            except UNREADABLE:
                block["input"] = text
        return block
