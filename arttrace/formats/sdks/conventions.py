"""Spans of other SDKs under the names of the conventions, from which trajectories are built. Pure.

Understood: older and newest OpenTelemetry GenAI names (`gen_ai.prompt.N...`, `gen_ai.system`, message events),
OpenInference, OpenLLMetry's `traceloop.*`, Vercel's `ai.*`, LangSmith's `langsmith.*`, Google ADK's `call_llm`,
Strands' events, what LiteLLM's callback and older versions of Logfire write and Langfuse's OpenTelemetry attributes.
The stored span stays as it came; what it does not say is left out, never invented.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from arttrace.formats.sdks import langfuse, langsmith, logfire, openinference, openllmetry
from arttrace.formats.sdks.anthropic_messages import are_parts
from arttrace.formats.sdks.frameworks import dotnet, google_adk, strands, vercel
from arttrace.formats.sdks.openai_messages import answers, inputs, langchain_result, last_text, text_of, tools
from arttrace.formats.sdks.openinference import numbered
from arttrace.records import semconv
from arttrace.records.message import joined_text
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.lenient_json import json_object
from arttrace.trajectories.decoding.attribute_values import from_json, listed, text

_RENAMED = {
    "gen_ai.system": semconv.PROVIDER_NAME,
    semconv.REQUEST_PREVIOUS_RESPONSE: semconv.PREVIOUS_RESPONSE_ID,
    "gen_ai.usage.prompt_tokens": semconv.USAGE_INPUT_TOKENS,
    "gen_ai.usage.completion_tokens": semconv.USAGE_OUTPUT_TOKENS,
    "gen_ai.usage.cache_creation.input_tokens": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    "gen_ai.usage.cache_creation_input_tokens": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    "gen_ai.usage.cache_read_input_tokens": semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    "gen_ai.usage.reasoning_tokens": semconv.USAGE_REASONING_OUTPUT_TOKENS,
}
_FOREIGN = frozenset(
    {
        openinference.KIND,
        openllmetry.KIND,
        langfuse.TYPE,
        langsmith.KIND,
        vercel.OPERATION,
        "llm.request.type",
        *_RENAMED,
    }
)
MARKS = (*sorted(_FOREIGN), "gen_ai.prompt", "gen_ai.completion")
"""How names of attributes begin that are no names of the conventions and are read here."""
_KINDS = {
    "chat": semconv.OPERATION_CHAT,
    "completion": semconv.OPERATION_TEXT_COMPLETION,
    "agent": semconv.OPERATION_INVOKE_AGENT,
    "workflow": semconv.OPERATION_INVOKE_AGENT,
    "tool": semconv.OPERATION_EXECUTE_TOOL,
}
_OF_OTHERS = {  # LiteLLM's functions
    **dict.fromkeys(("completion", "acompletion", "responses", "aresponses", "anthropic_messages"), _KINDS["chat"]),
    **dict.fromkeys(("atext_completion", "agenerate_content"), _KINDS["completion"]),
}


def normalise(span: SpanRow) -> SpanRow:
    """The span with the attributes that trajectories are built from; the same object when there is nothing to do."""
    added = added_by_conventions(span)
    if not google_adk.is_inside_a_call(span) and not _is_own(span):
        added.update(openllmetry.of_javascript(span.scope_name, {**span.attributes, **added}))
        added.update(dotnet.last_turn({**span.attributes, **added}))
        added.update(_repaired(span, {**span.attributes, **added}))
    return msgspec.structs.replace(span, attributes={**span.attributes, **added}) if added else span


def added_by_conventions(span: SpanRow) -> Attributes:
    """What a span says by other names than those of the conventions, or in its events, under the names of the
    conventions: nothing that it says under them itself, but for what Google ADK calls a call and is inside one, and
    for LiteLLM's names of its functions, and LangSmith's of the uppermost chain."""
    attributes = span.attributes
    if _is_own(span):
        return {}
    if google_adk.is_inside_a_call(span):
        return {semconv.OPERATION_NAME: semconv.OPERATION_INSIDE_A_CALL}
    found = _renamed(span)
    operation = attributes.get(semconv.OPERATION_NAME, found.get(semconv.OPERATION_NAME))
    named_otherwise = _OF_OTHERS.get(operation) if isinstance(operation, str) else None
    if operation == langsmith.CHAIN:
        named_otherwise = found.get(semconv.OPERATION_NAME)
    operation = named_otherwise or operation
    if operation in semconv.CALL_OPERATIONS:
        _messages(span, found)
    elif operation == semconv.OPERATION_EXECUTE_TOOL and span.events:
        found = {**strands.tool(span), **found}
    elif operation == semconv.OPERATION_INVOKE_AGENT and found.get(semconv.ENTRY_RESULT) is None:
        found[semconv.ENTRY_RESULT] = _agents_answer(span)
    added = {name: value for name, value in found.items() if value is not None and name not in attributes}
    return added if named_otherwise is None else {**added, semconv.OPERATION_NAME: named_otherwise}


def _is_own(span: SpanRow) -> bool:
    return semconv.TRAJECTORY_ID in span.attributes and semconv.OPERATION_NAME in span.attributes


_SAID_IN_PARTS = {
    ("llm.input_messages.", "llm.output_messages."): {openinference.KIND: "LLM"},
    ("gen_ai.prompt.", "gen_ai.completion."): {"llm.request.type": "chat"},
}
_SAYS_ITS_KIND = frozenset(
    {semconv.OPERATION_NAME, openinference.KIND, openllmetry.KIND, langfuse.TYPE, vercel.OPERATION, "llm.request.type"}
)


def _kind_that_was_dropped(span: SpanRow) -> Attributes:
    """What says that a span is a call, where its sender dropped that: OpenTelemetry's SDK for Python drops what came
    first when a conversation has more parts than a span may have attributes."""
    if span.rest is None or not span.rest.dropped_attributes or not _SAYS_ITS_KIND.isdisjoint(span.attributes):
        return {}
    for parts, kind in _SAID_IN_PARTS.items():
        if any(name.startswith(parts) for name in span.attributes):
            return dict(kind)
    return {}


def _renamed(span: SpanRow) -> Attributes:
    attributes = {**span.attributes, **dropped} if (dropped := _kind_that_was_dropped(span)) else span.attributes
    found: Attributes = {}
    if span.scope_name == google_adk.SCOPE:
        found = google_adk.attributes(span)
    elif span.scope_name in logfire.SCOPES:
        found = logfire.attributes(span.scope_name, attributes)
    if _FOREIGN.isdisjoint(attributes):
        return found
    if openinference.KIND in attributes:
        found = openinference.attributes(attributes)
    elif langfuse.TYPE in attributes:
        found = langfuse.attributes(span)
    elif openllmetry.KIND in attributes:
        found = openllmetry.entity(attributes)
    elif langsmith.KIND in attributes:
        found = langsmith.attributes(attributes, is_root=span.parent_span_id is None)
    elif vercel.OPERATION in attributes:
        found = vercel.attributes(attributes)
    elif kind := _KINDS.get(text(attributes.get("llm.request.type")) or ""):
        # Anthropic's messages are a completion there.
        found = {semconv.OPERATION_NAME: semconv.OPERATION_CHAT if "gen_ai.prompt.0.role" in attributes else kind}
    return {**{new: attributes[old] for old, new in reversed(_RENAMED.items()) if old in attributes}, **found}


def _repaired(span: SpanRow, attributes: Attributes) -> Attributes:
    """Tool definitions of OpenTelemetry's flat form in the nested one of OpenAI. What a model wrote in one go as one
    message, where instrumentations of OpenAI's Responses API make one of each item; and what OpenLLMetry writes of
    LangChain's messages as their text alone."""
    found: Attributes = {}
    definitions = from_json(attributes.get(semconv.TOOL_DEFINITIONS))
    if isinstance(definitions, list) and not all(isinstance(tool, dict) and "function" in tool for tool in definitions):
        found[semconv.TOOL_DEFINITIONS] = tools(definitions)
    if span.scope_name == "litellm" or "litellm.call_id" in attributes:  # which it writes on another's span, too
        found |= _with_calls_beside(attributes)
    of_items = (text(attributes.get(semconv.RESPONSE_ID)) or "").startswith("resp_")
    joins = of_items or span.scope_name == _AGENTS
    if joins or span.scope_name in _AS_TEXT:
        for name in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES):
            messages = listed(attributes.get(name))
            if messages is not None and (read := _read_again(messages, joins=joins)) != messages:
                found[name] = text_of(read)
            is_prompt = of_items and name == semconv.INPUT_MESSAGES and semconv.PREVIOUS_RESPONSE_ID not in attributes
            if is_prompt and _begins_with_a_result(messages):
                found[semconv.MESSAGES_KEPT] = ["previous_response_id"]  # which OpenLLMetry does not record
    if span.scope_name == _LANGCHAIN and (result := langchain_result(attributes.get(semconv.TOOL_CALL_RESULT))):
        found |= result
        inputs_of = json_object(from_json(attributes.get(semconv.TOOL_CALL_ARGUMENTS))).get("inputs")
        if isinstance(inputs_of, dict):
            found[semconv.TOOL_CALL_ARGUMENTS] = text_of(inputs_of)
    return found


