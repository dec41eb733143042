"""One exchange of Ollama's `/api/generate` becomes the attributes of its `text_completion` span.

The prompt is a user's message. The tokens of an earlier conversation (`context`) are all that there is of it in a
request: `arttrace.request.messages_kept` says that they were there.
"""

from __future__ import annotations

from typing import Any

from arttrace.records import semconv
from arttrace.records.message import Message, OtherPart, Part, TextPart
from arttrace.wire.apis.ollama.answer import decode_answer
from arttrace.wire.apis.ollama.messages import image_parts
from arttrace.wire.apis.ollama.requests import put_request
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, SpanDraft


def decode_ollama_generate(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_TEXT_COMPLETION, content=content, limit=limit)
    request = span.document()
    put_request(span, request, ("prompt", "system", "suffix", "images"))
    if request.get("context"):
        span.put(semconv.MESSAGES_KEPT, ["context"])
    if isinstance(system := request.get("system"), str) and system:
        span.put_json(semconv.SYSTEM_INSTRUCTIONS, [TextPart(system)])
    span.put_messages(semconv.INPUT_MESSAGES, _prompt(request))
    return decode_answer(span, exchange)


def _prompt(request: dict[str, Any]) -> tuple[Message, ...] | None:
    prompt, suffix = request.get("prompt"), request.get("suffix")
    if prompt is None:
        return None
    said: Part = TextPart(prompt) if isinstance(prompt, str) else OtherPart({"type": "prompt", "prompt": prompt})
    end: tuple[Part, ...] = (OtherPart({"type": "suffix", "suffix": suffix}),) if suffix else ()
    return (Message("user", (said, *end, *image_parts(request.get("images")))),)
