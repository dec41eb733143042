"""Vercel's AI SDK: its `ai.*` attributes under the names of the conventions. Pure.

`ai.generateText` and its like are agents; what they make are `....doGenerate` and `....doStream`, one per call of the
model, and `ai.toolCall`.
"""

from __future__ import annotations

from typing import Any

from arttrace.formats.sdks.openai_messages import answers, inputs, text_of, tools
from arttrace.records import semconv
from arttrace.records.message import joined_text
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text

OPERATION = "ai.operationId"

_AGENTS = ("ai.generateText", "ai.streamText", "ai.generateObject", "ai.streamObject")
_METADATA = "ai.telemetry.metadata."
_USAGE = {
    semconv.USAGE_INPUT_TOKENS: ("ai.usage.inputTokens", "ai.usage.promptTokens"),
    semconv.USAGE_OUTPUT_TOKENS: ("ai.usage.outputTokens", "ai.usage.completionTokens"),
    semconv.USAGE_CACHE_READ_INPUT_TOKENS: ("ai.usage.cachedInputTokens",),
    semconv.USAGE_CACHE_WRITE_INPUT_TOKENS: ("ai.usage.inputTokenDetails.cacheWriteTokens",),
    semconv.USAGE_REASONING_OUTPUT_TOKENS: ("ai.usage.reasoningTokens",),
}


def attributes(sent: Attributes) -> Attributes:
    """What a span of the SDK says."""
    operation = text(sent.get(OPERATION)) or ""
    if operation == "ai.toolCall":
        return {
            semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
            semconv.TOOL_NAME: sent.get("ai.toolCall.name"),
            semconv.TOOL_CALL_ID: sent.get("ai.toolCall.id"),
            semconv.TOOL_CALL_ARGUMENTS: sent.get("ai.toolCall.args"),
            semconv.TOOL_CALL_RESULT: sent.get("ai.toolCall.result"),
        }
    if operation in _AGENTS:
        metadata = {name[len(_METADATA) :]: value for name, value in sent.items() if name.startswith(_METADATA)}
        return {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.AGENT_NAME: sent.get("ai.telemetry.functionId") or operation,
            semconv.ENTRY_ARGUMENTS: sent.get("ai.prompt"),
            semconv.ENTRY_RESULT: sent.get("ai.response.text") or sent.get("ai.response.object"),
            semconv.METADATA: text_of(metadata) if metadata else None,
        }
    return _call(sent) if operation.endswith((".doGenerate", ".doStream")) else {}


def _call(sent: Attributes) -> Attributes:
    found: Attributes = {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        semconv.PROVIDER_NAME: sent.get("ai.model.provider"),
        semconv.REQUEST_MODEL: sent.get("ai.model.id"),
        semconv.RESPONSE_MODEL: sent.get("ai.response.model"),
        semconv.RESPONSE_ID: sent.get("ai.response.id"),
    }
    for name, olds in _USAGE.items():
        found[name] = next((sent[old] for old in olds if isinstance(sent.get(old), int)), None)
    messages = from_json(sent.get("ai.prompt.messages"))
    if isinstance(messages, list):
        found[semconv.INPUT_MESSAGES] = inputs([one for item in messages for one in _messages(item)])
    offered = from_json(sent.get("ai.prompt.tools"))
    if isinstance(offered, list):
        found[semconv.TOOL_DEFINITIONS] = tools([_tool(from_json(item)) for item in offered])
    said = sent.get("ai.response.text", sent.get("ai.response.object"))
    asked = from_json(sent.get("ai.response.toolCalls"))
    calls = [_tool_call(call) for call in json_objects(asked)]
    reasoning = sent.get("ai.response.reasoning")
    files = json_objects(from_json(sent.get("ai.response.files")))
    if said or calls or reasoning or files:
        content = [*([{"type": "text", "text": said}] if said else []), *files] if files else said
        reply = {"content": content, "tool_calls": calls, "reasoning_content": reasoning}
        found[semconv.OUTPUT_MESSAGES] = answers([{**reply, "finish_reason": sent.get("ai.response.finishReason")}])
    return found


def _tool(item: Any) -> Any:
    if not isinstance(item, dict) or "name" not in item or item.get("type", "function") != "function":
        return item
    parameters = item.get("inputSchema", item.get("parameters"))
    return {"name": item["name"], "description": item.get("description"), "parameters": parameters}


def _tool_call(part: dict[str, Any]) -> dict[str, Any]:
    arguments = part.get("input", part.get("args"))
    return {"id": part.get("toolCallId"), "function": {"name": part.get("toolName"), "arguments": arguments}}


def _messages(item: Any) -> list[dict[str, Any]]:
    """A message of the SDK in OpenAI's form: one per result of a tool. What a provider ran itself is in an answer."""
    if not isinstance(item, dict) or not isinstance(item.get("content"), list):
        return [item] if isinstance(item, dict) else []
    content: list[Any] = []
    calls, results = [], []
    reasoning = ""
    for part in item["content"]:
        match part:
            case {"type": "tool-call"}:
                calls.append(_tool_call(part))
            case {"type": "tool-result"} if item.get("role") == "tool":
                said = _output(part.get("output", part.get("result")))
                results.append({"role": "tool", "tool_call_id": part.get("toolCallId"), "content": said})
            case {"type": "reasoning", "text": str() as thought}:
                reasoning += thought
            case _:
                content.append(part)
    if item.get("role") == "tool":
        return results
    return [{"role": item.get("role"), "content": content, "tool_calls": calls, "reasoning_content": reasoning or None}]


def _output(value: Any) -> Any:
    """What the model is shown: the value of `{"type": "text", "value": ...}`, of older versions itself."""
    shown = value["value"] if isinstance(value, dict) and "type" in value and "value" in value else value
    return shown if isinstance(shown, str) else joined_text(shown) or text_of(shown)
