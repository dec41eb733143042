"""OpenInference: its attributes under the names of the conventions; and lists that are written as numbered attributes,
as it has its messages. Pure.

Its instrumentation of Anthropic's client before version 1 has neither the instructions among the messages nor all
results of tools, and its answers lack ids: those are in the request and the answer, which it keeps beside.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from arttrace.formats.sdks.anthropic_messages import is_system_text, whole_conversation
from arttrace.formats.sdks.frameworks import strands
from arttrace.formats.sdks.openai_messages import (
    answers,
    inputs,
    langchain_result,
    reasons_of,
    settings,
    text_of,
    tools,
)
from arttrace.records import semconv
from arttrace.records.span import Attributes
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text, whole_object
from arttrace.wire.apis.anthropic.chat import holds_blocks
from arttrace.wire.apis.openai.response_items import parse_input, parse_instructions, parse_output
from arttrace.wire.apis.openai.responses import messages_kept, status_reason
from arttrace.wire.messages import OutputMessage

KIND = "openinference.span.kind"

_LEVELS = 32
"""Of numbered attributes; what lies deeper keeps its dots."""
_KINDS = {
    "LLM": semconv.OPERATION_CHAT,
    "AGENT": semconv.OPERATION_INVOKE_AGENT,
    "TOOL": semconv.OPERATION_EXECUTE_TOOL,
}
_RENAMED = {
    "llm.provider": semconv.PROVIDER_NAME,
    "llm.system": semconv.PROVIDER_NAME,
    "llm.model_name": semconv.RESPONSE_MODEL,
    "llm.response.model_name": semconv.RESPONSE_MODEL,
    "llm.token_count.prompt": semconv.USAGE_INPUT_TOKENS,
    "llm.token_count.completion": semconv.USAGE_OUTPUT_TOKENS,
    "llm.token_count.prompt_details.cache_read": semconv.USAGE_CACHE_READ_INPUT_TOKENS,
    "llm.token_count.prompt_details.cache_write": semconv.USAGE_CACHE_WRITE_INPUT_TOKENS,
    "llm.token_count.completion_details.reasoning": semconv.USAGE_REASONING_OUTPUT_TOKENS,
    "session.id": semconv.CONVERSATION_ID,
}


def attributes(sent: Attributes) -> Attributes:
    """What a span says."""
    kind = text(sent[KIND]) or ""
    found: Attributes = {semconv.OPERATION_NAME: _KINDS.get(kind)}
    found.update((new, sent[old]) for old, new in _RENAMED.items() if old in sent)
    given, output = sent.get("input.value"), sent.get("output.value")
    if kind == "LLM":
        asked, answered = from_json(given), from_json(output)
        found |= _call(sent, asked, answered)
        api = json_object(answered).get("object")
        if api == "response":
            found |= {name: value for name, value in _of_responses(asked, answered).items() if value is not None}
        elif api == "text_completion":
            found |= _of_completions(sent, answered)
    elif kind == "TOOL":
        found[semconv.TOOL_NAME] = sent.get("tool.name") or sent.get("tool_call.function.name")
        found[semconv.TOOL_CALL_ID] = sent.get("tool.id") or sent.get("tool_call.id")
        found[semconv.TOOL_CALL_ARGUMENTS] = given
        found[semconv.TOOL_CALL_RESULT] = output
        found |= langchain_result(output)
    elif kind == "AGENT":
        # Phoenix's REST API flattens the metadata that a span has as JSON.
        metadata = {**json_object(_lists(_below(sent, "metadata"))), **whole_object(sent.get("metadata"))}
        tags = from_json(sent.get("tag.tags"))
        user = text(sent.get("user.id"))
        about = {**metadata, **({"user_id": user} if user else {})}
        found[semconv.AGENT_NAME] = sent.get("agent.name")
        found[semconv.ENTRY_ARGUMENTS] = given
        found[semconv.ENTRY_RESULT] = output
        found[semconv.METADATA] = text_of(about) if about else None
        found[semconv.TAGS] = [str(tag) for tag in tags] if isinstance(tags, list) and tags else None
    return found


def _call(sent: Attributes, given: Any, response: Any) -> Attributes:
    messages = _asked(sent, given)
    replies = [_message(item) for item in numbered(sent, "llm.output_messages")]
    if len(replies) == 1 and holds_blocks(said := json_object(response).get("content")):
        replies = [{**replies[0], "content": said}]
    definitions = [_tool(item) for item in numbered(sent, "llm.tools")]
    messages, replies, functions = _of_chat(sent, given, response, messages, replies)
    reasons = _reasons(sent, response, len(replies))
    ended = [{**reply, "finish_reason": why} for reply, why in zip(replies, reasons, strict=True)]
    return {
        semconv.REQUEST_MODEL: sent.get("llm.request.model_name", sent.get("llm.model_name")),
        **settings(from_json(sent.get("llm.invocation_parameters"))),
        semconv.INPUT_MESSAGES: inputs(messages) if messages else None,
        semconv.OUTPUT_MESSAGES: answers(ended) if ended else None,
        semconv.TOOL_DEFINITIONS: tools(definitions or functions) if definitions or functions else None,
        semconv.RESPONSE_FINISH_REASONS: reasons if reasons and all(reasons) else None,
        semconv.RESPONSE_ID: text(json_object(response).get("id")),
    }


def _reasons(sent: Attributes, response: Any, count: int) -> list[str | None]:
    """Why each answer ended: the attribute has one for all, the last one's."""
    reason, stated = text(sent.get("llm.finish_reason")), reasons_of(response)
    if reason and not (len(stated) == count and all(stated)):
        return [reason] * count
    return (stated + [None] * count)[:count]


