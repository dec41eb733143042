"""Strands Agents: messages and tools in span events, older ones as blocks of Bedrock's Converse API. Pure."""

from __future__ import annotations

from typing import Any

from arttrace.formats.sdks.openai_messages import text_of
from arttrace.records import semconv
from arttrace.records.span import Attributes, SpanRow
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.wire.apis.bedrock.blocks import of_message

DETAILS = "gen_ai.client.inference.operation.details"


def details(span: SpanRow) -> Attributes:
    """What the conventions' events about a call say of it, the first word of each thing."""
    found: Attributes = {}
    for event in span.events:
        if event.name == DETAILS:
            for name in semconv.CONTENT_OF_A_CALL:
                if name in event.attributes:
                    found.setdefault(name, event.attributes[name])
    return found


def tool(span: SpanRow) -> Attributes:
    """Arguments and result of a tool, where its span says them in events."""
    found: Attributes = {}
    for event in span.events:
        if event.name == "gen_ai.tool.message":
            found[semconv.TOOL_CALL_ARGUMENTS] = event.attributes.get("content")
        elif event.name == "gen_ai.choice":
            found[semconv.TOOL_CALL_RESULT] = event.attributes.get("message")
        elif event.name == DETAILS:
            asked, given = (_only_part(event.attributes.get(name)) for name in semconv.CONTENT_OF_A_CALL[:2])
            if "arguments" in asked:
                found[semconv.TOOL_CALL_ARGUMENTS] = text_of(asked["arguments"])
            if "response" in given:
                found[semconv.TOOL_CALL_RESULT] = text_of(given["response"])
    return found


def _only_part(messages: Any) -> dict[str, Any]:
    listed = from_json(messages)
    message = listed[0] if isinstance(listed, list) and listed else None
    parts = message.get("parts") if isinstance(message, dict) else None
    return parts[0] if isinstance(parts, list) and parts and isinstance(parts[0], dict) else {}


def of_blocks(message: dict[str, Any]) -> list[dict[str, Any]] | None:
    """A message whose content is Converse's blocks as messages in OpenAI's form, a tool's results one by one; None for
    any other."""
    blocks = from_json(message.get("content"))
    if not isinstance(blocks, list) or not blocks or not all(map(_is_block, blocks)):
        return None
    rest = {name: value for name, value in message.items() if name not in ("content", "message", "id", "tool_call_id")}
    return [said if said["role"] == "tool" else {**rest, **said} for said in of_message(message.get("role"), blocks)]


_BLOCKS = ("text", "toolUse", "toolResult", "reasoningContent", "image", "document", "video", "cachePoint")


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and "type" not in value and len(value) == 1 and next(iter(value)) in _BLOCKS
