"""One exchange of Ollama's `/api/chat` becomes the attributes of its `chat` span."""

from __future__ import annotations

from arttrace.records import semconv
from arttrace.wire.apis.ollama.answer import decode_answer
from arttrace.wire.apis.ollama.messages import messages_of
from arttrace.wire.apis.ollama.requests import put_request
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded, SpanDraft


def decode_ollama_chat(exchange: Exchange, *, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange; `wire.decode` says what the options mean."""
    span = SpanDraft(exchange, operation=semconv.OPERATION_CHAT, content=content, limit=limit)
    request = span.document()
    put_request(span, request, ("messages", "tools"))
    tools = request.get("tools")
    if isinstance(tools, list) and tools:
        span.put_json(semconv.TOOL_DEFINITIONS, tools)
    messages = messages_of(request.get("messages"))
    if messages and messages[-1].role == "assistant":
        span.put(semconv.PROMPT_FORM, "begun")
    span.put_messages(semconv.INPUT_MESSAGES, messages)
    return decode_answer(span, exchange)