_CHAT = ("chat.completion", "chat.completion.chunk")
_REDACTED = "__REDACTED__"


def _of_chat(
    sent: Attributes, given: Any, response: Any, messages: list[dict[str, Any]], replies: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], list[Any]]:
    """Messages, answers and functions of a call of chat completions as its request and its answer have them: among the
    attributes are neither custom tools, refusals, sounds nor thoughts. Where something was hidden, those are kept."""
    request, answer = json_object(given), json_object(response)
    if answer.get("object") not in _CHAT or _REDACTED in sent.values():
        return messages, replies, []
    asked = json_objects(request.get("messages"))
    said = [one["message"] for one in json_objects(answer.get("choices")) if isinstance(one.get("message"), dict)]
    functions = request.get("functions")
    return (
        asked if len(asked) == len(messages) else messages,
        said if len(said) == len(replies) else replies,
        functions if isinstance(functions, list) else [],
    )


def _of_completions(sent: Attributes, response: dict[str, Any]) -> Attributes:
    """A call of the legacy completions: each prompt is the user's."""
    prompts = [json_object(one.get("prompt")).get("text") for one in numbered(sent, "llm.prompts")]
    texts = [json_object(one.get("completion")).get("text") for one in numbered(sent, "llm.choices")]
    reasons = _reasons(sent, response, len(texts))
    ended = [{"content": said, "finish_reason": why} for said, why in zip(texts, reasons, strict=True)]
    return {
        semconv.OPERATION_NAME: semconv.OPERATION_TEXT_COMPLETION,
        semconv.INPUT_MESSAGES: inputs([{"role": "user", "content": one} for one in prompts]) if prompts else None,
        semconv.OUTPUT_MESSAGES: answers(ended) if ended else None,
        semconv.PROMPT_FORM: "several" if len(prompts) > 1 else None,
        semconv.RESPONSE_FINISH_REASONS: reasons if reasons and all(reasons) else None,
    }


def _of_responses(given: Any, response: dict[str, Any]) -> Attributes:
    """A call of OpenAI's Responses API by its items: each is a message among the attributes, an answer like the others
    where the model gave it."""
    request = json_object(given)
    asked = parse_input(given if isinstance(given, list) else request.get("input"))
    items = response["output"] if isinstance(response.get("output"), list) else []
    instructions = parse_instructions(request.get("instructions", response.get("instructions")))
    reason = status_reason(response, items)
    return {
        semconv.OPENAI_API_TYPE: "responses",
        semconv.RESPONSE_ID: text(response.get("id")),
        semconv.PREVIOUS_RESPONSE_ID: text(request.get("previous_response_id", response.get("previous_response_id"))),
        semconv.MESSAGES_KEPT: messages_kept(request),
        semconv.SYSTEM_INSTRUCTIONS: text_of(instructions),
        semconv.INPUT_MESSAGES: text_of(asked),
        semconv.OUTPUT_MESSAGES: text_of([OutputMessage("assistant", parse_output(items), reason)]) if items else None,
        semconv.RESPONSE_FINISH_REASONS: [reason] if reason else None,
    }


def _asked(sent: Attributes, given: Any) -> list[dict[str, Any]]:
    """The messages; of Bedrock's blocks what is given, where a user's words follow on the results of tools."""
    messages = [_message(item) for item in numbered(sent, "llm.input_messages")]
    converse = [strands.of_blocks(json_object(one)) for one in given] if isinstance(given, list) else []
    if messages and converse and all(converse):
        instructions = [one for one in messages if one.get("role") == "system"]
        return [*instructions, *(one for said in converse for one in said or ())]
    request = json_object(given)
    whole, system = request.get("messages"), request.get("system")
    if isinstance(whole, list) and len(whole) == len(messages):
        messages = [
            one if isinstance(one, dict) and _is_of_blocks(one.get("content")) else message
            for one, message in zip(whole, messages, strict=True)
        ]
    if messages and messages[0].get("role") != "system" and is_system_text(system):
        messages = [*whole_conversation([], system), *messages]
    return messages


