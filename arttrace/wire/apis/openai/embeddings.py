"""One exchange of the embeddings API becomes the attributes of its `embeddings` span: no inputs and no vectors."""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft


class _EmbeddingsJson(msgspec.Struct):
    """What is wanted of a response; the vectors are passed over unread."""

    model: Any = None
    usage: Any = None


_answer = msgspec.json.Decoder(_EmbeddingsJson)


def decode_embeddings(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of embeddings; there is no content in it, whatever `content` says."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_EMBEDDINGS, api="embeddings", content=content, limit=limit)
    request = span.request()
    if isinstance(request.get("encoding_format"), str):
        span.put(semconv.REQUEST_ENCODING_FORMATS, [request["encoding_format"]])
    if type(request.get("dimensions")) is int:
        span.put(semconv.EMBEDDINGS_DIMENSION_COUNT, request["dimensions"])
    return span.decoded(_response(span))


def _response(span: SpanDraft) -> Failure | None:
    body = span.body()
    if not isinstance(body, bytes):
        return body
    try:
        answer = _answer.decode(body)
    except UNREADABLE:
        return ("invalid_response", "the response is no JSON object")
    span.put_text(semconv.RESPONSE_MODEL, answer.model)
    span.usage(answer.usage if isinstance(answer.usage, dict) else {})
    return None
