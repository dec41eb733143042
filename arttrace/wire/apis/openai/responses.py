"""One exchange of the Responses API becomes the attributes of its `chat` span.

A request that continues a former response holds only the new items: `arttrace.request.previous_response_id` names the
one before, and the trajectories join the chain. What a server keeps otherwise, under `conversation` or as a `prompt` of
its own, no request shows: `arttrace.request.messages_kept` says that it was there.
"""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.tokens import encode_logprobs, encode_token_ids
from arttrace.wire.apis.openai.completion_response import integers, numbers
from arttrace.wire.apis.openai.response_events import output_logprobs, read_events
from arttrace.wire.apis.openai.response_items import parse_input, parse_instructions, parse_output
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import OutputMessage
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft, error_of, json_or_none
from arttrace.wire.sse import event_data

_TOKENS = (
    ("prompt_token_ids", "input_messages", semconv.PROMPT_TOKEN_IDS),
    ("token_ids", "output_messages", semconv.TOKEN_IDS),
)
_KEPT = ("conversation", "prompt")
_CALLS = ("function_call", "custom_tool_call")
_LATER = ("queued", "in_progress")  # of one asked for in the background: other requests bring its answer


def decode_response(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of responses; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_CHAT, api="responses", content=content, limit=limit)
    request = span.request()
    span.put_text(semconv.PREVIOUS_RESPONSE_ID, request.get("previous_response_id"))
    conversation = request.get("conversation")
    conversation = conversation.get("id") if isinstance(conversation, dict) else conversation
    span.put_text(semconv.CONVERSATION_ID, conversation)
    span.put(semconv.MESSAGES_KEPT, messages_kept(request))
    instructions = parse_instructions(request.get("instructions"))
    if instructions:
        span.put_json(semconv.SYSTEM_INSTRUCTIONS, instructions)
    span.put_messages(semconv.INPUT_MESSAGES, parse_input(request.get("input")))
    failure = _response(span)
    said = span.attributes
    is_cut = semconv.INTERRUPTED in said and semconv.RESPONSE_FINISH_REASONS not in said
    if is_cut and request.get("background") is True and semconv.RESPONSE_ID in said:  # the server goes on
        span.put(semconv.INTERRUPTED, semconv.BACKGROUND)
    return span.decoded(failure)


def messages_kept(request: dict[str, Any]) -> list[str] | None:
    """The names of a request's fields for messages that the server keeps and the model reads; None without any."""
    return [name for name in _KEPT if request.get(name)] or None


def _response(span: SpanDraft) -> Failure | None:
    body = span.body()
    if not isinstance(body, bytes):
        return body
    if not span.is_stream(body):
        response = json_or_none(body)
        if not isinstance(response, dict):
            return ("invalid_response", "the response is no JSON object")
        return _put(span, response)
    stream = read_events(event_data(body))
    span.stream_ended(done=stream.done, whole=False)
    failure = _put(span, stream.response)
    if stream.error is not None:
        return ("stream_error", stream.error)
    if failure is None and stream.unreadable_events:
        return ("invalid_response", f"{stream.unreadable_events} events of the stream are no JSON objects")
    return failure


def _put(span: SpanDraft, response: dict[str, Any]) -> Failure | None:
    """Set what a response says, and return its own failure."""
    for key, name in (("id", semconv.RESPONSE_ID), ("model", semconv.RESPONSE_MODEL)):
        span.put_text(name, response.get(key))
    if isinstance(response.get("usage"), dict):
        span.usage(response["usage"])
    output = response.get("output")
    items = output if isinstance(output, list) else []
    reason = status_reason(response, items)
    span.put(semconv.RESPONSE_FINISH_REASONS, None if reason is None else [reason])
    if items:
        span.put_messages(semconv.OUTPUT_MESSAGES, [OutputMessage("assistant", parse_output(items), reason)])
    logprobs = _raw_logprobs(response.get("output_messages")) or output_logprobs(items)
    if logprobs is not None:
        span.put_tokens(semconv.LOGPROBS, encode_logprobs(logprobs))
    for key, raw, name in _TOKENS:
        ids = integers(response.get(key))
        if ids is None:
            ids = _raw_tokens(response.get(raw))
        if ids is not None:
            span.put_tokens(name, encode_token_ids(ids))
    if not items and response.get("status") in _LATER and semconv.INTERRUPTED not in span.attributes:
        span.put(semconv.INTERRUPTED, semconv.BACKGROUND)
    error = error_of(response)
    return None if error is None else ("response_failed", error)


def _raw_tokens(messages: Any) -> list[int] | None:
    """Token ids as vLLM gives them when it is asked for the response's messages; None where there are none."""
    parts = messages if isinstance(messages, list) else []
    found = [integers(part.get("tokens")) if isinstance(part, dict) else None for part in parts]
    if not found or any(ids is None for ids in found):
        return None
    return [id for ids in found for id in ids or []]


def _raw_logprobs(messages: Any) -> list[float | None] | None:
    """The log-probabilities that `arttrace serve` puts beside these token ids; None unless each has one."""
    found: list[float | None] = []
    for part in messages if isinstance(messages, list) else []:
        tokens, logprobs = (part.get("tokens"), part.get("logprobs")) if isinstance(part, dict) else (None, None)
        if not isinstance(tokens, list) or not isinstance(logprobs, list) or len(tokens) != len(logprobs):
            return None
        found += numbers(logprobs)
    return None if None in found else found or None


def status_reason(response: dict[str, Any], items: list[Any]) -> str | None:
    """The status in the words of chat completions; None for a response that has not ended."""
    match response.get("status"):
        case "completed":
            calls = any(isinstance(item, dict) and item.get("type") in _CALLS for item in items)
            return "tool_calls" if calls else "stop"
        case "incomplete":
            return finish_reason(json_object(response.get("incomplete_details")).get("reason")) or "incomplete"
        case "failed":
            return "error"
        case "cancelled":
            return "cancelled"
    return None
