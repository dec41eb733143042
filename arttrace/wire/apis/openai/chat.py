"""One chat-completions exchange becomes the attributes of its `chat` span (names and sources: semconv.py)."""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_objects
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.wire.apis.openai.completion_response import Completion, read_completion, read_stream
from arttrace.wire.apis.openai.hidden_cuts import name_cuts
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import OutputMessage, parse_message, parse_messages
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft
from arttrace.wire.sse import event_data


def decode_chat(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of chat completions; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_CHAT, api="chat_completions", content=content, limit=limit)
    request = span.request()
    span.put_messages(semconv.INPUT_MESSAGES, parse_messages(request.get("messages")))
    span.put(semconv.PROMPT_FORM, "begun" if _begins_the_answer(request) else None)
    completion = read_answer(span)
    if not isinstance(completion, Completion):
        return span.decoded(completion)
    name_cuts(completion, exchange.headers, span.attributes.get(semconv.REQUEST_MAX_TOKENS))
    return span.decoded(put_answer(span, completion))


_PREFIX = ("prefix", "partial")
"""Of a message: that the answer goes on from it. Source: the chat completions of DeepSeek and Mistral, of Moonshot."""


def _begins_the_answer(request: dict[str, Any]) -> bool:
    """Whether the last message is the beginning of the answer: in vLLM's words, or in those of others."""
    last = json_objects(request.get("messages"))[-1:]
    return any(
        one.get("role") == "assistant"
        and (request.get("continue_final_message") is True or any(one.get(name) is True for name in _PREFIX))
        for one in last
    )


def read_answer(span: SpanDraft, prompts: int = 1) -> Completion | Failure | None:
    """The completion that came back, whole or in chunks, else what failed, or None when there is nothing to say."""
    body = span.body()
    if not isinstance(body, bytes):
        return body
    if not span.is_stream(body):
        return read_completion(body) or ("invalid_response", "the response is no JSON object")
    completion = read_stream(event_data(body))
    answers = prompts * span.attributes.get(semconv.REQUEST_CHOICE_COUNT, 1)
    span.stream_ended(done=completion.done, whole=completion.is_whole(answers))
    if completion.ends_are_missing:
        span.attributes.setdefault(semconv.INTERRUPTED, "error")
    return completion


def put_answer(span: SpanDraft, completion: Completion) -> Failure | None:
    """Set all of a completion, and return what it says of its own failure."""
    span.put(semconv.RESPONSE_ID, completion.id)
    span.put(semconv.RESPONSE_MODEL, completion.model)
    reasons = [choice.finish_reason for choice in completion.choices if choice.finish_reason is not None]
    span.put(semconv.RESPONSE_FINISH_REASONS, reasons or None)
    span.usage(completion.usage)
    if completion.prompt_token_ids is not None:
        span.put_tokens(semconv.PROMPT_TOKEN_IDS, encode_token_ids(completion.prompt_token_ids))
    answers = []
    for place, choice in enumerate(completion.choices):  # its number may be another's too, or follow on a gap
        suffix = f".{place}" if place else ""
        if choice.prompt_token_ids is not None:
            span.put_tokens(semconv.PROMPT_TOKEN_IDS + suffix, encode_token_ids(choice.prompt_token_ids))
        if choice.token_ids is not None:
            span.put_tokens(semconv.TOKEN_IDS + suffix, encode_token_ids(choice.token_ids))
        if choice.logprobs is not None:
            span.put_tokens(semconv.LOGPROBS + suffix, encode_logprobs(choice.logprobs))
        message = parse_message(choice.message)
        answers.append(OutputMessage(message.role or "assistant", message.parts, choice.finish_reason))
    span.put_messages(semconv.OUTPUT_MESSAGES, answers or None)
    if completion.error is not None:
        return ("stream_error", completion.error)
    if completion.unreadable_chunks:
        return ("invalid_response", f"{completion.unreadable_chunks} chunks of the stream are no JSON objects")
    return None
