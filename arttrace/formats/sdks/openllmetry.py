"""OpenLLMetry's own names: its entities (agents, workflows, tools), and what its JavaScript edition writes of calls of
OpenAI's Responses API, whose input it records as the text of one message, and of LangChain, whose parts of content it
records as text; of both it has of an answer the text alone. Pure."""

from __future__ import annotations

from typing import Any

from arttrace.formats.sdks.anthropic_messages import are_parts
from arttrace.formats.sdks.openai_messages import inputs, keywords, text_of
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.decoding.attribute_values import from_json, listed, text
from arttrace.wire.apis.openai.response_items import parse_input
from arttrace.wire.messages import openai_message

KIND = "traceloop.span.kind"
_OPENAI, _LANGCHAIN = "@traceloop/instrumentation-openai", "@traceloop/instrumentation-langchain"
_OPERATIONS = {
    "agent": semconv.OPERATION_INVOKE_AGENT,
    "workflow": semconv.OPERATION_INVOKE_AGENT,
    "tool": semconv.OPERATION_EXECUTE_TOOL,
}


def entity(attributes: Attributes) -> Attributes:
    """What the span of an agent, a workflow or a tool says."""
    operation = _OPERATIONS.get(text(attributes[KIND]) or "")
    found: Attributes = {semconv.OPERATION_NAME: operation}
    name = attributes.get("traceloop.entity.name")
    given, output = (attributes.get(f"traceloop.entity.{side}") for side in ("input", "output"))
    if operation == semconv.OPERATION_EXECUTE_TOOL:
        found[semconv.TOOL_NAME] = name
        found[semconv.TOOL_CALL_ARGUMENTS] = text_of(keywords(from_json(given)))
        found[semconv.TOOL_CALL_RESULT] = output
    elif operation:
        found[semconv.AGENT_NAME], found[semconv.ENTRY_RESULT] = name, output
        found[semconv.ENTRY_ARGUMENTS] = text_of(keywords(from_json(given)))
    return found


def of_javascript(scope: str, attributes: Attributes) -> Attributes:
    """Of such a call its messages, and no answer where its text is empty, since the tool calls that it was are not
    recorded; nothing of any other span."""
    if attributes.get(semconv.OPERATION_NAME) != semconv.OPERATION_CHAT:
        return {}
    if scope == _LANGCHAIN:
        found = _of_langchain(attributes)
    elif scope == _OPENAI and (text(attributes.get(semconv.RESPONSE_ID)) or "").startswith("resp_"):
        found = _of_responses(attributes)
    else:
        return {}
    said = listed(attributes.get(semconv.OUTPUT_MESSAGES))
    if said and all(_only_text([one]) == "" for one in said):
        found[semconv.OUTPUT_MESSAGES] = "[]"
    return found


def _of_responses(attributes: Attributes) -> Attributes:
    """The items of the input as messages."""
    items = from_json(_only_text(attributes.get(semconv.INPUT_MESSAGES)))
    are_items = isinstance(items, list) and all({"role", "type"} & json_object(item).keys() for item in items)
    messages = parse_input(items) if are_items else None
    return {semconv.INPUT_MESSAGES: inputs([openai_message(one) for one in messages])} if messages else {}


def _of_langchain(attributes: Attributes) -> Attributes:
    """The input with its parts. Where a tool's message stands in it, it lacks the calls."""
    found: list[dict[str, Any]] = []
    for message in listed(attributes.get(semconv.INPUT_MESSAGES)) or ():
        content = _only_text([message])
        parts = from_json(content)
        found.append({"role": json_object(message).get("role"), "content": parts if are_parts(parts) else content})
    if not found:
        return {}
    lacks = any(one["role"] == "tool" for one in found)
    return {semconv.INPUT_MESSAGES: inputs(found), **({semconv.TRUNCATED: [semconv.INPUT_MESSAGES]} if lacks else {})}


def _only_text(messages: object) -> str | None:
    """The text of messages that are one, of one part."""
    found = listed(messages)
    parts = json_object(found[0]).get("parts") if found and len(found) == 1 else None
    part = json_object(parts[0]) if isinstance(parts, list) and len(parts) == 1 else {}
    return content if isinstance(content := part.get("content"), str) and part.get("type") == "text" else None