def _is_of_blocks(content: Any) -> bool:
    """Whether a content is blocks of Anthropic's, each written out: of objects of its client only a text was kept."""
    return holds_blocks(content) and all(isinstance(block, dict) for block in content)


def _tool(item: dict[str, Any]) -> Any:
    return from_json(json_object(item.get("tool")).get("json_schema"))


def _message(item: dict[str, Any]) -> dict[str, Any]:
    message = dict(json_object(item.get("message")))
    contents = message.pop("contents", None)
    if isinstance(name := message.pop("function_call_name", None), str):
        message["function_call"] = {"name": name, "arguments": message.pop("function_call_arguments_json", None)}
    parts = contents if isinstance(contents, list) else []
    calls = message.get("tool_calls")
    asked = [call["tool_call"] for call in (calls if isinstance(calls, list) else parts) if _is_call(call)]
    if asked:
        message["tool_calls"] = asked
    said = [_content(part) for part in parts if not (asked and _is_call(part))]  # which repeats them
    if thoughts := [part["text"] for part in said if _is_thought(part)]:
        message.setdefault("reasoning_content", "".join(thoughts))
    if contents is not None:
        message.setdefault("content", [part for part in said if not _is_thought(part)])
    if message.get("role") == "user" and message.get("tool_call_id"):
        message["role"] = "tool"
    return message


def _is_call(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("tool_call"), dict)


def _is_thought(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "reasoning" and isinstance(part.get("text"), str)


def _content(part: Any) -> Any:
    content = part.get("message_content") if isinstance(part, dict) else None
    if not isinstance(content, dict):
        return part
    image = content.get("image")
    if content.get("type") == "image" and isinstance(image, dict):
        url = image.get("image", image).get("url") if isinstance(image.get("image", image), dict) else None
        return {"type": "image_url", "image_url": {"url": url}}
    return content


def numbered(attributes: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """`prefix.0.a.b`, `prefix.1.c.0.d`, ... as a list of objects, in order of their numbers."""
    return json_objects(_lists(_below(attributes, prefix)))


def _below(attributes: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """What stands under dotted names that begin with this one, nested, lists as objects of their numbers."""
    start = prefix + "."
    root: dict[str, Any] = {}
    if start not in "\n".join(attributes):
        return root
    for name, value in attributes.items():
        if name.startswith(start):
            node, path = root, name[len(start) :].split(".", _LEVELS)
            for step in path[:-1]:
                below = node.get(step)
                node[step] = node = json_object(below)
            node[path[-1]] = value
    return root


_NUMBER = re.compile("[0-9]{1,9}")


def _lists(node: Any, levels: int = _LEVELS) -> Any:
    if not isinstance(node, dict) or levels < 0:
        return node
    if node and all(map(_NUMBER.fullmatch, node)):
        return [_lists(node[key], levels - 1) for key in sorted(node, key=int)]
    return {key: _lists(value, levels - 1) for key, value in node.items()}


_NESTED_LEVELS = 12
_NESTED_JSON = ("json_schema", "invocation_parameters", "metadata", "template.variables", "parameters")
_CONVENTIONS = [
    value for name, value in vars(semconv).items() if name.isupper() and isinstance(value, str) and "." in value
]
_WHOLE = frozenset(name for name in _CONVENTIONS if not any(other.startswith(f"{name}.") for other in _CONVENTIONS))
"""The conventions' names: what is below one is its value."""


def flat(value: Any, prefix: str = "", levels: int = _NESTED_LEVELS) -> Attributes:
    """Nested objects and lists of objects under dotted, numbered names, as OpenInference writes them; what is under a
    name of the conventions as its JSON text."""
    is_whole = prefix.endswith(_NESTED_JSON) or prefix in _WHOLE
    if isinstance(value, dict) and levels and not is_whole:
        items = [(str(name), inner) for name, inner in value.items()]
    elif isinstance(value, list) and levels and not is_whole and value and all(isinstance(one, dict) for one in value):
        items = [(str(at), inner) for at, inner in enumerate(value)]
    elif isinstance(value, (dict, list)) and prefix:
        are_objects = isinstance(value, dict) or (prefix in _WHOLE and any(isinstance(one, dict) for one in value))
        return {prefix: text_of(value) if are_objects else value}
    else:
        return {prefix: value} if prefix and value is not None else {}
    found: Attributes = {}
    for name, inner in items:
        found.update(flat(inner, f"{prefix}.{name}" if prefix else name, levels - 1))
    return found
