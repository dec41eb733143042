"""Pure: an engine's chat completion, whole or as it streams, as an answer of Anthropic's Messages API.

Beside what that API has, an answer holds the engine's token ids and log-probabilities under `arttrace`, so that our
capture of Anthropic's client records what was sampled; clients pass over fields that they do not know.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.apis.anthropic.messages import TOKENS_FIELD
from arttrace.wire.apis.openai.completion_response import integers

_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def error_body(status: int, body: bytes) -> bytes:
    """An error in Anthropic's form, `{"type": "error", "error": {"type", "message", "details"?}}`, from one in OpenAI's
    form."""
    error: Any = None
    try:
        error = msgspec.json.decode(body)["error"]
    except (*UNREADABLE, KeyError, TypeError):
        pass
    message = error.get("message") if isinstance(error, dict) else error
    hint = error.get("hint") if isinstance(error, dict) else None
    text = str(message or body[:1000].decode("utf-8", "replace") or "no reason was given")
    kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
    said = {"type": kind, "message": f"{text} {hint}" if hint else text}
    if isinstance(error, dict) and isinstance(error.get("details"), dict):
        said["details"] = error["details"]
    return msgspec.json.encode({"type": "error", "error": said, "request_id": None})


def message_of(body: bytes) -> bytes | None:
    """A whole answer as a message; None when the engine's is not a chat completion."""
    try:
        completion = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE:
        return None
    choices = json_objects(completion.get("choices"))
    if not choices:
        return None
    choice = choices[0]
    said = json_object(choice.get("message"))
    content: list[dict[str, Any]] = []
    if thought := said.get("reasoning_content") or said.get("reasoning"):
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if said.get("content"):
        content.append({"type": "text", "text": said["content"]})
    calls = [_tool_use(call) for call in json_objects(said.get("tool_calls"))]
    content += calls
    message = _message(completion.get("id"), completion.get("model"), content)
    message |= _stop(choice.get("finish_reason"), choice.get("stop_reason"), called=bool(calls))
    message["usage"] = _usage(completion.get("usage"))
    tokens = {
        "prompt_token_ids": integers(completion.get("prompt_token_ids")),
        "token_ids": integers(choice.get("token_ids")),
        "logprobs": _logprobs(choice),
        **{name: choice[name] for name in ("stop_reason",) if name in choice},
    }
    if tokens["token_ids"] is not None:
        message[TOKENS_FIELD] = tokens
    return msgspec.json.encode(message)


def _message(id: Any, model: Any, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{str(id or '').removeprefix('chatcmpl-')}",
        "type": "message",
        "role": "assistant",
        "model": model or "",
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _tool_use(call: dict[str, Any]) -> dict[str, Any]:
    function = json_object(call.get("function"))
    try:
        arguments = msgspec.json.decode(function.get("arguments") or "{}")
    except UNREADABLE:
        arguments = function.get("arguments")
    if not isinstance(arguments, dict):  # the API has no place for it; so Anthropic's guide to streamed tools wraps it
        arguments = {"INVALID_JSON": function.get("arguments")}
    return {"type": "tool_use", "id": call.get("id"), "name": function.get("name"), "input": arguments}


def _stop(finish_reason: Any, stop_reason: Any, *, called: bool) -> dict[str, Any]:
    """Why it ended, as `stop_reason` and `stop_sequence`."""
    match finish_reason:
        case "length":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        case "content_filter":
            return {"stop_reason": "refusal", "stop_sequence": None}
        case "tool_calls":
            return {"stop_reason": "tool_use", "stop_sequence": None}
    if isinstance(stop_reason, str) and not called:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop_reason}
    return {"stop_reason": "tool_use" if called else "end_turn", "stop_sequence": None}


def _usage(usage: Any) -> dict[str, Any]:
    usage = json_object(usage)
    cached = json_object(usage.get("prompt_tokens_details")).get("cached_tokens") or 0
    return {
        "input_tokens": max((usage.get("prompt_tokens") or 0) - cached, 0),
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": usage.get("completion_tokens") or 0,
    }


def _logprobs(choice: dict[str, Any]) -> list[Any] | None:
    entries = json_object(choice.get("logprobs")).get("content")
    return [one.get("logprob") for one in json_objects(entries)] if isinstance(entries, list) else None


