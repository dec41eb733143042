"""Calls of models as Weave's integrations record them: what a client's method was given and returned, read as the
exchange that it was. Pure."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from arttrace.formats.left_out import LeftOutItem
from arttrace.formats.sdks.anthropic_messages import unread_parts
from arttrace.formats.sdks.openai_messages import reasons_of
from arttrace.formats.systems.exchanges import ANTHROPIC, CHAT, RESPONSES, attributes_of
from arttrace.formats.systems.tracers.weave.values import elsewhere, was_sent
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import finite
from arttrace.wire import Exchange, decode
from arttrace.wire.decode import provider_of
from arttrace.wire.span_attributes import usage_attributes

_GEMINI, _CONVERSE = ":generateContent", "/converse"
_BY_NAME = (("anthropic", ANTHROPIC), ("responses.", RESPONSES), ("generate_content", _GEMINI), ("converse", _CONVERSE))
_OF_THE_METHOD = frozenset(
    {"self", "timeout", "extra_headers", "extra_query", "extra_body", "kwargs", "api_key", "api_base", "base_url"}
)
"""What a client's method is given and its request's body has not."""
_ASKED = frozenset({"messages", "input", "contents"})
_OF_GEMINIS_CLIENT = frozenset({"http_options", "should_return_http_response", "automatic_function_calling"})
_BESIDE_SETTINGS = ("system_instruction", "tools", "tool_config", "safety_settings", "cached_content")


def attributes(name: str, given: dict[str, Any], output: Any, usage: Any) -> tuple[Attributes, list[LeftOutItem]]:
    """What is captured of a call that was made by the function of this name, and what of it is not in the file.

    `usage` is what Weave counted, read where the answer has none. Raises ValueError where the answer is of none of the
    APIs whose calls are read, though it looks like one's.
    """
    request, response = _request(name, given), _response(output)
    api = _api(name, response)
    left_out = [LeftOutItem(what) for what in sorted({*elsewhere(given), *elsewhere(output)})]
    cut = [
        *([semconv.INPUT_MESSAGES] if any(elsewhere(request)) else ()),
        *([semconv.OUTPUT_MESSAGES] if any(elsewhere(output)) else ()),
    ]
    if request.get("stream") is True and api == CHAT and response:
        lost = list(_lost_of_a_stream(response))
        left_out += map(LeftOutItem, lost)
        cut += [semconv.OUTPUT_MESSAGES] if _BEGINNINGS in lost and semconv.OUTPUT_MESSAGES not in cut else []
        response = {**response, "choices": [{**one, "logprobs": None} for one in json_objects(response["choices"])]}
    asked = request.get("messages")
    messages = asked if api in (CHAT, ANTHROPIC) and _are_messages(asked) else None
    found: Attributes = {semconv.OPERATION_NAME: semconv.OPERATION_CHAT}
    if response or not _ASKED.isdisjoint(request):
        found = _decoded(request, messages, response, api, given)
    if messages is not None:
        left_out += unread_parts([*messages, {"role": "assistant", "content": response.get("content")}])
    if semconv.USAGE_OUTPUT_TOKENS not in found and isinstance(counted := _counted(usage), dict):
        found |= usage_attributes(counted)
    if is_answer(output):
        found |= _server(given, api)
    if request.get("stream") is True and response and not all(reasons_of(response) or [None]):
        found[semconv.INTERRUPTED] = "closed"  # its end says why it ends
    first = finite(response.get("time_to_first_token"))
    if first is not None and first >= 0:
        found[semconv.RESPONSE_TIME_TO_FIRST_CHUNK] = first
    return {**found, semconv.TRUNCATED: cut or None}, left_out


_BEGINNINGS = "tool calls of streamed answers of which Weave lost the beginning"


def _lost_of_a_stream(response: Mapping[str, Any]) -> Iterator[str]:
    """What Weave does not gather of the chunks of a stream, where it shows."""
    choices = json_objects(response["choices"])
    if any(one.get("logprobs") for one in choices):
        yield "log-probabilities of streamed answers, of which Weave keeps the last"
    calls = [call for one in choices for call in json_objects(json_object(one.get("message")).get("tool_calls"))]
    arguments = [json_object(call.get("function")).get("arguments") for call in calls]
    if not all(isinstance(one, str) and one.lstrip().startswith("{") for one in arguments):
        yield _BEGINNINGS


def is_answer(output: Any) -> bool:
    """Whether this is what one of the APIs answers."""
    return isinstance(output, dict) and _api_of(output) is not None


def counts_tokens(output: Any) -> bool:
    """Whether an answer says what it used."""
    return not {"usage", "usageMetadata", "usage_metadata"}.isdisjoint(json_object(output))


def _decoded(
    request: dict[str, Any],
    messages: list[dict[str, Any]] | None,
    response: dict[str, Any],
    api: str,
    given: Mapping[str, Any],
) -> Attributes:
    if api in (CHAT, ANTHROPIC, RESPONSES) and response:
        return attributes_of(request, messages, response, api)[0]
    path = _path(api, str(given.get("model") or given.get("modelId") or ""))
    status = 200 if response else None
    answer = _json(_without_nulls(response) if api == _GEMINI else response) if response else b""
    exchange = Exchange(_json(request), status, {}, answer, path=path)
    found = decode(exchange, limit=sys.maxsize).attributes
    return {name: value for name, value in found.items() if name != semconv.HTTP_STATUS_CODE}


def _path(api: str, model: str) -> str:
    return {_GEMINI: f"/v1/models/{model}{_GEMINI}", _CONVERSE: f"/model/{model}{_CONVERSE}"}.get(api, api)


def _server(given: Mapping[str, Any], api: str) -> Attributes:
    """Whom the client asked: of OpenAI's chat completions Weave keeps the address."""
    client = json_object(json_object(given.get("self")).get("client"))
    try:
        url = urlsplit(str(client.get("base_url") or ""))
        host, port = url.hostname, url.port
    except ValueError:
        host = port = None
    return {
        semconv.PROVIDER_NAME: provider_of(_path(api, "m"), host),
        semconv.SERVER_ADDRESS: host,
        semconv.SERVER_PORT: port,
    }


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


