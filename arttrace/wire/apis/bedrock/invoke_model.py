"""Bodies of other APIs at Bedrock (InvokeModel): which API one is of, and what Bedrock itself says of the call.

A body has the form of its model. Read are Anthropic's messages, chat completions (gpt-oss, Mistral's chat, Qwen,
DeepSeek, ...) and Converse's form, which Amazon's Nova takes. Source:
https://docs.aws.amazon.com/bedrock/latest/userguide/model-parameters.html
"""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

import msgspec

from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.apis.bedrock.paths import model_in, streams
from arttrace.wire.exchange import COUNT_HEADERS, Exchange
from arttrace.wire.span_attributes import Decoded, json_or_none
from arttrace.wire.sse import event_data

_METRICS = "amazon-bedrock-invocationMetrics"
_ACTION = "amazon-bedrock-guardrailAction"
_COUNTS = (
    (semconv.USAGE_INPUT_TOKENS, "inputTokenCount", COUNT_HEADERS[0]),
    (semconv.USAGE_OUTPUT_TOKENS, "outputTokenCount", COUNT_HEADERS[1]),
)

BodyApi = Literal["messages", "chat_completions", "converse"]


class _ModelMessage(msgspec.Struct):
    content: Any = None


class _ModelBody(msgspec.Struct):
    """What tells one form of body from another."""

    anthropic_version: Any = None
    messages: list[_ModelMessage] | None = None


_body = msgspec.json.Decoder(_ModelBody)


def api_of_body(body: bytes | bytearray | str) -> BodyApi | None:
    """The API whose form a body has; None for one of a form that is not read, as that of a prompt that is one text."""
    try:
        said = _body.decode(body)
    except UNREADABLE:
        return None
    if said.anthropic_version is not None:
        return "messages"
    if not said.messages:
        return None
    content = said.messages[0].content
    first = content[0] if isinstance(content, list) and content else None
    return "converse" if isinstance(first, dict) and "type" not in first else "chat_completions"


def at_bedrock(decoded: Decoded, exchange: Exchange) -> Decoded:
    """The span of a call with what Bedrock says of it beside the body: the model in the path, the counts of tokens in
    headers or at a stream's end, where the body has none, and that a guardrail has changed the answer."""
    attributes, path = decoded.attributes, exchange.path
    model = model_in(path)
    attributes[semconv.REQUEST_MODEL] = model
    attributes.pop(semconv.OPENAI_API_TYPE, None)
    is_embedding = attributes[semconv.OPERATION_NAME] == semconv.OPERATION_EMBEDDINGS
    if is_embedding:  # what is embedded stands in fields of many names
        attributes.pop(semconv.REQUEST_FIELDS, None)
    if streams(path):
        attributes[semconv.REQUEST_STREAM] = True
    said = _said_at_the_end(exchange)
    metrics = json_object(said.get(_METRICS))
    for name, metric, header in _COUNTS[:1] if is_embedding else _COUNTS:
        count = metrics.get(metric, exchange.headers.get(header))
        if name not in attributes and isinstance(count, int | str) and str(count).isdecimal():
            attributes[name] = int(count)
    if said.get(_ACTION) == "INTERVENED":
        _filtered(attributes)
    return dataclasses.replace(decoded, name=f"{attributes[semconv.OPERATION_NAME]} {model}")


def _said_at_the_end(exchange: Exchange) -> dict[str, Any]:
    """What Bedrock adds to an answer, or to the events of one."""
    if _METRICS.encode() not in exchange.body and _ACTION.encode() not in exchange.body:
        return {}
    documents = event_data(exchange.body) if streams(exchange.path) else [exchange.body]
    found: dict[str, Any] = {}
    for document in map(json_or_none, documents):
        found |= {name: value for name, value in json_object(document).items() if name in (_METRICS, _ACTION)}
    return found


def _filtered(attributes: dict[str, Any]) -> None:
    """Say that the answer is not the model's own."""
    attributes[semconv.RESPONSE_FINISH_REASONS] = ["content_filter"]
    answers = json_or_none(attributes.get(semconv.OUTPUT_MESSAGES, "").encode())
    if isinstance(answers, list):
        told = [{**answer, "finish_reason": "content_filter"} for answer in json_objects(answers)]
        attributes[semconv.OUTPUT_MESSAGES] = msgspec.json.encode(told).decode()
