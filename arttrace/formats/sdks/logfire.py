"""What Logfire's spans say of a call in the form that is its versions' before 5: the request's body, the answer's first
message, and of the Responses API the events of the whole conversation. Pure.

Of a stream of Anthropic's it keeps the text alone. Source: Logfire 4.41, integrations/llm_providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from arttrace.formats.sdks.anthropic_messages import whole_conversation
from arttrace.formats.sdks.openai_messages import answers, inputs, settings, tools
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.wire.apis.anthropic.messages import counts
from arttrace.wire.span_attributes import usage_attributes

_ANTHROPIC = "logfire.anthropic"
SCOPES: Final = ("logfire.openai", _ANTHROPIC)
_ASKED, _EVENTS, _COUNTED = "request_data", "events", "gen_ai.usage.raw"
_ROLES = ("system", "developer", "user", "assistant", "tool")

_Message = dict[str, Any]


def attributes(scope: str, said: Mapping[str, Any]) -> Attributes:
    """Under the names of the conventions what a span of one of these scopes says in that form, else nothing."""
    asked, answered = (json_object(from_json(said.get(name))) for name in (_ASKED, semconv.LOGFIRE_ANSWER))
    prompt, reply = _prompt(asked), _reply(answered, is_anthropics=scope == _ANTHROPIC)
    if isinstance(events := from_json(said.get(_EVENTS)), list):
        prompt, reply = _parted(_conversation(events))
    if not prompt:
        return {}
    offered = asked.get("tools")
    is_cut = scope == _ANTHROPIC and "combined_chunk_content" in answered and bool(offered)
    reasons = from_json(said.get(semconv.RESPONSE_FINISH_REASONS))
    reason = reasons[0] if isinstance(reasons, list) and reasons else None
    usage = json_object(answered.get("usage")) or json_object(from_json(said.get(_COUNTED)))
    return {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        **settings(asked),
        **usage_attributes(counts(usage) if scope == _ANTHROPIC else usage),
        semconv.TOOL_DEFINITIONS: tools(offered) if isinstance(offered, list) else None,
        semconv.INPUT_MESSAGES: inputs(prompt),
        semconv.OUTPUT_MESSAGES: answers([{"finish_reason": reason, **reply}]) if reply else None,
        semconv.TRUNCATED: [semconv.OUTPUT_MESSAGES] if is_cut else None,
    }


def _prompt(asked: Mapping[str, Any]) -> list[_Message]:
    if isinstance(asked.get("messages"), list):
        return whole_conversation(json_objects(asked["messages"]), asked.get("system"))
    return [{"role": "user", "content": asked["prompt"]}] if isinstance(asked.get("prompt"), str) else []


def _reply(answered: Mapping[str, Any], *, is_anthropics: bool) -> _Message | None:
    """The answer in OpenAI's form. Of Anthropic's, the arguments of a tool call stand one level below."""
    if isinstance(text := answered.get("text", answered.get("combined_chunk_content")), str):
        return {"content": text}
    message = json_object(answered.get("message"))
    if not message or not is_anthropics:
        return message or None
    return {**message, "tool_calls": [_unwrapped(call) for call in json_objects(message.get("tool_calls"))]}


def _unwrapped(call: Mapping[str, Any]) -> dict[str, Any]:
    function = json_object(call.get("function"))
    given = json_object(from_json(function.get("arguments")))
    return {**call, "function": {**function, "arguments": given["input"]} if "input" in given else function}


def _conversation(events: Iterable[Any]) -> list[_Message]:
    """A message for each event, but for what a model said in one go, which is one."""
    found: list[_Message] = []
    for event in events:
        if not isinstance(event, dict):
            continue
        message = _message(event)
        if found and found[-1]["role"] == message["role"] == "assistant":
            found[-1] = _joined(found[-1], message)
        else:
            found.append(message)
    return found


def _message(event: Mapping[str, Any]) -> _Message:
    role, item = event.get("role"), json_object(event.get("data"))
    message: _Message = {"role": role if role in _ROLES else "user", "content": event.get("content")}
    if item.get("type") == "reasoning":
        summary = json_objects(item.get("summary"))
        thoughts = "\n\n".join(str(one.get("text") or "") for one in summary)
        message |= {"role": "assistant", "content": None, "reasoning_content": thoughts or None}
    elif item:
        message["content"] = [item]
    if event.get("tool_calls"):
        message["tool_calls"] = json_objects(event["tool_calls"])
    if role == "tool":
        message["tool_call_id"] = event.get("id")
    return message


def _joined(before: _Message, message: _Message) -> _Message:
    contents = [one["content"] for one in (before, message) if one["content"]]
    parts = [part for content in contents for part in (content if isinstance(content, list) else [_text(content)])]
    calls = [*before.get("tool_calls", ()), *message.get("tool_calls", ())]
    thoughts = before.get("reasoning_content") or message.get("reasoning_content")
    return {
        "role": "assistant",
        "content": contents[0] if len(contents) == 1 else parts,
        **({"tool_calls": calls} if calls else {}),
        **({"reasoning_content": thoughts} if thoughts else {}),
    }


def _text(content: Any) -> dict[str, Any]:
    return {"type": "text", "text": str(content)}


def _parted(conversation: list[_Message]) -> tuple[list[_Message], _Message | None]:
    """What was asked, and what the model said last."""
    if conversation and conversation[-1]["role"] == "assistant":
        return conversation[:-1], conversation[-1]
    return conversation, None
