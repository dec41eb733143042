"""What a message of a Gemini CLI session says, in OpenAI's form. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from arttrace.formats.sdks.anthropic_messages import FAILED
from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records.message import OtherPart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.wire.apis.gemini.contents import messages_of, parts_of

Line = dict[str, Any]
Messages = list[dict[str, Any]]


def content_of(line: Line) -> list[Any]:
    """Its parts in Gemini's form."""
    content = line["content"]
    if isinstance(content, list):
        return content
    return [content] if content else []


def results_in(parts: list[Any]) -> list[str]:
    """The calls that results among the parts are of."""
    given = [json_object(one.get("functionResponse")) for one in json_objects(parts)]
    return [id for one in given if isinstance(id := one.get("id"), str)]


def joined(parts: list[Any], kind: type[TextPart] | type[ReasoningPart]) -> str:
    """The texts of one kind among parts."""
    return "".join(one.content for one in parts_of([{"parts": parts}]) if isinstance(one, kind))


def thoughts_of(line: Line, parts: list[Any]) -> str:
    """As the program tells them to the model where it resumes a session."""
    found = []
    for one in json_objects(line.get("thoughts")):
        subject, description = one.get("subject"), one.get("description")
        found.append(" ".join([f"**{subject}**" if subject else "", str(description or "")]).strip())
    return "\n\n".join(one for one in found if one) or joined(parts, ReasoningPart)


def calls_in(line: Line, parts: list[Any]) -> Messages:
    """The tool calls of a message, by its books and its content."""
    found = [
        _call(one.get("id"), str(one.get("name")), json.dumps(one.get("args") or {}, ensure_ascii=False))
        for one in json_objects(line.get("toolCalls"))
    ]
    ids = {one["id"] for one in found}
    said = [one for one in parts_of([{"parts": parts}]) if isinstance(one, ToolCallPart)]
    return found + [_call(one.id, one.name, one.arguments) for one in said if one.id not in ids]


def _call(id: Any, name: str, arguments: str) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def result_of(call: dict[str, Any]) -> Messages:
    """What a tool call returned, and behind it what it returned beside. Of results that are those of several tools, as
    the program writes them when it shortens them, its own."""
    result = call.get("result")
    given = said_by_user(result if isinstance(result, list) else [result]) if result else []
    tools = [one for one in given if one["role"] == "tool"]
    own = next((one for one in tools if one["tool_call_id"] == call.get("id")), tools[0] if len(tools) == 1 else None)
    beside = [one for one in given if one["role"] != "tool"]
    if own is None and not tools and beside:
        own, beside = {"role": "tool", "content": beside[0]["content"]}, []
    if own is None:
        return []
    failed = {FAILED: True} if call.get("status") in ("error", "cancelled") else {}
    is_first = not tools or tools[0] is own or tools[0]["tool_call_id"] == call.get("id")
    return [{**own, "tool_call_id": call.get("id"), **failed}, *(beside if is_first else [])]


def said_by_user(parts: list[Any]) -> Messages:
    """Results of tools, and what else is said."""
    found: Messages = []
    for message in messages_of([{"role": "user", "parts": parts}]) or ():
        first = message.parts[0] if message.parts else None
        if isinstance(first, ToolResultPart):
            content = _returned(first.response)
            if len(message.parts) > 1:
                content = [{"type": "text", "text": text_of(content) or ""}, *_in_openais_form(message.parts[1:])]
            found.append({"role": "tool", "tool_call_id": first.id, "content": content})
        elif message.parts:
            is_text = all(isinstance(one, TextPart) for one in message.parts)
            found.append({"role": "user", "content": message.text if is_text else _in_openais_form(message.parts)})
    return found


def _returned(response: Any) -> Any:
    """The text, where a result is nothing else."""
    values = list(response.values()) if isinstance(response, dict) and response.keys() <= {"output", "error"} else []
    return values[0] if len(values) == 1 and isinstance(values[0], str) else response


def _in_openais_form(parts: Sequence[Part]) -> list[Any]:
    texts = {"text": TextPart, "reasoning": ReasoningPart}
    found: list[Any] = []
    for part in parts:
        kind = next((name for name, form in texts.items() if isinstance(part, form)), None)
        if kind is not None and isinstance(part, TextPart | ReasoningPart):
            found.append({"type": kind, kind: part.content})
        elif isinstance(part, OtherPart):
            found.append(part.value)
    return found


def unreturned(messages: Messages) -> set[str]:
    """The calls among messages whose results are not."""
    returned = {one["tool_call_id"] for one in messages if one["role"] == "tool"}
    return {str(call["id"]) for one in messages for call in one.get("tool_calls", ()) if call["id"] not in returned}
