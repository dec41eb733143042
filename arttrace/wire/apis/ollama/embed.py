"""One exchange of Ollama's `/api/embed`, or of the older `/api/embeddings`, becomes the attributes of its `embeddings`
span: no inputs and no vectors. Servers that answer there as OpenAI's are read too."""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.wire.apis.openai.embeddings import EmbeddingsJson, put_dimensions, put_embeddings
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, SpanDraft


class _EmbedJson(EmbeddingsJson):
    prompt_eval_count: Any = None

    def counts(self) -> dict[str, Any]:
        return self.usage if isinstance(self.usage, dict) else {"input_tokens": self.prompt_eval_count}


_answer = msgspec.json.Decoder(_EmbedJson)


def decode_ollama_embed(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; there is no content in it, whatever `content` says."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_EMBEDDINGS, content=content, limit=limit)
    request = span.document()
    span.put_text(semconv.REQUEST_MODEL, request.get("model"))
    put_dimensions(span, request)
    return span.decoded(put_embeddings(span, _answer))
