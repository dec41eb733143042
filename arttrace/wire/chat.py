"""One chat-completions exchange becomes the attributes of its `chat` span (names and sources: semconv.py).

Nothing here raises for what the bytes hold: what cannot be read is left out and said in `failure`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec

from arttrace import semconv
from arttrace.records.tokens import encode_logprobs, encode_token_ids
from arttrace.wire.answer import Completion, read_completion, read_stream
from arttrace.wire.compression import decompress
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import Answer, encode_bounded, parse_message, parse_messages
from arttrace.wire.sse import event_data

MAX_ERROR_TEXT = 4000

_NUMBERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "max_tokens": semconv.REQUEST_MAX_TOKENS,
    "max_completion_tokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}
# Request fields that the conventions do not name and that change what is sampled, with the value that changes nothing.
_NEUTRAL: dict[str, Any] = {"min_p": 0, "repetition_penalty": 1, "logit_bias": {}}
_USAGE = {
    ("prompt_tokens",): semconv.USAGE_INPUT_TOKENS,
    ("completion_tokens",): semconv.USAGE_OUTPUT_TOKENS,
    ("prompt_tokens_details", "cached_tokens"): semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    ("prompt_tokens_details", "cache_write_tokens"): semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    ("completion_tokens_details", "reasoning_tokens"): semconv.USAGE_REASONING_OUTPUT_TOKENS,
}


@dataclass(frozen=True, slots=True)
class Decoded:
    """A chat span's name, attributes, and (error type, message) when the exchange itself shows a failure."""

    name: str
    attributes: dict[str, Any]
    failure: tuple[str, str] | None = None


