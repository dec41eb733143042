"""What a run of LangSmith's was given and gave, under the names of the conventions: as its files have it, and the spans
that its SDK sends to OpenTelemetry. Pure.

Messages are in OpenAI's form, in LangChain's (`lc` constructors or plain), or prompts.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from arttrace.formats.sdks.anthropic_messages import in_openais_form, whole_conversation
from arttrace.formats.sdks.openai_messages import (
    answers,
    are_items,
    inputs,
    items_answered,
    items_asked,
    keywords,
    settings,
    text_of,
    tools,
)
from arttrace.records import semconv
from arttrace.records.message import joined_text, stated_reasoning
from arttrace.records.span import Attributes
from arttrace.records.values.costs import whole_cost
from arttrace.records.values.finish_reasons import finish_reason, stated_reason
from arttrace.records.values.lenient_json import read_json
from arttrace.wire.apis.anthropic.messages import counts as openais_counts
from arttrace.wire.span_attributes import usage_attributes

KIND = "langsmith.span.kind"
CHAIN = "chain"
"""The operation of what is neither a call nor a tool."""
_GIVEN, _GAVE = "gen_ai.prompt", "gen_ai.completion"
_METADATA = "langsmith.metadata."
_ROLES = {"human": "user", "ai": "assistant", "aimessagechunk": "assistant", "humanmessagechunk": "user"}


def attributes(sent: Attributes, *, is_root: bool) -> Attributes:
    """What a span of its SDK says by other names than those of the conventions."""
    given, output = object_of(sent.get(_GIVEN)), object_of(sent.get(_GAVE))
    metadata = {name[len(_METADATA) :]: value for name, value in sent.items() if name.startswith(_METADATA)}
    name = sent.get("langsmith.trace.name")
    if sent[KIND] == "llm":
        return call(given, output, {}, metadata)
    if sent[KIND] == "tool":
        return tool(str(name or ""), given, output, metadata)
    return agent(name, given, output, metadata) if is_root else {}


def agent(name: Any, given: dict[str, Any], output: dict[str, Any], metadata: dict[str, Any]) -> Attributes:
    """The uppermost run of a trace."""
    return {
        semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
        semconv.AGENT_NAME: name,
        semconv.ENTRY_ARGUMENTS: text_of(given),
        semconv.ENTRY_RESULT: text_of(output),
        semconv.METADATA: text_of(metadata) if metadata else None,
    }


def tool(name: str, given: dict[str, Any], output: dict[str, Any], metadata: dict[str, Any]) -> Attributes:
    """A run of a tool."""
    returned = output.get("output", output)
    message = _fields(object_of(returned))
    return {
        semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
        semconv.TOOL_NAME: name,
        semconv.TOOL_CALL_ID: metadata.get("tool_call_id") or message.get("tool_call_id"),
        semconv.TOOL_CALL_ARGUMENTS: text_of(keywords(_written(given.get("input", given)))),
        semconv.TOOL_CALL_RESULT: text_of(message["content"] if "tool_call_id" in message else returned),
    }


def call(given: dict[str, Any], output: dict[str, Any], extra: dict[str, Any], metadata: dict[str, Any]) -> Attributes:
    if output.keys() == {"output"} and isinstance(output["output"], dict):  # a function's, which returned an object
        output = output["output"]
    parameters = object_of(extra.get("invocation_params"))
    messages = given.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], list):
        messages = messages[0]  # LangChain's, of a batch of one
    if not isinstance(messages, list) and isinstance(asked := given.get("input"), (str, list)):
        messages = items_asked(asked, given.get("instructions"))
    if not isinstance(messages, list):
        prompts = given.get("prompts") or ([given["prompt"]] if "prompt" in given else None)
        messages = [{"role": "user", "content": one} for one in prompts] if isinstance(prompts, list) else None
    offered = parameters.get("tools") or given.get("tools")
    replies, usage = list(_replies(output)), _usage(output)
    about = object_of(_message_of(output).get("response_metadata"))
    models = (output.get("model"), about.get("model_name"), about.get("model"))
    found: Attributes = {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        **settings(parameters or given),
        semconv.REQUEST_MODEL: metadata.get("ls_model_name") or parameters.get("model") or given.get("model"),
        semconv.RESPONSE_MODEL: next(filter(None, models), object_of(output.get("llm_output")).get("model_name")),
        semconv.RESPONSE_ID: output.get("id") or about.get("id"),
        semconv.PROVIDER_NAME: metadata.get("ls_provider"),
        semconv.TOOL_DEFINITIONS: tools(offered) if isinstance(offered, list) else None,
        semconv.USAGE_COST: whole_cost(*(usage.get(name) for name in ("total_cost", "input_cost", "output_cost"))),
        **usage_attributes(usage),
    }
    if messages:
        asked = messages if are_items(messages) else list(_messages(messages))
        found[semconv.INPUT_MESSAGES] = inputs([*whole_conversation([], given.get("system")), *asked])
    if replies:
        found[semconv.OUTPUT_MESSAGES] = answers(replies)
    return found


def _message_of(output: dict[str, Any]) -> dict[str, Any]:
    """The first answer of LangChain's, as its fields."""
    generations = output.get("generations")
    first = generations[0] if isinstance(generations, list) and generations else None
    first = first[0] if isinstance(first, list) and first else first
    return _fields(object_of(object_of(first).get("message")))


