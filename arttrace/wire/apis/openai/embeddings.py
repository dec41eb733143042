"""One exchange of the embeddings API becomes the attributes of its `embeddings` span: no inputs and no vectors."""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft


class EmbeddingsJson(msgspec.Struct):
    """What is wanted of a response; the vectors are passed over unread."""

    model: Any = None
    usage: Any = None

    def counts(self) -> dict[str, Any]:
        """The counts of tokens, by the names of OpenAI's APIs."""
        return self.usage if isinstance(self.usage, dict) else {}


_answer = msgspec.json.Decoder(EmbeddingsJson)


def decode_embeddings(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of embeddings; there is no content in it, whatever `content` says."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_EMBEDDINGS, api="embeddings", content=content, limit=limit)
    request = span.request()
    if isinstance(request.get("encoding_format"), str):
        span.put(semconv.REQUEST_ENCODING_FORMATS, [request["encoding_format"]])
    put_dimensions(span, request)
    return span.decoded(put_embeddings(span, _answer))


def put_dimensions(span: SpanDraft, request: dict[str, Any]) -> None:
    """Set how long the vectors are to be."""
    if type(request.get("dimensions")) is int:
        span.put(semconv.EMBEDDINGS_DIMENSION_COUNT, request["dimensions"])


def put_embeddings(span: SpanDraft, decoder: msgspec.json.Decoder[Any]) -> Failure | None:
    """Set what a response says, which the decoder reads as an EmbeddingsJson."""
    body = span.body()
    if not isinstance(body, bytes):
        return body
    try:
        answer = decoder.decode(body)
    except UNREADABLE:
        return ("invalid_response", "the response is no JSON object")
    span.put_text(semconv.RESPONSE_MODEL, answer.model)
    span.usage(answer.counts())
    return None