class MessageStream:
    """The events of a streamed message, made from a chat completion's chunks as they come.

    A message's end is said when the engine's stream ends, since its usage comes last.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._ended = False
        self._block = -1
        self._kind: str | None = None
        self._call: int | None = None
        self._called = False
        self._stop: dict[str, Any] | None = None
        self._usage: Any = None
        self._prompt: list[int] | None = None
        self._token_ids: list[int] = []
        self._logprobs: list[Any] = []

    def feed(self, part: bytes) -> bytes:
        """The events that follow from more bytes of the engine's stream."""
        *lines, self._rest = (self._rest + part).split(b"\n")
        events: list[bytes] = []
        for line in lines:
            data = line.strip()
            if data.startswith(b"data:"):
                events += [_event(event) for event in self._events(data[5:].strip())]
        return b"".join(events)

    def finish(self) -> bytes:
        """The event that says so where the engine's stream ended before its answer did."""
        if self._ended:
            return b""
        self._ended = True
        cut = b"the serving engine's stream ended before its answer did"
        return _event(msgspec.json.decode(error_body(502, cut)))

    def _events(self, data: bytes) -> Iterator[dict[str, Any]]:
        if self._ended:
            return
        if data == b"[DONE]":
            yield from self._end()
            return
        try:
            chunk = msgspec.json.decode(data, type=dict[str, Any])
        except UNREADABLE as error:
            chunk = {"error": {"message": f"the serving engine sent a chunk that cannot be read: {error}"}}
        if chunk.get("error"):
            self._ended = True
            status = chunk["error"].get("code") if isinstance(chunk["error"], dict) else None
            body = msgspec.json.encode(chunk)
            yield msgspec.json.decode(error_body(status if isinstance(status, int) else 500, body))
            return
        if not self._begun:
            yield self._start(chunk)
        self._usage = chunk.get("usage") or self._usage
        for choice in json_objects(chunk.get("choices"))[:1]:
            yield from self._choice(choice)

    def _start(self, chunk: dict[str, Any]) -> dict[str, Any]:
        self._begun = True
        message = _message(chunk.get("id"), chunk.get("model"), [])
        self._prompt = integers(chunk.get("prompt_token_ids"))
        counted = {"prompt_tokens": len(self._prompt or ())}
        message["usage"] = _usage(chunk.get("usage") or counted)
        return {"type": "message_start", "message": message}

    def _choice(self, choice: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self._token_ids += integers(choice.get("token_ids")) or []
        self._logprobs += _logprobs(choice) or []
        delta = json_object(choice.get("delta"))
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            yield from self._open("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "thinking_delta", "thinking": thought})
        if text := delta.get("content"):
            yield from self._open("text", {"type": "text", "text": ""})
            yield self._delta({"type": "text_delta", "text": text})
        for call in json_objects(delta.get("tool_calls")):
            yield from self._tool(call)
        if choice.get("finish_reason") is not None:
            self._stop = _stop(choice["finish_reason"], choice.get("stop_reason"), called=self._called)

    def _tool(self, call: dict[str, Any]) -> Iterator[dict[str, Any]]:
        function = json_object(call.get("function"))
        index = call.get("index", 0)
        if self._kind != "tool_use" or self._call != index:
            yield from self._close()
            self._call, self._called = index, True
            begun: dict[str, Any] = {
                "type": "tool_use",
                "id": call.get("id"),
                "name": function.get("name"),
                "input": {},
            }
            yield from self._open("tool_use", begun)
        if function.get("arguments"):
            yield self._delta({"type": "input_json_delta", "partial_json": function["arguments"]})

    def _open(self, kind: str, block: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self._kind == kind:
            return
        yield from self._close()
        self._kind = kind
        self._block += 1
        yield {"type": "content_block_start", "index": self._block, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"type": "content_block_delta", "index": self._block, "delta": delta}

    def _close(self) -> Iterator[dict[str, Any]]:
        if self._kind is not None:
            self._kind = None
            yield {"type": "content_block_stop", "index": self._block}

    def _end(self) -> Iterator[dict[str, Any]]:
        self._ended = True
        if not self._begun:
            yield self._start({})
        yield from self._close()
        usage = _usage(self._usage)
        if self._usage is None:
            usage |= {"input_tokens": len(self._prompt or ()), "output_tokens": len(self._token_ids)}
        end: dict[str, Any] = {
            "type": "message_delta",
            "delta": self._stop or {"stop_reason": None, "stop_sequence": None},
            "usage": usage,
        }
        if self._token_ids:
            logprobs = self._logprobs if len(self._logprobs) == len(self._token_ids) else None
            end[TOKENS_FIELD] = {
                "prompt_token_ids": self._prompt,
                "token_ids": self._token_ids,
                "logprobs": logprobs,
            }
        yield end
        yield {"type": "message_stop"}


def _event(event: dict[str, Any]) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event["type"].encode(), msgspec.json.encode(event))
