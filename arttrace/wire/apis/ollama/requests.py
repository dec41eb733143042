"""What a request to Ollama's API asks for: which API by its path, whether a model at all by its body, and its options.

The paths are short, and may be anybody's: what is no request of Ollama's there is none of its calls. Source of the
fields: https://docs.ollama.com/api
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Literal

from arttrace.records import semconv
from arttrace.records.values.lenient_json import json_object
from arttrace.wire.sampling_fields import as_number
from arttrace.wire.span_attributes import SpanDraft, json_or_none

OllamaApi = Literal["ollama_chat", "ollama_generate", "ollama_embed"]

_PATH = re.compile(r"/api/(chat|generate|embed|embeddings)\Z")
_APIS: dict[str, OllamaApi] = {
    "chat": "ollama_chat",
    "generate": "ollama_generate",
    "embed": "ollama_embed",
    "embeddings": "ollama_embed",
}
_NUMBERS = {
    "temperature": semconv.REQUEST_TEMPERATURE,
    "top_p": semconv.REQUEST_TOP_P,
    "top_k": semconv.REQUEST_TOP_K,
    "num_predict": semconv.REQUEST_MAX_TOKENS,
    "seed": semconv.REQUEST_SEED,
    "frequency_penalty": semconv.REQUEST_FREQUENCY_PENALTY,
    "presence_penalty": semconv.REQUEST_PRESENCE_PENALTY,
}
# Options that change what is sampled, with the values that leave it as it is.
_FURTHER = {"min_p": 0, "repeat_penalty": 1, "typical_p": 1, "tfs_z": 1, "mirostat": 0}
_ASKED: dict[OllamaApi, tuple[str, ...]] = {
    "ollama_chat": ("messages",),
    "ollama_generate": ("prompt",),
    "ollama_embed": ("input", "prompt"),
}
"""In which fields a model is asked something."""
_SAID_BY = {**_NUMBERS, "stop": semconv.REQUEST_STOP_SEQUENCES}


def api_at(path: str) -> OllamaApi | None:
    """The API of Ollama's that has this path."""
    found = _PATH.search(path)
    return None if found is None else _APIS[found[1]]


def asks_a_model(api: OllamaApi, body: Callable[[], bytes | None]) -> bool | None:
    """Whether a request asks a model for something; False where it only has one loaded or unloaded, None where it is
    none of Ollama's, or cannot be read before it is sent."""
    text = body()
    request = None if text is None else json_or_none(text)
    if not isinstance(request, dict) or not isinstance(request.get("model"), str):
        return None
    return any(request.get(name) for name in _ASKED[api])


def put_request(span: SpanDraft, request: dict[str, Any], content: Iterable[str]) -> None:
    """Set what is asked for beside the content, whose fields are these."""
    said = span.attributes
    span.put_text(semconv.REQUEST_MODEL, request.get("model"))
    if request.get("stream") is not False:
        span.put(semconv.REQUEST_STREAM, True)
    options = json_object(request.get("options"))
    for name, attribute in _NUMBERS.items():
        if options.get(name) is not None:
            span.put(attribute, as_number(options[name]))
    stop = options.get("stop")
    span.put_stops([stop] if isinstance(stop, str) else stop)
    altered = [name for name, neutral in _FURTHER.items() if options.get(name) not in (None, neutral)]
    if request.get("format") not in (None, ""):
        altered.append("format")
    span.put(semconv.SAMPLING_SETTINGS, altered or None)
    further = {name: value for name, value in options.items() if not _is_said(said, name, value)}
    left_out = {"model", "stream", "options", *content}
    fields = {name: value for name, value in request.items() if name not in left_out}
    span.put_fields(fields | ({"options": further} if further else {}))


def _is_said(said: dict[str, Any], name: str, value: Any) -> bool:
    attribute = _SAID_BY.get(name)
    return attribute is not None and said.get(attribute) == value