def _request(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The body of the request, by what the method was given."""
    named = {**given, **json_object(given.get("kwargs")), **json_object(given.get("extra_body"))}
    sent = {key: one for key, one in named.items() if key not in _OF_THE_METHOD and not key.startswith("_weave")}
    sent = {key: one for key, one in sent.items() if one is not None and was_sent(one)}
    if name.endswith(".stream"):
        sent["stream"] = True
    if "contents" in sent:
        return _of_gemini(sent)
    if "messages" not in sent and "input" not in sent and isinstance(sent.get("prompt"), str):
        sent["messages"] = sent.pop("prompt")
    if isinstance(sent.get("messages"), str):
        sent["messages"] = [{"role": "user", "content": sent["messages"]}]
    return sent


def _of_gemini(sent: dict[str, Any]) -> dict[str, Any]:
    config, contents = json_object(_without_nulls(sent.get("config"))), _without_nulls(sent["contents"])
    if isinstance(contents, str):
        contents = [{"role": "user", "parts": [{"text": contents}]}]
    beside = {key: config[key] for key in _BESIDE_SETTINGS if key in config}
    if isinstance(instruction := beside.get("system_instruction"), str):
        beside["system_instruction"] = {"parts": [{"text": instruction}]}
    settings = {key: one for key, one in config.items() if key not in (*_BESIDE_SETTINGS, *_OF_GEMINIS_CLIENT)}
    return {"contents": contents, **beside, **({"generation_config": settings} if settings else {})}


def _without_nulls(value: Any) -> Any:
    """What a client sends of an object of its classes, of which Weave keeps every field."""
    if isinstance(value, list):
        return [_without_nulls(one) for one in value]
    if isinstance(value, dict):
        return {key: _without_nulls(one) for key, one in value.items() if one is not None}
    return value


def _response(output: Any) -> dict[str, Any]:
    """What was answered, in the form of an API; empty where it cannot be read."""
    if is_answer(output):
        return json_object(output)
    if isinstance(output, dict) and ("content" in output or "tool_calls" in output):
        return {"choices": [{"message": {"role": "assistant", **output}}]}
    if isinstance(output, str) and was_sent(output) and not output.startswith("<APIResponse"):
        return {"choices": [{"message": {"role": "assistant", "content": output}}]}
    return {}


def _api(name: str, response: Mapping[str, Any]) -> str:
    """The path of the API, or what it ends in, by the answer, else by the name of the method."""
    return _api_of(response) or next((api for part, api in _BY_NAME if part in name.lower()), CHAT)


def _api_of(response: Mapping[str, Any]) -> str | None:
    if isinstance(response.get("choices"), list):
        return CHAT
    if response.get("type") == "message" and isinstance(response.get("content"), list):
        return ANTHROPIC
    if response.get("object") == "response" and isinstance(response.get("output"), list):
        return RESPONSES
    if isinstance(response.get("candidates"), list):
        return _GEMINI
    if isinstance(json_object(response.get("output")).get("message"), dict):
        return _CONVERSE
    return None


def _are_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(one, dict) for one in value)


def _counted(usage: Any) -> Any:
    """The counts of the one model that a call used."""
    return next(iter(usage.values())) if isinstance(usage, dict) and len(usage) == 1 else None