_LANGCHAIN = "opentelemetry.instrumentation.langchain"
_AGENTS = "opentelemetry.instrumentation.openai_agents"
_AS_TEXT = (_LANGCHAIN, "opentelemetry.instrumentation.bedrock")


def _with_calls_beside(attributes: Attributes) -> Attributes:
    """Messages of LiteLLM's, whose tool calls and the ids of what they returned stand beside the parts; an answer's
    calls are attributes of their own, without ids."""
    asked = [json_object(one.get("function_call")) for one in numbered(attributes, "gen_ai.completion")]
    found: Attributes = {}
    for name in (semconv.INPUT_MESSAGES, semconv.OUTPUT_MESSAGES):
        messages = listed(attributes.get(name))
        if messages is None:
            continue
        read = [_with_its_calls(message) for message in messages]
        if name == semconv.OUTPUT_MESSAGES and len(read) == 1 and isinstance(json_object(read[0]).get("parts"), list):
            calls = [{"type": "tool_call", "id": None, **call} for call in asked if call.get("name")]
            read = [{**read[0], "parts": [*read[0]["parts"], *calls]}]
        if read != messages:
            found[name] = text_of(read)
    return found


def _with_its_calls(message: Any) -> Any:
    said = json_object(message)
    parts, calls = said.get("parts"), said.get("tool_calls")
    if not isinstance(parts, list):
        return message
    if said.get("role") == "tool":
        response = parts if (whole := joined_text(parts)) is None else whole
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": said.get("tool_call_id"), "response": response}],
        }
    functions = (
        [(call, json_object(call.get("function"))) for call in calls if isinstance(call, dict)]
        if isinstance(calls, list)
        else []
    )
    asked = [{"type": "tool_call", "id": call.get("id"), **function} for call, function in functions]
    return {**said, "parts": [*parts, *asked]}


