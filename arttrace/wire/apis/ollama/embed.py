"""One exchange of Ollama's `/api/embed`, or of the older `/api/embeddings`, becomes the attributes of its `embeddings`
span: no inputs and no vectors. Servers that answer there as OpenAI's are read too."""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, Failure, SpanDraft


class _EmbedJson(msgspec.Struct):
    """What is wanted of a response; the vectors are passed over unread."""

    model: Any = None
    prompt_eval_count: Any = None
    usage: Any = None


_answer = msgspec.json.Decoder(_EmbedJson)


def decode_ollama_embed(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; there is no content in it, whatever `content` says."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_EMBEDDINGS, content=content, limit=limit)
    request = span.document()
    span.put_text(semconv.REQUEST_MODEL, request.get("model"))
    if type(dimensions := request.get("dimensions")) is int:
        span.put(semconv.EMBEDDINGS_DIMENSION_COUNT, dimensions)
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
    span.usage(answer.usage if isinstance(answer.usage, dict) else {"input_tokens": answer.prompt_eval_count})
    return None
