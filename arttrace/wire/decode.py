"""Which API an exchange belongs to, by the path of its URL, and the decoder of that API."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

from arttrace.records import semconv
from arttrace.wire.apis.anthropic.messages import decode_messages
from arttrace.wire.apis.bedrock import paths as bedrock
from arttrace.wire.apis.bedrock.converse import decode_converse
from arttrace.wire.apis.bedrock.invoke_model import at_bedrock
from arttrace.wire.apis.gemini import paths as gemini
from arttrace.wire.apis.gemini.embed_content import decode_embed_content
from arttrace.wire.apis.gemini.generate_content import decode_generate_content
from arttrace.wire.apis.ollama import requests as ollama
from arttrace.wire.apis.ollama.chat import decode_ollama_chat
from arttrace.wire.apis.ollama.embed import decode_ollama_embed
from arttrace.wire.apis.ollama.generate import decode_ollama_generate
from arttrace.wire.apis.openai.chat import decode_chat
from arttrace.wire.apis.openai.completions import decode_completion
from arttrace.wire.apis.openai.embeddings import decode_embeddings
from arttrace.wire.apis.openai.responses import decode_response
from arttrace.wire.aws_event_stream import as_server_sent
from arttrace.wire.exchange import Exchange
from arttrace.wire.span_attributes import Decoded

Api = Literal[
    "chat_completions",
    "responses",
    "completions",
    "embeddings",
    "messages",
    "generate_content",
    "embed_content",
    "ollama_chat",
    "ollama_generate",
    "ollama_embed",
    "converse",
]
"""The APIs whose calls are recorded, OpenAI's as `openai.api.type` names them; `messages` is Anthropic's, the next two
are Gemini's, the last is Bedrock's."""

_PATHS: tuple[tuple[str, Api], ...] = (
    ("/chat/completions", "chat_completions"),
    ("/agents/completions", "chat_completions"),  # Mistral's
    ("/responses", "responses"),
    ("/completions", "completions"),
    ("/embeddings", "embeddings"),
    ("/v1/messages", "messages"),
)
_AT_VERTEX = re.compile(r"/publishers/anthropic/.*awPredict$")
_OPERATIONS: dict[Api, str] = {
    "chat_completions": semconv.OPERATION_CHAT,
    "responses": semconv.OPERATION_CHAT,
    "completions": semconv.OPERATION_TEXT_COMPLETION,
    "embeddings": semconv.OPERATION_EMBEDDINGS,
    "messages": semconv.OPERATION_CHAT,
    "generate_content": semconv.OPERATION_GENERATE_CONTENT,
    "embed_content": semconv.OPERATION_EMBEDDINGS,
    "ollama_chat": semconv.OPERATION_CHAT,
    "ollama_generate": semconv.OPERATION_TEXT_COMPLETION,
    "ollama_embed": semconv.OPERATION_EMBEDDINGS,
    "converse": semconv.OPERATION_CHAT,
}
_DECODERS = {
    "chat_completions": decode_chat,
    "responses": decode_response,
    "completions": decode_completion,
    "embeddings": decode_embeddings,
    "messages": decode_messages,
    "generate_content": decode_generate_content,
    "embed_content": decode_embed_content,
    "ollama_chat": decode_ollama_chat,
    "ollama_generate": decode_ollama_generate,
    "ollama_embed": decode_ollama_embed,
    "converse": decode_converse,
}
assert set(_DECODERS) == set(get_args(Api))


@lru_cache(maxsize=256)
def api_of(path: str) -> Api | None:
    """The API that a POST to this path calls, or None when it is none of those that are recorded."""
    if (of_ollama := ollama.api_at(path)) is not None:  # before OpenAI's: its `/api/embeddings` ends as theirs
        return of_ollama
    named = next((api for end, api in _PATHS if path.endswith(end)), None)
    if named is None and _AT_VERTEX.search(path) and not path.endswith("count-tokens:rawPredict"):
        return "messages"
    if named is None and bedrock.is_call(path):
        return _at_bedrock(path)
    if named is None and gemini.is_call(path):
        return "generate_content"
    if named is None and gemini.is_embedding(path):
        return "embed_content"
    return named


def _at_bedrock(path: str) -> Api | None:
    if bedrock.is_converse(path):
        return "converse"
    return "messages" if bedrock.is_anthropics(path) else "embeddings" if bedrock.is_embedding(path) else None


def is_call(path: str, body: Callable[[], bytes | None]) -> bool | None:
    """Whether a POST to this path with this body calls a model; False where its server only has one loaded, None where
    it is none of an API that is recorded. `body` gives None where it cannot be read before it is sent."""
    match api_of(path):
        case "ollama_chat" | "ollama_generate" | "ollama_embed" as api:
            return ollama.asks_a_model(api, body)
        case None:
            return None
        case _:
            return True


def may_be_call(path: str) -> bool:
    """Whether a POST to this path is a call, where that may be one that only the body tells."""
    return api_of(path) is not None or bedrock.is_call(path)


def operation_of(path: str) -> str:
    """`gen_ai.operation.name` of a call to this path."""
    return _OPERATIONS[api_of(path) or "chat_completions"]


def provider_of(path: str, host: str | None) -> str:
    """`gen_ai.provider.name` of a call to this path at this host, by whatever client."""
    if bedrock.is_call(path):
        return "aws.bedrock"
    match api_of(path):
        case "messages":
            return "anthropic"
        case "generate_content" | "embed_content":
            return gemini.provider_at(path)
        case "ollama_chat" | "ollama_generate" | "ollama_embed":
            return "ollama"
    return "azure.ai.openai" if (host or "").endswith(".azure.com") else "openai"


def decode(exchange: Exchange, *, called: Api | None = None, content: bool = True, limit: int = 8 << 20) -> Decoded:
    """Decode one exchange of any of the APIs. Nothing that its bytes hold makes this raise.

    `called` is its API where its path names none (else chat completions): a client that is asked for a message of
    Anthropic's sends it to the path of a model at Bedrock, whose name may be anything.
    Without `content`, what was said and its tokens are left out. `limit` bounds the JSON text of each content
    attribute in bytes; the names of those that were cut are under `arttrace.truncated`. An error type is the status
    code of an HTTP error, as the conventions have it, else one of "invalid_response" and "stream_error".
    """
    api = api_of(exchange.path) or called or "chat_completions"
    exchange = as_server_sent(exchange)
    decoded = _DECODERS[api](exchange, content=content, limit=limit)
    is_other = bedrock.is_call(exchange.path) and not bedrock.is_converse(exchange.path)
    return at_bedrock(decoded, exchange) if is_other else decoded
