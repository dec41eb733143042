"""Pure: a request of Anthropic's Messages API as the chat completion, or the tokenisation, that an engine is asked for.

What cannot be said to an engine is refused by name; nothing that would change the answer is left out in silence.
Source of the fields: the Messages API reference (https://platform.claude.com/docs/en/api/messages).
"""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.apis.anthropic.chat import blocks_of, chat_messages, chat_tools
from trainer.gateway.errors import Refusal

_SERVED = frozenset({"text", "image", "document", "search_result", "thinking", "tool_use", "tool_result"})
_NOT_SERVED = ("container", "mcp_servers", "compaction")

# Of no meaning to one model on one's own engines.
_WITHOUT_MEANING = (
    "metadata", "service_tier", "cache_control", "betas", "context_management", "diagnostics", "inference_geo", "speed",
    "user_profile_id", "workspace_id", "billing_policy", "fallbacks", "fallback_credit_token",
)  # fmt: skip
_TRANSLATED = (
    "system", "messages", "tools", "tool_choice", "stop_sequences", "thinking", "output_config", "output_format",
)  # fmt: skip
_LEFT_OUT = frozenset((*_WITHOUT_MEANING, *_TRANSLATED))
_CONTINUED = "continue_final_message"
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_EFFORTS = {"low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def chat_request(body: bytes) -> bytes:
    """The JSON of the chat completion. Raises Refusal (400) for what is no request, or cannot be served here."""
    request = _read(body)
    if not isinstance(request.get("max_tokens"), int):
        raise _refused("max_tokens: field required")
    if request.get("n", 1) != 1:
        raise _refused("n: a message has one answer")
    # What Anthropic's API has not is the engine's own, as chat completions pass it on too.
    chat = {name: value for name, value in request.items() if name not in _LEFT_OUT and value is not None}
    chat |= _conversation(request)
    if request.get("stream") is True:
        chat["stream_options"] = {"include_usage": True}
    if stops := request.get("stop_sequences"):
        chat["stop"] = stops
    if (choice := request.get("tool_choice")) is not None:
        chat |= _tool_choice(choice)
    output = json_object(request.get("output_config"))
    if (effort := output.get("effort")) is not None:
        chat["reasoning_effort"] = _EFFORTS.get(effort, effort) if isinstance(effort, str) else effort
    if (form := output.get("format") or request.get("output_format")) is not None:
        chat["response_format"] = _response_format(form)
    return _encoded(chat)


def tokenize_request(body: bytes) -> bytes:
    """The JSON that asks an engine for the tokens of a request. Raises Refusal (400)."""
    request = _read(body)
    return _encoded({"model": request.get("model"), "add_generation_prompt": True, **_conversation(request)})


def _read(body: bytes) -> dict[str, Any]:
    try:
        request = msgspec.json.decode(body, type=dict[str, Any])
    except UNREADABLE as error:
        raise _refused(f"the request is no JSON object: {error}") from None
    for name in _NOT_SERVED:
        if request.get(name):
            raise _refused(f"{name}: not served here")
    if request.get("thread"):  # the client's tool runner asks for one, and goes on without where it is refused
        raise Refusal(
            400,
            "invalid_request_error",
            "thread: no conversation is held here.",
            hint="Send all of it with each request, without `thread`.",
            details={"error_code": "thread_unsupported_request", "unsupported": ["thread"]},
        )
    return request


def _encoded(request: dict[str, Any]) -> bytes:
    try:
        return msgspec.json.encode(request)
    except RecursionError:
        raise _refused("the request is nested too deep") from None


def _conversation(request: dict[str, Any]) -> dict[str, Any]:
    """What both have: messages, tools, and the arguments of the chat template."""
    messages = request.get("messages")
    chat = chat_messages(request.get("system"), _served(messages))
    if not chat or not messages:
        raise _refused("messages: at least one message is required")
    conversation: dict[str, Any] = {"messages": chat}
    if tools := request.get("tools"):
        conversation["tools"] = chat_tools(_with_schemas(tools))
    kind = json_object(request.get("thinking")).get("type")
    kwargs = request.get("chat_template_kwargs")
    if kind is not None or kwargs is not None:
        switch = {} if kind is None else {"enable_thinking": kind != "disabled"}
        conversation["chat_template_kwargs"] = switch | json_object(kwargs)
    last = chat[-1]
    if last["role"] == "assistant" and last["content"] and "tool_calls" not in last:  # an answer that the client began
        continued = request.get(_CONTINUED) is not False
        conversation |= {_CONTINUED: continued, "add_generation_prompt": not continued}
    return conversation


def _served(messages: Any) -> Any:
    """The messages without what another model thought in secret. Raises Refusal for a block that cannot be served."""
    if not isinstance(messages, list):
        raise _refused("messages: a list is required")
    kept: list[Any] = []
    for position, message in enumerate(messages):
        where = f"messages.{position}"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise _refused(f"{where}.role: one of user, assistant and system")
        content = message.get("content")
        if not isinstance(content, (str, list)):
            raise _refused(f"{where}.content: a text or a list of blocks is required")
        blocks = [block for block in blocks_of(content) if _kind(block) != "redacted_thinking"]
        for number, block in enumerate(blocks):
            _require_served(block, f"{where}.content.{number}")
            if _kind(block) == "tool_result":
                for inner, one in enumerate(blocks_of(block.get("content"))):
                    _require_served(one, f"{where}.content.{number}.content.{inner}")
        kept.append({**message, "content": blocks})
    return kept


def _kind(block: Any) -> str | None:
    kind = block.get("type") if isinstance(block, dict) else None
    return kind if isinstance(kind, str) else None


def _require_served(block: Any, where: str) -> None:
    kind = _kind(block)
    if kind not in _SERVED:
        raise _refused(f"{where}: blocks of type {str(kind)[:100]!r} are not served here")
    source = block.get("source")
    file = isinstance(source, dict) and source.get("type") not in ("base64", "url", "text", "content")
    pdf = kind == "document" and isinstance(source, dict) and source.get("type") in ("base64", "url")
    if kind in ("image", "document") and (file or pdf or not isinstance(source, dict)):
        raise _refused(f"{where}: the source of this {kind} is not served here")


def _with_schemas(tools: Any) -> list[Any]:
    if not isinstance(tools, list):
        raise _refused("tools: a list is required")
    for number, tool in enumerate(tools):
        if not isinstance(tool, dict) or not isinstance(tool.get("input_schema"), dict):
            kind = str(_kind(tool) or "without an input_schema")[:100]
            raise _refused(f"tools.{number}: a tool of type {kind!r} is known to Anthropic's servers alone")
    return tools


def _tool_choice(choice: Any) -> dict[str, Any]:
    kind = _kind(choice)
    made: dict[str, Any] = {}
    if kind == "tool":
        made["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind in _CHOICES:
        made["tool_choice"] = _CHOICES[kind]
    else:
        raise _refused("tool_choice.type: one of auto, any, tool and none")
    if isinstance(choice.get("disable_parallel_tool_use"), bool):
        made["parallel_tool_calls"] = not choice["disable_parallel_tool_use"]
    return made


def _response_format(form: Any) -> dict[str, Any]:
    if _kind(form) != "json_schema" or not isinstance(form.get("schema"), dict):
        raise _refused("output_config.format: a json_schema is required")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"], "strict": True}}


def _refused(message: str) -> Refusal:
    return Refusal(400, "invalid_request_error", message)