def _begins_with_a_result(messages: Any) -> bool:
    """Whether a prompt begins, behind instructions, with what a tool returned: the call is in a history elsewhere."""
    said = (json_object(one) for one in messages) if isinstance(messages, list) else ()
    return next((one.get("role") for one in said if one.get("role") not in ("system", "developer")), None) == "tool"


def _read_again(messages: list[Any], *, joins: bool) -> list[Any]:
    found: list[Any] = []
    for message in messages:
        parts = message.get("parts") if isinstance(message, dict) else None
        if not isinstance(parts, list) or message.get("role") != "assistant":
            found.append(message)
            continue
        asks = any(json_object(part).get("type") == "tool_call" for part in parts)
        said = [read for part in parts for read in _read_part(part, asks=asks)]
        before = json_object(found[-1]) if found and joins else {}
        if before.get("role") == "assistant" and isinstance(before.get("parts"), list):
            found[-1] = {**before, **message, "parts": [*before["parts"], *said]}
        else:
            found.append({**message, "parts": said})
    return found


def _read_part(part: Any, *, asks: bool) -> list[Any]:
    """A part; of the JSON of thoughts their text, and nothing of that of a tool call which a part of its own says.
    OpenLLMetry puts arguments that are no object into one of its own."""
    content, given = json_object(part).get("content"), json_object(json_object(part).get("arguments"))
    if given.keys() == {"_raw"} and isinstance(given["_raw"], str):
        return [{**part, "arguments": given["_raw"]}]
    if not isinstance(content, str) or part.get("type") not in ("text", "reasoning") or content[:2] not in ('{"', "[{"):
        return [part]
    said = from_json(content)
    block = json_object(said)
    if asks and block.get("type") in ("tool_use", "function_call"):
        return []
    thought = json_object(json_object(block.get("reasoningContent")).get("reasoningText")).get("text")
    thought = block.get("thinking") if block.get("type") == "thinking" else thought
    if isinstance(thought, str):
        return [{"type": "reasoning", "content": thought}]
    summary = (
        said if part["type"] == "reasoning" else block.get("summary") if block.get("type") == "reasoning" else None
    )
    if not isinstance(summary, list) or not all(json_object(one).get("type") == "summary_text" for one in summary):
        return [part]
    return [{"type": "reasoning", "content": "\n\n".join(str(one.get("text", "")) for one in summary)}]