def decode_chat(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange.

    Without `content`, what was said and its tokens are left out. `limit` bounds the JSON text of each content
    attribute in bytes; the names of those that were cut are under `arttrace.truncated`. An error type is the status
    code of an HTTP error, as the conventions have it, else one of "invalid_response" and "stream_error".
    """
    span = _Span(content, limit)
    span.put(semconv.OPERATION_NAME, semconv.OPERATION_CHAT)
    span.put(semconv.OPENAI_API_TYPE, "chat_completions")
    model = _request(span, exchange.request)
    failure = _response(span, exchange)
    if exchange.body_cut:
        span.cut.append(semconv.OUTPUT_MESSAGES)
    if span.cut:
        span.put(semconv.TRUNCATED, span.cut)
    return Decoded(f"chat {model}".strip(), span.attributes, failure)


class _Span:
    def __init__(self, content: bool, limit: int) -> None:
        self.attributes: dict[str, Any] = {}
        self.cut: list[str] = []
        self.content = content
        self.limit = limit

    def put(self, name: str, value: Any) -> None:
        if value is not None:
            self.attributes[name] = value

    def put_messages(self, name: str, messages: Any) -> None:
        if not self.content or messages is None:
            return
        text, cut = encode_bounded(messages, self.limit)
        self.put(name, text)
        if cut:
            self.cut.append(name)

    def put_tokens(self, name: str, text: str) -> None:
        """Token data is whole or not there: half of it would train wrongly."""
        if not self.content:
            return
        if len(text) <= self.limit:
            self.put(name, text)
        else:
            self.cut.append(name)


def _request(span: _Span, body: bytes) -> str:
    try:
        request = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""
    if not isinstance(request, dict):
        return ""
    model = request.get("model") if isinstance(request.get("model"), str) else None
    span.put(semconv.REQUEST_MODEL, model)
    for field, name in _NUMBERS.items():
        value = request.get(field)
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            span.put(name, value)
    changed = [field for field, neutral in _NEUTRAL.items() if request.get(field) not in (None, neutral)]
    span.put(semconv.SAMPLING_SETTINGS, changed or None)
    stop = request.get("stop")
    stops = [stop] if isinstance(stop, str) else stop
    if isinstance(stops, list) and stops and all(isinstance(item, str) for item in stops):
        span.put(semconv.REQUEST_STOP_SEQUENCES, stops)
    n = request.get("n")
    if type(n) is int and n != 1:
        span.put(semconv.REQUEST_CHOICE_COUNT, n)
    if request.get("stream") is True:
        span.put(semconv.REQUEST_STREAM, True)
    span.put_messages(semconv.INPUT_MESSAGES, parse_messages(request.get("messages")))
    tools = request.get("tools")
    if span.content and isinstance(tools, list) and tools:
        text = msgspec.json.encode(tools).decode()
        if len(text) <= span.limit:
            span.put(semconv.TOOL_DEFINITIONS, text)
        else:
            span.cut.append(semconv.TOOL_DEFINITIONS)
    return model or ""


def _response(span: _Span, exchange: Exchange) -> tuple[str, str] | None:
    span.put(semconv.POLICY_VERSION, exchange.headers.get(semconv.POLICY_VERSION_HEADER))
    if exchange.status is None:
        if exchange.ending in ("closed", "cancelled"):
            span.put(semconv.INTERRUPTED, exchange.ending)
        return None
    span.put(semconv.HTTP_STATUS_CODE, exchange.status)
    try:
        body = decompress(exchange.body, exchange.headers.get("content-encoding", ""))
    except ValueError as error:
        return ("invalid_response", str(error))
    if exchange.status >= 400:
        if exchange.ending == "cancelled":  # while the client waited to try again
            span.put(semconv.INTERRUPTED, exchange.ending)
        return (str(exchange.status), _error_text(body))
    if _is_stream(exchange, body):
        completion = read_stream(event_data(body))
        if not completion.done and exchange.ending != "complete":
            span.put(semconv.INTERRUPTED, exchange.ending)
        elif not completion.done and not _all_finished(completion):
            span.put(semconv.INTERRUPTED, "error")  # the server ended the stream before the answer was whole
    else:
        if exchange.ending != "complete":
            span.put(semconv.INTERRUPTED, exchange.ending)
            if exchange.ending != "error":
                return None
        read = read_completion(_json(body))
        if read is None:
            return ("invalid_response", "the response is no JSON object")
        completion = read
    _completion(span, completion)
    if completion.error is not None:
        return ("stream_error", completion.error[:MAX_ERROR_TEXT])
    if completion.unreadable_chunks:
        return ("invalid_response", f"{completion.unreadable_chunks} chunks of the stream are no JSON objects")
    return None


def _completion(span: _Span, completion: Completion) -> None:
    span.put(semconv.RESPONSE_ID, completion.id)
    span.put(semconv.RESPONSE_MODEL, completion.model)
    reasons = [choice.finish_reason for choice in completion.choices if choice.finish_reason is not None]
    span.put(semconv.RESPONSE_FINISH_REASONS, reasons or None)
    for path, name in _USAGE.items():
        value: Any = completion.usage
        for key in path:
            value = value.get(key) if isinstance(value, dict) else None
        if type(value) is int:
            span.put(name, value)
    if completion.prompt_token_ids is not None:
        span.put_tokens(semconv.PROMPT_TOKEN_IDS, encode_token_ids(completion.prompt_token_ids))
    for choice in completion.choices:
        suffix = f".{choice.index}" if choice.index else ""
        if choice.token_ids is not None:
            span.put_tokens(semconv.TOKEN_IDS + suffix, encode_token_ids(choice.token_ids))
        if choice.logprobs is not None:
            span.put_tokens(semconv.LOGPROBS + suffix, encode_logprobs(choice.logprobs))
    if completion.choices:
        answers = []
        for choice in completion.choices:
            message = parse_message(choice.message)
            answers.append(Answer(message.role or "assistant", message.parts, choice.finish_reason))
        span.put_messages(semconv.OUTPUT_MESSAGES, answers)


def _all_finished(completion: Completion) -> bool:
    return bool(completion.choices) and all(choice.finish_reason is not None for choice in completion.choices)


def _is_stream(exchange: Exchange, body: bytes) -> bool:
    content_type = exchange.headers.get("content-type", "")
    return "text/event-stream" in content_type.lower() or body[:64].lstrip().startswith((b"data:", b":"))


def _json(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _error_text(body: bytes) -> str:
    completion = read_completion(_json(body))
    if completion is not None and completion.error is not None:
        return completion.error[:MAX_ERROR_TEXT]
    return body[:MAX_ERROR_TEXT].decode(errors="replace")
