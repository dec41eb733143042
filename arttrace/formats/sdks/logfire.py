"""What Logfire's spans say of a call in the form that is its versions' before 5: the request's body, the answer's first
message, and of the Responses API the events of the whole conversation. Pure.

Of several choices it keeps the first; of an answer of Anthropic's the last text and the calls of tools, of a stream of
it the text alone. Source: Logfire 4.41, integrations/llm_providers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from arttrace.formats.sdks.anthropic_messages import whole_conversation
from arttrace.formats.sdks.openai_messages import answers, inputs, settings, tools
from arttrace.records import semconv
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, whole_number
from arttrace.wire.apis.anthropic.messages import counts
from arttrace.wire.span_attributes import usage_attributes

_ANTHROPIC = "logfire.anthropic"
SCOPES: Final = ("logfire.openai", _ANTHROPIC)
_ASKED, _EVENTS, _COUNTED = "request_data", "events", "gen_ai.usage.raw"
_OF_THE_SERVER = ("web_search", "web_fetch", "code_execution", "tool_search", "mcp_toolset")
"""How the types of tools begin that Anthropic runs itself; others without a schema (`bash`) the program runs."""
_NOT_KEPT = "which Logfire did not keep before version 5"
CHOICES = f"choices beyond the first, {_NOT_KEPT}"
THOUGHTS = f"answers of Anthropic's without their thoughts, {_NOT_KEPT}"
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
    is_text_alone = "combined_chunk_content" in answered and bool(offered)
    is_cut = scope == _ANTHROPIC and (is_text_alone or _are_of_the_server(offered)) and not _is_whole(said)
    reasons = _reasons(said)
    reason = reasons[0] if reasons else None
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


def lost(span: SpanRow) -> Iterator[tuple[str, int]]:
    """What the answer of a span in that form had and the span does not hold: its kind in the plural, and how many."""
    if span.scope_name not in SCOPES or semconv.LOGFIRE_ANSWER not in span.attributes or _is_whole(span.attributes):
        return
    asked = json_object(from_json(span.attributes.get(_ASKED)))
    if span.scope_name == _ANTHROPIC:
        if json_object(asked.get("thinking")).get("type", "disabled") != "disabled":
            yield THOUGHTS, 1
    elif (further := max(whole_number(asked.get("n")) or 1, len(_reasons(span.attributes))) - 1) > 0:
        yield CHOICES, further


def _is_whole(said: Mapping[str, Any]) -> bool:
    """Whether the program had Logfire write the answer in the form of the conventions too."""
    return said.get(semconv.OUTPUT_MESSAGES) is not None


def _are_of_the_server(offered: Any) -> bool:
    """Whether the server may have acted within the answer, between two texts of it."""
    return any(str(tool.get("type")).startswith(_OF_THE_SERVER) for tool in json_objects(offered))


def _reasons(said: Mapping[str, Any]) -> list[Any]:
    found = from_json(said.get(semconv.RESPONSE_FINISH_REASONS))
    return found if isinstance(found, list) else []


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
        said = json_objects(item.get("summary")) or json_objects(item.get("content"))
        thoughts = "\n\n".join(str(one.get("text") or "") for one in said)
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
    thoughts = "\n\n".join(filter(None, (one.get("reasoning_content") for one in (before, message))))
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
