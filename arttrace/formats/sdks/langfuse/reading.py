"""What the spans of Langfuse's SDK say, under the names of the conventions, and its ids and times. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from arttrace.formats.sdks.langfuse import names
from arttrace.formats.sdks.langfuse.writing import chat_attributes
from arttrace.formats.sdks.openai_messages import (
    are_items,
    items_answered,
    items_asked,
    keywords,
    langchain_result,
    settings,
    text_of,
)
from arttrace.records import semconv
from arttrace.records.message import REASONING
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.finish_reasons import stated_reason
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text

_OPERATIONS = {
    "generation": semconv.OPERATION_CHAT,
    "agent": semconv.OPERATION_INVOKE_AGENT,
    "tool": semconv.OPERATION_EXECUTE_TOOL,
}


def attributes(span: SpanRow) -> Attributes:
    """What a span of Langfuse's SDK says, under the names of the conventions."""
    get = span.attributes.get
    found = _observation(
        kind=(text(get(names.TYPE)) or "").lower(),
        name=span.name,
        given=from_json(get(names.INPUT)),
        output=from_json(get(names.OUTPUT)),
    )
    found[semconv.RESPONSE_MODEL] = found[semconv.REQUEST_MODEL] = get(names.MODEL)
    found.update(settings(from_json(get(names.MODEL_PARAMETERS))))
    found.update(_usage(from_json(get(names.USAGE_DETAILS))))
    found[semconv.CONVERSATION_ID] = get("session.id") or get("langfuse.session.id")
    return found


def _observation(*, kind: str, name: str, given: Any, output: Any) -> Attributes:
    found: Attributes = {semconv.OPERATION_NAME: _OPERATIONS.get(kind)}
    if kind == "generation":
        found.update(chat_attributes(_asked(given), _answered(output), None))
    elif kind == "tool":
        found[semconv.TOOL_NAME] = name
        found[semconv.TOOL_CALL_ARGUMENTS] = text_of(keywords(given))
        found[semconv.TOOL_CALL_RESULT] = text_of(output)
        found |= langchain_result(output)
    elif kind == "agent":
        found[semconv.AGENT_NAME] = name
        found[semconv.ENTRY_ARGUMENTS] = text_of(keywords(given))
        found[semconv.ENTRY_RESULT] = text_of(output)
    return found


def _asked(given: Any) -> Any:
    """The input of a generation as a chat: a text is the user's, and so is, as it came, what a function was given that
    `observe` decorates. The handler for LangChain puts the tools behind the messages, as messages of tools."""
    given = keywords(given)
    if isinstance(given, list) and (offered := [one["content"] for one in given if _is_offer(one)]):
        return {"messages": [one for one in given if not _is_offer(one)], "tools": offered}
    if given is None or isinstance(given, list) or isinstance(json_object(given).get("messages"), list):
        return given
    if isinstance(given, dict) and "input" in given and given.keys() <= _OF_RESPONSES:
        return {"messages": items_asked(given["input"], given.get("instructions")), "tools": given.get("tools")}
    part = {"type": "text", "text": given} if isinstance(given, str) else {"type": "input", "input": given}
    return [{"role": "user", "content": [part]}]


def _answered(output: Any) -> Any:
    """The output of a generation as an answer, or several: a response of OpenAI's APIs as the answers in it, blocks of
    Anthropic's alone as one; an object that is none stays as it came, in a part of its own."""
    if isinstance(output, list) and output and all(map(_is_block, output)):
        return {"role": "assistant", "content": output}
    if not isinstance(output, dict) or not output or output.keys() & _OF_A_MESSAGE or are_items([output]):
        return output
    choices = json_objects(output.get("choices"))
    if answers := [{**json_object(one.get("message")), "finish_reason": stated_reason(one)} for one in choices]:
        return answers
    if items := items_answered(output):
        return items
    return {"role": "assistant", "content": [{"type": "output", "output": output}]}


_OF_A_MESSAGE = {"role", "content", "parts", "tool_calls", "function_call", "refusal", "audio", *REASONING}
_BLOCKS = ("text", "tool_use", "thinking", "redacted_thinking")


def _is_block(value: Any) -> bool:
    block = json_object(value)
    return "role" not in block and block.get("type") in _BLOCKS


def _is_offer(message: Any) -> bool:
    """Whether this is the definition of a tool, and not what one returned."""
    said = json_object(message)
    content = json_object(said.get("content"))
    return said.get("role") == "tool" and not said.get("tool_call_id") and bool(content.keys() & _OF_A_DEFINITION)


_OF_RESPONSES = {"input", "instructions", "tools", "tool_choice", "parallel_tool_calls"}
"""What a request of the Responses API is given, as Langfuse's client for OpenAI writes it."""
_OF_A_DEFINITION = {"function", "parameters", "input_schema"}


def _usage(details: Any) -> Attributes:
    if not isinstance(details, dict):
        return {}
    cached = details.get("prompt_tokens_details")
    found = {
        semconv.USAGE_INPUT_TOKENS: details.get("prompt_tokens", _together(details, "input")),
        semconv.USAGE_OUTPUT_TOKENS: details.get("completion_tokens", _together(details, "output")),
        semconv.USAGE_CACHE_READ_INPUT_TOKENS: cached.get("cached_tokens")
        if isinstance(cached, dict)
        else _first(details, _CACHE_READ),
        semconv.USAGE_CACHE_WRITE_INPUT_TOKENS: _first(details, _CACHE_WRITTEN),
        semconv.USAGE_REASONING_OUTPUT_TOKENS: details.get("output_reasoning_tokens"),
    }
    return {name: value for name, value in found.items() if isinstance(value, int)}


_CACHE_READ = ("input_cached_tokens", "input_cache_read", "cache_read_input_tokens")
_CACHE_WRITTEN = ("input_cache_creation", "cache_creation_input_tokens")


def _together(details: dict[str, Any], side: str) -> int | None:
    """The tokens of all buckets whose name has the word, as Langfuse itself adds them; None where there is none."""
    counts = [value for name, value in details.items() if side in name.lower() and isinstance(value, int)]
    return sum(counts) if counts else None


def _first(details: dict[str, Any], names: tuple[str, ...]) -> Any:
    return next((details[name] for name in names if name in details), None)


def hex_id(id: str, digits: int) -> str:
    """An id as OpenTelemetry's of so many hex digits: itself where it is one, else one made from it."""
    text = id.replace("-", "").lower()
    if len(text) == digits and text.strip("0") and all(c in "0123456789abcdef" for c in text):
        return text
    return hashlib.blake2b(id.encode(), digest_size=digits // 2).hexdigest()
