"""One exchange of Bedrock's Converse becomes the attributes of its `chat` span.

Amazon's own models take the same body by InvokeModel. The model is in the path, and so is whether the answer streams.
Of a prompt that Bedrock keeps (its ARN stands in place of a model's name) the request shows the variables alone:
`arttrace.request.messages_kept` says so. Source of the fields:
https://docs.aws.amazon.com/bedrock/latest/APIReference/API_runtime_Converse.html
"""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object
from arttrace.wire.apis.bedrock.blocks import chat_messages, chat_tools, of_message, parts_of
from arttrace.wire.apis.bedrock.events import read_events
from arttrace.wire.apis.bedrock.paths import model_in, streams
from arttrace.wire.exchange import Exchange
from arttrace.wire.messages import OutputMessage, parse_message, parse_messages
from arttrace.wire.sampling_fields import as_number
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft, error_of, json_or_none
from arttrace.wire.sse import event_data

_NUMBERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "topP": semconv.REQUEST_TOP_P,
    "topK": semconv.REQUEST_TOP_K,
    "maxTokens": semconv.REQUEST_MAX_TOKENS,
}
_SAID_BY = {**_NUMBERS, "stopSequences": semconv.REQUEST_STOP_SEQUENCES}
_ELSEWHERE = ("messages", "system", "inferenceConfig", "toolConfig")
_TOP_K = ("top_k", "topK")
"""What the models call it among the fields that Converse hands on to them."""


def decode_converse(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_CHAT, content=content, limit=limit)
    request = span.document()
    model = model_in(exchange.path)
    span.put(semconv.REQUEST_MODEL, model)
    if streams(exchange.path):
        span.put(semconv.REQUEST_STREAM, True)
    _put_config(span, request)
    if ":prompt/" in (model or ""):
        span.put(semconv.MESSAGES_KEPT, ["modelId"])
    if tools := chat_tools(json_object(request.get("toolConfig")).get("tools")):
        span.put_json(semconv.TOOL_DEFINITIONS, tools)
    if instructions := _instructions(request.get("system")):
        span.put_json(semconv.SYSTEM_INSTRUCTIONS, instructions)
    messages = parse_messages(chat_messages(request.get("messages")))
    if messages and messages[-1].role == "assistant":
        span.put(semconv.PROMPT_FORM, "begun")
    span.put_messages(semconv.INPUT_MESSAGES, messages)
    return span.decoded(_answer(span, exchange))


def _instructions(system: Any) -> tuple[Any, ...]:
    blocks = system if isinstance(system, list) else [] if system is None else [system]
    parts = [part for block in blocks for part in parts_of(block)]
    return parse_message({"role": "system", "content": parts}).parts


def _put_config(span: SpanDraft, request: dict[str, Any]) -> None:
    config = json_object(request.get("inferenceConfig"))
    for name, attribute in _NUMBERS.items():
        if config.get(name) is not None:
            span.put(attribute, as_number(config[name]))
    span.put_stops(config.get("stopSequences"))
    further = json_object(request.get("additionalModelRequestFields"))
    if semconv.REQUEST_TOP_K not in span.attributes:
        span.put(semconv.REQUEST_TOP_K, next((as_number(further[name]) for name in _TOP_K if name in further), None))
    altered = [name for name in ("outputConfig",) if "textFormat" in json_object(request.get(name))]
    choice = json_object(json_object(request.get("toolConfig")).get("toolChoice"))
    if choice.keys() - {"auto"}:
        altered.append("toolChoice")
    span.put(semconv.SAMPLING_SETTINGS, altered or None)
    guardrail = json_object(request.get("guardrailConfig"))
    span.put_text(semconv.AWS_BEDROCK_GUARDRAIL_ID, guardrail.get("guardrailIdentifier"))
    said = span.attributes
    fields = {name: value for name, value in request.items() if name not in _ELSEWHERE}
    if rest := {name: value for name, value in config.items() if said.get(_SAID_BY.get(name, "")) != value}:
        fields["inferenceConfig"] = rest
    if choice:
        fields["toolConfig"] = {"toolChoice": choice}
    span.put_fields(fields)


def _answer(span: SpanDraft, exchange: Exchange) -> Failure | None:
    body = span.body()
    if not isinstance(body, bytes):
        return body
    if not span.is_stream(body):
        answer = json_or_none(body)
        if not isinstance(answer, dict):
            return ("invalid_response", "the response is no JSON object")
        _put(span, answer)
        error = error_of(answer)
        return None if error is None else ("stream_error", error)
    stream = read_events(event_data(body))
    whole = stream.is_whole
    span.stream_ended(done=whole and exchange.ending in ("complete", "closed"), whole=whole)
    _put(span, stream.answer)
    if stream.error is not None:
        return ("stream_error", stream.error)
    if stream.unreadable_events:
        return ("invalid_response", f"{stream.unreadable_events} events of the stream are no JSON objects")
    return None


def _put(span: SpanDraft, answer: dict[str, Any]) -> None:
    routed = json_object(json_object(answer.get("trace")).get("promptRouter"))
    span.put_text(semconv.RESPONSE_MODEL, routed.get("invokedModelId"))
    reason = finish_reason(answer.get("stopReason"))
    span.put(semconv.RESPONSE_FINISH_REASONS, None if reason is None else [reason])
    span.usage(counts(json_object(answer.get("usage"))))
    message = json_object(answer.get("output")).get("message")
    if isinstance(message, dict):
        parts = [part for one in of_message("assistant", message.get("content")) for part in parse_message(one).parts]
        span.put_messages(semconv.OUTPUT_MESSAGES, [OutputMessage("assistant", tuple(parts), reason)])


def counts(usage: dict[str, Any]) -> dict[str, Any]:
    """The counts as OpenAI's APIs have them, who count cached tokens among a prompt's; Bedrock counts them beside."""
    asked, said, read, written = (
        count if type(count := usage.get(name)) is int else None
        for name in ("inputTokens", "outputTokens", "cacheReadInputTokens", "cacheWriteInputTokens")
    )
    found: dict[str, Any] = {}
    if asked is not None:
        found["input_tokens"] = asked + (read or 0) + (written or 0)
    if said is not None:
        found["output_tokens"] = said
    if cached := {name: count for name, count in (("cached_tokens", read), ("cache_write_tokens", written)) if count}:
        found["input_tokens_details"] = cached
    return found
