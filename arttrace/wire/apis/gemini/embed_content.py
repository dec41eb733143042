"""One exchange of Gemini's `embedContent`, or of several at once, becomes the attributes of its `embeddings` span: no
inputs and no vectors."""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_objects
from arttrace.wire.apis.gemini.answer import counts
from arttrace.wire.apis.gemini.members import member, object_in
from arttrace.wire.apis.gemini.paths import model_in
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft, json_or_none


def decode_embed_content(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; there is no content in it, whatever `content` says."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_EMBEDDINGS, content=content, limit=limit)
    request = span.document()
    span.put(semconv.REQUEST_MODEL, model_in(exchange.path))
    for asked in (request, object_in(request, "parameters"), *json_objects(request.get("requests"))[:1]):
        for place in (asked, object_in(asked, "embedContentConfig")):
            if type(dimensions := member(place, "outputDimensionality")) is int:
                span.put(semconv.EMBEDDINGS_DIMENSION_COUNT, dimensions)
    return span.decoded(_response(span))


def _response(span: SpanDraft) -> Failure | None:
    body = span.body()
    if not isinstance(body, bytes):
        return body
    answer = json_or_none(body)
    if not isinstance(answer, dict):
        return ("invalid_response", "the response is no JSON object")
    counted = counts(object_in(answer, "usageMetadata"))
    if not counted and (tokens := _counted_at_each(answer)):
        counted = {"input_tokens": tokens}
    span.usage(counted)
    return None


def _counted_at_each(answer: dict[str, Any]) -> int:
    """The tokens that Vertex AI's older models count at each of their embeddings."""
    found = (
        member(object_in(object_in(one, "embeddings"), "statistics"), "tokenCount")
        for one in json_objects(answer.get("predictions"))
    )
    return sum(int(count) for count in found if isinstance(count, int | float))