# --- messages ----------------------------------------------------------------------------------------------


def _messages(span: SpanRow, found: Attributes) -> None:
    """Numbered attributes and message events as message lists, where no list is given."""
    attributes = span.attributes
    if span.events:
        found.update((name, value) for name, value in strands.details(span).items() if name not in found)
    if semconv.INPUT_MESSAGES not in attributes and semconv.INPUT_MESSAGES not in found:
        prompt = _prompt(attributes) or _event_messages(span, _INPUT_EVENTS) or _in_one(span, "gen_ai.prompt", "user")
        if prompt:
            found[semconv.INPUT_MESSAGES] = inputs(prompt)
    if semconv.OUTPUT_MESSAGES not in attributes and semconv.OUTPUT_MESSAGES not in found:
        replies = _with_thoughts(numbered(attributes, "gen_ai.completion")) or _event_messages(span, ("gen_ai.choice",))
        if replies := replies or _in_one(span, "gen_ai.completion", "assistant"):
            found[semconv.OUTPUT_MESSAGES] = answers(replies)
    if "llm.request.functions.0.name" in attributes:
        found.setdefault(semconv.TOOL_DEFINITIONS, tools(numbered(attributes, "llm.request.functions")))


def _agents_answer(span: SpanRow) -> Any:
    """What an agent's own span says that it answered: the text of its last message."""
    if span.scope_name == "pydantic-ai" and "final_result" in span.attributes:
        return span.attributes["final_result"]
    output = from_json({**strands.details(span), **span.attributes}.get(semconv.OUTPUT_MESSAGES))
    messages = output if isinstance(output, list) else _event_messages(span, ("gen_ai.choice",))
    return text_of(last_text(messages))


def _prompt(attributes: Attributes) -> list[dict[str, Any]]:
    """Older OpenLLMetry's messages: it writes a content of several parts, or of Anthropic's or Bedrock's blocks, as
    JSON, and the prompt of a completion as the user's."""
    found: list[dict[str, Any]] = []
    for message in numbered(attributes, "gen_ai.prompt"):
        if "role" not in message and isinstance(message.get("user"), str):
            found.append({"role": "user", "content": message["user"]})
        elif (read := _in_parts(message)) is not message:
            found.append(read)
        else:
            found += strands.of_blocks(message) or [message]
    return found


def _in_parts(message: dict[str, Any]) -> dict[str, Any]:
    """A message; one whose parts are written as JSON with those."""
    content = from_json(message.get("content"))
    return (
        {**message, "content": content} if isinstance(message.get("content"), str) and are_parts(content) else message
    )