def _fields(message: dict[str, Any]) -> dict[str, Any]:
    """A message's fields, also where LangChain's serialisation is around them."""
    return object_of(message.get("kwargs")) or message


def _usage(output: dict[str, Any]) -> dict[str, Any]:
    """The counts of an output's tokens as OpenAI's APIs have them: theirs, Anthropic's, or LangChain's beside the
    answers or in one."""
    beside = object_of(output.get("llm_output"))
    for own in (output.get("usage_metadata"), _message_of(output).get("usage_metadata")):
        if usage := object_of(own):
            given, sampled = (object_of(usage.get(f"{side}_token_details")) for side in ("input", "output"))
            cached = {"cached_tokens": given.get("cache_read"), "cache_write_tokens": given.get("cache_creation")}
            thought = {"reasoning_tokens": sampled.get("reasoning")}
            return {**usage, "input_tokens_details": cached, "output_tokens_details": thought}
    usages = (output.get("usage"), beside.get("token_usage"), beside.get("usage"))
    found = next(filter(None, map(object_of, usages)), {})
    return openais_counts(found) if "cache_read_input_tokens" in found else found


def _written(given: Any) -> Any:
    """What LangChain writes of a tool's arguments, as Python does, as the value that it is."""
    if isinstance(given, str) and given[:1] == "{":
        with contextlib.suppress(ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
            return ast.literal_eval(given)
    return given


def _replies(output: dict[str, Any]) -> Iterator[Any]:
    """The answers of a call's output, whichever of the forms it has."""
    generations = output.get("generations")
    if isinstance(generations, list):
        for one in generations[0] if generations and isinstance(generations[0], list) else generations:
            answer = object_of(one)
            reason = stated_reason(object_of(answer.get("generation_info")))
            if isinstance(answer.get("message"), dict):
                for message in _messages([answer["message"]]):
                    yield {"finish_reason": reason, **message}
            elif isinstance(answer.get("text"), str):
                yield {"content": answer["text"], "finish_reason": reason}
    elif isinstance(output.get("choices"), list):
        for choice in output["choices"]:
            answer = object_of(choice)
            if isinstance(answer.get("message"), dict):
                yield {**answer["message"], "finish_reason": answer.get("finish_reason")}
    elif isinstance(output.get("messages"), list):
        yield from _messages(output["messages"][-1:])
    elif isinstance(output.get("message"), dict):
        reason = finish_reason(stated_reason({**output, **output["message"]}))
        yield from ({"finish_reason": reason, **one} for one in _messages([output["message"]]))
    elif "role" in output or "content" in output:
        yield {"finish_reason": finish_reason(output.get("stop_reason")), **output}
    elif items := items_answered(output):
        yield from items
    elif isinstance(output.get("output"), str):
        yield {"content": output["output"]}
    elif isinstance(output.get("output"), dict):
        yield from _replies(output["output"])


def _messages(messages: Sequence[Any]) -> Iterator[dict[str, Any]]:
    for given in messages:
        if not isinstance(given, dict):
            continue
        fields = (
            given.get("kwargs") if given.get("type") == "constructor" or "lc" in given else given.get("data", given)
        )
        message = dict(fields) if isinstance(fields, dict) else {}
        kind = str(message.get("type") or given.get("type") or "").lower()
        if "lc" in given and isinstance(given.get("id"), list) and given["id"]:
            kind = str(given["id"][-1]).lower().removesuffix("chunk").removesuffix("message") or kind
        role = message.get("role") or _ROLES.get(kind, kind)
        rest = object_of(message.get("additional_kwargs"))
        chat: dict[str, Any] = {"role": role, "content": message.get("content")}
        if isinstance(chat["content"], list):
            *results, chat = in_openais_form({"role": str(role), "content": chat["content"]})
            yield from results
            if (text := joined_text(chat["content"])) is not None:
                chat["content"] = text
        for name in ("tool_call_id", "name"):
            if message.get(name):
                chat[name] = message[name]
        if reasoning := stated_reasoning(message) or stated_reasoning(rest):
            chat["reasoning_content"] = reasoning
        calls = rest.get("tool_calls") or message.get("tool_calls")
        if isinstance(calls, list) and calls:
            chat["tool_calls"] = [_tool_call(call) for call in calls]
        if invalid := message.get("invalid_tool_calls"):
            chat["invalid_tool_calls"] = invalid
        about = object_of(message.get("response_metadata"))
        if reason := finish_reason(stated_reason(about)):
            chat["finish_reason"] = reason
        yield chat


def _tool_call(call: Any) -> Any:
    if not isinstance(call, dict) or "function" in call:
        return call
    arguments = call.get("args", call.get("arguments"))
    function = {"name": call.get("name"), "arguments": arguments if isinstance(arguments, str) else text_of(arguments)}
    return {"id": call.get("id"), "type": "function", "function": function}


def object_of(value: Any) -> dict[str, Any]:
    """An object, or the JSON text of one, as the bulk export has it."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = read_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
