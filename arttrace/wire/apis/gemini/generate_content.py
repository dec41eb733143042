"""One exchange of Gemini's `generateContent` becomes the attributes of its `generate_content` span.

Vertex AI has the same bodies at other paths. The model is in the path, and so is whether the answer streams. What a
server keeps of the prompt (`cachedContent`, the beginning of an answer that `continuationToken` goes on from) no
request shows: `arttrace.request.messages_kept` says that it was there. Source of the fields:
https://ai.google.dev/api/generate-content
"""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_objects
from arttrace.records.values.tokens import encode_logprobs
from arttrace.wire.apis.gemini.answer import GeneratedContent, array_items, counts, read_answer
from arttrace.wire.apis.gemini.contents import instructions_of, messages_of
from arttrace.wire.apis.gemini.members import member, object_in, others
from arttrace.wire.apis.gemini.paths import model_in, streams
from arttrace.wire.content.secrets import without_logins
from arttrace.wire.exchange import Exchange
from arttrace.wire.sampling_fields import as_number
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft, error_of, json_or_none
from arttrace.wire.sse import event_data

_NUMBERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "topP": semconv.REQUEST_TOP_P,
    "topK": semconv.REQUEST_TOP_K,
    "maxOutputTokens": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "frequencyPenalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presencePenalty": semconv.REQUEST_PRESENCE_PENALTY,
}
_SAID_BY = {
    **_NUMBERS,
    "stopSequences": semconv.REQUEST_STOP_SEQUENCES,
    "candidateCount": semconv.REQUEST_CHOICE_COUNT,
}
_ELSEWHERE = ("contents", "systemInstruction", "tools", "generationConfig")
_KEPT = ("cachedContent", "continuationToken")
_SCHEMAS = ("responseSchema", "responseJsonSchema")
_FREE = ("AUTO", "NONE", "MODE_UNSPECIFIED")
"""The modes of function calling in which the model may say what it likes."""


def decode_generate_content(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_GENERATE_CONTENT, content=content, limit=limit)
    request = span.document()
    span.put(semconv.REQUEST_MODEL, model_in(exchange.path))
    if streams(exchange.path):
        span.put(semconv.REQUEST_STREAM, True)
    _put_config(span, request)
    span.put(semconv.MESSAGES_KEPT, [name for name in _KEPT if member(request, name)] or None)
    if tools := _tools(request.get("tools")):
        span.put_json(semconv.TOOL_DEFINITIONS, tools)
    if instructions := instructions_of(member(request, "systemInstruction")):
        span.put_json(semconv.SYSTEM_INSTRUCTIONS, instructions)
    messages = messages_of(request.get("contents"))
    if messages and messages[-1].role == "assistant":
        span.put(semconv.PROMPT_FORM, "begun")
    span.put_messages(semconv.INPUT_MESSAGES, messages)
    return span.decoded(_answer(span, exchange))


def _put_config(span: SpanDraft, request: dict[str, Any]) -> None:
    config = object_in(request, "generationConfig")
    for name, attribute in _NUMBERS.items():
        if (value := member(config, name)) is not None:
            span.put(attribute, as_number(value))
    span.put_stops(member(config, "stopSequences"))
    if type(count := member(config, "candidateCount")) is int and count != 1:
        span.put(semconv.REQUEST_CHOICE_COUNT, count)
    altered = [name for name in _SCHEMAS if member(config, name)]
    if member(config, "responseMimeType") not in (None, "text/plain"):
        altered.append("responseMimeType")
    calling = object_in(object_in(request, "toolConfig"), "functionCallingConfig")
    if member(calling, "mode") not in (None, *_FREE):
        altered.append("toolConfig")
    span.put(semconv.SAMPLING_SETTINGS, altered or None)
    said = [name for name, attribute in _SAID_BY.items() if span.attributes.get(attribute) == member(config, name)]
    further = others(config, said)
    span.put_fields(others(request, _ELSEWHERE) | ({"generationConfig": further} if further else {}))


def _tools(tools: Any) -> list[Any]:
    """The functions that are declared in the form of chat completions; the server's own tools as they came."""
    found: list[Any] = []
    for tool in tools if isinstance(tools, list) else []:
        declared = member(tool, "functionDeclarations") if isinstance(tool, dict) else None
        if not isinstance(declared, list):
            found.append(without_logins(tool))
            continue
        found += map(_function, json_objects(declared))
        found += [without_logins(own)] if (own := others(tool, ("functionDeclarations",))) else []
    return found


def _function(declared: dict[str, Any]) -> dict[str, Any]:
    schema = member(declared, "parametersJsonSchema")
    if schema is None:
        try:
            schema = _json_schema(declared.get("parameters"))
        except RecursionError:
            schema = declared["parameters"]
    described = {name: declared[name] for name in ("name", "description") if declared.get(name) is not None}
    return {"type": "function", "function": {**described, **({} if schema is None else {"parameters": schema})}}


_TYPES = frozenset(("STRING", "NUMBER", "INTEGER", "BOOLEAN", "ARRAY", "OBJECT", "NULL"))


def _json_schema(schema: Any) -> Any:
    """A schema of Gemini's own as JSON Schema, which has its types in small letters."""
    if isinstance(schema, list):
        return [_json_schema(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: value.lower() if name == "type" and isinstance(value, str) and value in _TYPES else _json_schema(value)
        for name, value in schema.items()
    }


def _answer(span: SpanDraft, exchange: Exchange) -> Failure | None:
    body = span.body(streams=streams(exchange.path))
    if not isinstance(body, bytes):
        return body
    if span.is_stream(body):
        answer = read_answer(event_data(body))
        answer.error = answer.error or _error_between(body)
    else:
        items, whole = array_items(body)
        answer = read_answer(items)
        if not whole and not (streams(exchange.path) and items):
            answer.unreadable_chunks += 1
    if streams(exchange.path):
        whole = answer.is_whole(span.attributes.get(semconv.REQUEST_CHOICE_COUNT, 1))
        span.stream_ended(done=whole and exchange.ending in ("complete", "closed"), whole=whole)
    _put(span, answer)
    if answer.error is not None:
        return ("stream_error", answer.error)
    if answer.unreadable_chunks:
        if not span.is_stream(body):
            return ("invalid_response", "the response is no JSON object")
        return ("invalid_response", f"{answer.unreadable_chunks} events of the stream are no JSON objects")
    return None


_FIELDS = (b"data", b"event", b"id", b"retry", b":")


def _error_between(body: bytes) -> str | None:
    """The message of an error that stands in a stream as plain JSON, beside its events."""
    if b'"error"' not in body:
        return None
    return error_of(json_or_none(b"\n".join(line for line in body.splitlines() if not line.startswith(_FIELDS))))


def _put(span: SpanDraft, answer: GeneratedContent) -> None:
    span.put_text(semconv.RESPONSE_ID, answer.id)
    span.put_text(semconv.RESPONSE_MODEL, answer.model)
    span.usage(counts(answer.usage))
    messages = answer.messages()
    reasons = [message.finish_reason for message in messages if message.finish_reason is not None]
    span.put(semconv.RESPONSE_FINISH_REASONS, reasons or None)
    span.put_messages(semconv.OUTPUT_MESSAGES, messages or None)
    for place, index in enumerate(sorted(answer.candidates)):
        if logprobs := answer.candidates[index].logprobs:
            span.put_tokens(semconv.LOGPROBS + (f".{place}" if place else ""), encode_logprobs(logprobs))
