"""OpenLLMetry's own names: its entities (agents, workflows, tools), and what its JavaScript edition writes of calls of
OpenAI's Responses API, whose input it records as the text of one message, and of whose answers the text alone. Pure."""

from __future__ import annotations

from arttrace.formats.sdks.openai_messages import inputs, keywords, text_of
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.decoding.attribute_values import from_json, listed, text
from arttrace.wire.apis.openai.response_items import parse_input
from arttrace.wire.messages import openai_message

KIND = "traceloop.span.kind"
_JAVASCRIPT = "@traceloop/instrumentation-openai"
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


def of_responses(scope: str, attributes: Attributes) -> Attributes:
    """Of a call of the Responses API that the JavaScript edition recorded: the items of its input as messages, and no
    answer where its text is empty, since the tool calls that it was are not recorded; nothing of any other span."""
    if scope != _JAVASCRIPT or not (text(attributes.get(semconv.RESPONSE_ID)) or "").startswith("resp_"):
        return {}
    found: Attributes = {}
    items = from_json(_only_text(attributes.get(semconv.INPUT_MESSAGES)))
    are_items = isinstance(items, list) and all({"role", "type"} & json_object(item).keys() for item in items)
    if are_items and (messages := parse_input(items)):
        found[semconv.INPUT_MESSAGES] = inputs([openai_message(message) for message in messages])
    if _only_text(attributes.get(semconv.OUTPUT_MESSAGES)) == "":
        found[semconv.OUTPUT_MESSAGES] = "[]"
    return found


def _only_text(messages: object) -> str | None:
    """The text of messages that are one, of one part."""
    found = listed(messages)
    parts = json_object(found[0]).get("parts") if found and len(found) == 1 else None
    part = json_object(parts[0]) if isinstance(parts, list) and len(parts) == 1 else {}
    return content if isinstance(content := part.get("content"), str) and part.get("type") == "text" else None
