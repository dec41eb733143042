"""Google ADK before its second telemetry schema: a model call is `call_llm`, request and answer as Gemini has them.

Inside it lies `generate_content`, which is the same call, and messages only where log records or the newer
conventions put them there: it counts for none, and what it has goes to `call_llm`. From the second schema on there is
no `call_llm`, and messages are where the conventions have them, or in log records. Pure.
"""

from __future__ import annotations

from typing import Any

import msgspec

from arttrace.formats.sdks.frameworks import strands
from arttrace.formats.sdks.openai_messages import answers, inputs, text_of, tools
from arttrace.records import semconv
from arttrace.records.message import TextPart
from arttrace.records.span import Attributes, SpanEvent, SpanRow
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text
from arttrace.wire.apis.gemini.contents import instructions_of, messages_of
from arttrace.wire.messages import openai_message

SCOPE = "gcp.vertex.agent"
CALL = "call_llm"
_REQUEST, _RESPONSE = "gcp.vertex.agent.llm_request", "gcp.vertex.agent.llm_response"


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
    role = message.get("role")
    reason = finish_reason(message.get("finish_reason"))
    rest = {"finish_reason": reason} if reason else {}
    said = {"role": "model" if role == "assistant" else role, **content}
    return [{**one, **rest} for one in _messages([said])]


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
    told = instructions_of(config.get("system_instruction"))
    if system := "\n\n".join(part.content for part in told if isinstance(part, TextPart)):
        found[semconv.SYSTEM_INSTRUCTIONS] = text_of([{"type": "text", "content": system}])
    if contents := json_objects(request.get("contents")):
        found[semconv.INPUT_MESSAGES] = inputs(_messages(contents))
    if offered := [
        each for each in json_objects(config.get("tools")) if json_objects(each.get("function_declarations"))
    ]:
        found[semconv.TOOL_DEFINITIONS] = tools(offered)
    if content := _object(response.get("content")):
        reason = finish_reason(response.get("finish_reason"))
        said = [{**message, "finish_reason": reason} for message in _messages([content])]
        found[semconv.OUTPUT_MESSAGES] = answers(said)
    found[semconv.RESPONSE_MODEL] = text(response.get("model_version"))
    found[semconv.CONVERSATION_ID] = text(attributes.get("gcp.vertex.agent.session_id"))
    return found


def _messages(contents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Gemini's contents in OpenAI's form."""
    return [openai_message(message) for message in messages_of(contents) or ()]


def _object(value: Any) -> dict[str, Any]:
    found = from_json(value)
    return json_object(found)