def _with_thoughts(replies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Answers, of which each but the last one's thoughts are one of their own in OpenLLMetry's form."""
    found: list[dict[str, Any]] = []
    for reply in map(_in_parts, replies):
        before = found[-1] if found else {}
        if before.get("role") == "thinking":
            found[-1] = {**before, **reply, "reasoning_content": before.get("content")}
        else:
            found.append(reply)
    return [
        {**reply, "role": "assistant", "content": None, "reasoning_content": reply.get("content")}
        if reply.get("role") == "thinking"
        else reply
        for reply in found
    ]


_INPUT_EVENTS = (
    "gen_ai.system.message",
    "gen_ai.user.message",
    "gen_ai.assistant.message",
    "gen_ai.tool.message",
    "gen_ai.tool.developer",  # of Semantic Kernel for .NET: the developer's message
)
_OF_A_MESSAGE = frozenset({"role", "content", "message", "tool_calls", "id"})


def _event_messages(span: SpanRow, names: Iterable[str]) -> list[dict[str, Any]]:
    """Messages from events: the message's fields are the event's attributes, or JSON in `gen_ai.event.content`."""
    messages: list[dict[str, Any]] = []
    for event in span.events:
        if event.name not in names:
            continue
        given = event.attributes.get("gen_ai.event.content")
        content = from_json(given)
        if isinstance(given, str) and not _OF_A_MESSAGE & json_object(content).keys():
            content = {"content": given}  # a text, as Semantic Kernel has of a completion's prompt
        body = {**event.attributes, **json_object(content)}
        inner = from_json(body.get("message"))
        message = {key: from_json(value) if key == "tool_calls" else value for key, value in body.items()}
        if isinstance(inner, dict):
            message.update(inner)
        elif isinstance(inner, str):
            message.setdefault("content", inner)
        message.setdefault("role", event.name.split(".")[1] if event.name != "gen_ai.choice" else "assistant")
        if isinstance(inner, list):
            message["content"] = inner
        if message["role"] == "tool":
            message.setdefault("tool_call_id", message.get("id"))
        found = strands.of_blocks(message) or google_adk.of_contents(message) or [message]
        before = messages[-1] if messages else {}
        if event.name == "gen_ai.choice" and len(found) == 1 and _is_next_chunk(before, found[0], message.get("index")):
            before["content"] = [*_listed(before.get("content")), *_listed(found[0].get("content"))]
            before.update({name: value for name, value in found[0].items() if name not in ("role", "content")})
            continue
        messages += [{**one, "index": message.get("index")} for one in found]
    return messages


def _in_one(span: SpanRow, name: str, role: str) -> list[dict[str, Any]]:
    """Messages as the conventions had them until version 1.27, in one attribute of the span or of an event
    (`gen_ai.content.prompt`): JSON of them, with roles or as choices, or a text. None of anything else."""
    given = next((said[name] for said in (span.attributes, *(e.attributes for e in span.events)) if name in said), None)
    found = from_json(given)
    if isinstance(given, str) and given and not isinstance(found, (dict, list)):
        return [{"role": role, "content": given}]
    told = json_object(found)
    listed_there = next((told[key] for key in ("messages", "choices") if isinstance(told.get(key), list)), None)
    items = listed_there or (found if isinstance(found, list) else [found])
    messages = [{**json_object(item), **json_object(json_object(item).get("message"))} for item in items]
    return messages if all(isinstance(message.get("role"), str) for message in messages) else []


def _is_next_chunk(before: dict[str, Any], message: dict[str, Any], index: Any) -> bool:
    """Whether a choice goes on with the one before: of the same number, which had not come to its end."""
    tools = "tool_calls" in before and "tool_calls" in message
    return index is not None and before.get("index") == index and not before.get("finish_reason") and not tools


def _listed(content: Any) -> list[Any]:
    if isinstance(content, list):
        return content
    return [] if content is None else [{"type": "text", "text": content}]
