"""Google ADK before its second telemetry schema: a model call is `call_llm`, request and answer as Gemini has them.

Inside it lies `generate_content`, which is the same call, and messages only where log records or the newer
conventions put them there: it counts for none, and what it has goes to `call_llm`. From the second schema on there is
no `call_llm`, and messages are where the conventions have them, or in log records. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.formats.sdks import strands
from arttrace.formats.sdks.openai_messages import answers, inputs, text_of, tools
from arttrace.records import semconv
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text

SCOPE = "gcp.vertex.agent"
CALL = "call_llm"
_REQUEST, _RESPONSE = "gcp.vertex.agent.llm_request", "gcp.vertex.agent.llm_response"
_ROLES = {"model": "assistant"}


def is_inside_a_call(span: SpanRow) -> bool:
    """Whether it is ADK's other span of a call that `call_llm` records."""
    attributes = span.attributes
    return (
        span.scope_name == SCOPE
        and attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_GENERATE_CONTENT
        and semconv.PROVIDER_NAME not in attributes
        and semconv.TRAJECTORY_ID not in attributes
    )


def gathered(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans, each `call_llm` with the events and messages of the span inside it."""
    inside: dict[tuple[str, str], SpanRow] = {}
    for span in spans:
        if span.scope_name != SCOPE or not span.parent_span_id or not is_inside_a_call(span):
            continue
        if span.events or semconv.OUTPUT_MESSAGES in span.attributes:
            inside[span.trace_id, span.parent_span_id] = span
    if not inside:
        return spans
    return [_with(span, inside.get((span.trace_id, span.span_id))) for span in spans]


def _with(span: SpanRow, inner: SpanRow | None) -> SpanRow:
    if inner is None or span.name != CALL:
        return span
    own = {name: inner.attributes[name] for name in semconv.CONTENT_OF_A_CALL if name in inner.attributes}
    details = [SpanEvent(strands.DETAILS, inner.end_ns, own)] if semconv.OUTPUT_MESSAGES in own else []
    return msgspec.structs.replace(span, events=[*span.events, *inner.events, *details])


def of_contents(message: dict[str, Any]) -> list[dict[str, Any]] | None:
    """A message whose content is one of Gemini's as messages in OpenAI's form; None for any other."""
    content = from_json(message.get("content"))
    if not isinstance(content, dict) or not isinstance(content.get("parts"), list):
        return None
    role = _ROLES.get(str(message.get("role")), message.get("role"))
    reason = finish_reason(message.get("finish_reason"))
    rest = {"finish_reason": reason} if reason else {}
    return [{**one, **rest} for one in _messages({"role": role, **content})]


def attributes(span: SpanRow) -> Attributes:
    """What a call or a tool says of itself by other names than the conventions have."""
    said = span.attributes
    if span.name == CALL and _REQUEST in said:
        return {semconv.OPERATION_NAME: semconv.OPERATION_GENERATE_CONTENT, **_call(said)}
    if said.get(semconv.OPERATION_NAME) != semconv.OPERATION_EXECUTE_TOOL:
        return {}
    return {
        semconv.TOOL_CALL_ARGUMENTS: said.get("gcp.vertex.agent.tool_call_args"),
        semconv.TOOL_CALL_RESULT: said.get("gcp.vertex.agent.tool_response"),
    }


def _call(attributes: Attributes) -> Attributes:
    """Messages, tools and answer of `call_llm`; nothing where ADK was configured to leave them out."""
    request, response = (_object(attributes.get(name)) for name in (_REQUEST, _RESPONSE))
    found: Attributes = {}
    config = _object(request.get("config"))
    if system := _joined(config.get("system_instruction")):
        found[semconv.SYSTEM_INSTRUCTIONS] = text_of([{"type": "text", "content": system}])
    if contents := json_objects(request.get("contents")):
        found[semconv.INPUT_MESSAGES] = inputs([message for one in contents for message in _messages(one)])
    if offered := [
        each for each in json_objects(config.get("tools")) if json_objects(each.get("function_declarations"))
    ]:
        found[semconv.TOOL_DEFINITIONS] = tools(offered)
    if content := _object(response.get("content")):
        reason = finish_reason(response.get("finish_reason"))
        said = [{**message, "finish_reason": reason} for message in _messages(content)]
        found[semconv.OUTPUT_MESSAGES] = answers(said)
    found[semconv.RESPONSE_MODEL] = text(response.get("model_version"))
    found[semconv.CONVERSATION_ID] = text(attributes.get("gcp.vertex.agent.session_id"))
    return found


def _messages(content: dict[str, Any]) -> list[dict[str, Any]]:
    """One of Gemini's contents in OpenAI's form: results of tools stand for themselves, before what else is said."""
    role = content.get("role")
    own: list[Any] = []
    calls: list[dict[str, Any]] = []
    results: list[dict[str, Any]] = []
    thoughts = ""
    for part in json_objects(content.get("parts")):
        match part:
            case {"function_call": dict() as asked}:
                function = {"name": asked.get("name"), "arguments": text_of(asked.get("args") or {})}
                calls.append({"id": asked.get("id"), "function": function})
            case {"function_response": dict() as given}:
                results.append({"role": "tool", "tool_call_id": given.get("id"), "content": given.get("response")})
            case {"text": str() as said, "thought": True}:
                thoughts += said
            case {"text": str() as said}:
                own.append({"type": "text", "text": said})
            case _:
                own.append({"type": next(iter(part), "part"), **part})
    if results and not (own or calls or thoughts):
        return results
    message = {"role": _ROLES.get(str(role), role or "user"), "content": own}
    if calls:
        message["tool_calls"] = calls
    if thoughts:
        message["reasoning_content"] = thoughts
    return [*results, message]


def _joined(instruction: Any) -> str:
    """A system instruction, which may be a text, a content, or a list of either."""
    if isinstance(instruction, str):
        return instruction
    if isinstance(instruction, list):
        return "\n\n".join(filter(None, map(_joined, instruction)))
    parts = json_objects(_object(instruction).get("parts")) or [_object(instruction)]
    return "\n\n".join(part["text"] for part in parts if isinstance(part.get("text"), str))


def _object(value: Any) -> dict[str, Any]:
    found = from_json(value)
    return json_object(found)
