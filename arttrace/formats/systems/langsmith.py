"""Runs exported from LangSmith: `Run` objects as its API, its SDK and its bulk export write them. Pure.

A run of type llm is a call: its messages in OpenAI's form, in LangChain's (`lc` constructors or plain), or as
prompts. `feedback_stats` (averages) or `feedback` become rewards of the trace with their keys as names.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from arttrace.formats.imported_run import hashed, said
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import in_openais_form, whole_conversation
from arttrace.formats.sdks.langfuse.reading import hex_id
from arttrace.formats.sdks.openai_messages import answers, inputs, keywords, settings, text_of, tools
from arttrace.records import semconv
from arttrace.records.message import joined_text
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.finish_reasons import finish_reason, stated_reason
from arttrace.records.values.lenient_json import read_json
from arttrace.records.values.times import ended_ns, time_ns
from arttrace.trajectories.decoding.attribute_values import finite
from arttrace.wire.apis.anthropic_messages import counts as openais_counts
from arttrace.wire.span_attributes import usage_attributes

KIND = "langsmith runs"
_ROLES = {"human": "user", "ai": "assistant", "aimessagechunk": "assistant", "humanmessagechunk": "user"}


def recognises(item: dict[str, Any]) -> bool:
    """Whether this is a run."""
    return isinstance(item.get("run_type"), str) and ("trace_id" in item or "dotted_order" in item or "id" in item)


def records(item: dict[str, Any], source: str) -> Iterator[Read]:
    """The run's span, and its feedback."""
    own = str(item.get("id") or item.get("run_id") or hashed(32, item))
    trace = str(item.get("trace_id") or own)
    trace_id = hex_id(trace, 32)
    start = time_ns(item.get("start_time"))
    if start is None:
        raise ValueError("a run has no start_time")
    kind, name = item["run_type"], str(item.get("name") or item["run_type"])
    given, output = _object(item.get("inputs")), _object(item.get("outputs"))
    extra = _object(item.get("extra"))
    metadata = _object(extra.get("metadata"))
    parent = item.get("parent_run_id")
    error = item.get("error")
    found: Attributes
    if kind == "llm":
        found = _call(given, output, extra, metadata)
    elif kind == "tool":
        returned = output.get("output", output)
        message = _fields(_object(returned))
        found = {
            semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
            semconv.TOOL_NAME: name,
            semconv.TOOL_CALL_ID: metadata.get("tool_call_id") or message.get("tool_call_id"),
            semconv.TOOL_CALL_ARGUMENTS: text_of(keywords(_written(given.get("input", given)))),
            semconv.TOOL_CALL_RESULT: text_of(message["content"] if "tool_call_id" in message else returned),
        }
    elif parent is None:
        found = {
            semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
            semconv.AGENT_NAME: name,
            semconv.ENTRY_ARGUMENTS: text_of(given),
            semconv.ENTRY_RESULT: text_of(output),
            semconv.PROJECT: item.get("session_name") or source,
            semconv.TAGS: item.get("tags") or None,
            semconv.METADATA: text_of(metadata) if metadata else None,
            semconv.SCENARIO: item.get("reference_example_id"),
        }
    else:
        found = {}
    counts = ((semconv.USAGE_INPUT_TOKENS, "prompt_tokens"), (semconv.USAGE_OUTPUT_TOKENS, "completion_tokens"))
    if kind == "llm":
        found.update({to: item[name] for to, name in counts if isinstance(item.get(name), int) and item[name]})
    yield SpanRow(
        trace_id=trace_id,
        span_id=hex_id(own, 16),
        parent_span_id=hex_id(parent, 16) if isinstance(parent, str) else None,
        name=name,
        start_ns=start,
        end_ns=ended_ns(start, time_ns(item.get("end_time")), has_answer=bool(output or error)),
        kind=3 if kind == "llm" else 1,
        status_code=2 if error else 0,
        status_message=str(error)[:4000] if error else "",
        attributes=said(found),
        scope_name="langsmith-export",
    )
    yield from _feedback(item, trace_id, own, start)


def _feedback(item: dict[str, Any], trace_id: str, own: str, start: int) -> Iterator[Read]:
    """A root's is the trace's, another run's that run's."""
    given = [one for one in item.get("feedback") or [] if isinstance(one, dict)]
    stats = _object(item.get("feedback_stats"))
    given += [
        {"key": key, "score": one.get("avg")}
        for key, one in stats.items()
        if isinstance(one, dict) and key not in {one.get("key") for one in given}
    ]
    for one in given:
        value = finite(one.get("score"))
        if value is not None:
            kind = _object(one.get("feedback_source")).get("type")
            yield Reward(
                id=str(one.get("id") or f"{own}:{one.get('key')}"),
                trajectory_id=trace_id,
                value=value,
                name=str(one.get("key") or "feedback"),
                agent_id=None if item.get("parent_run_id") is None else hex_id(own, 16),
                source="judge" if kind == "model" else "code",
                explanation=str(one.get("comment") or ""),
                time_ns=time_ns(one.get("created_at")) or start,
            )
        else:
            yield LeftOutItem("feedback without a score")


def _call(given: dict[str, Any], output: dict[str, Any], extra: dict[str, Any], metadata: dict[str, Any]) -> Attributes:
    parameters = _object(extra.get("invocation_params"))
    messages = given.get("messages")
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], list):
        messages = messages[0]  # LangChain's, of a batch of one
    if not isinstance(messages, list):
        prompts = given.get("prompts") or ([given["prompt"]] if "prompt" in given else None)
        messages = [{"role": "user", "content": one} for one in prompts] if isinstance(prompts, list) else None
    offered = parameters.get("tools") or given.get("tools")
    replies = list(_replies(output))
    about = _object(_message_of(output).get("response_metadata"))
    models = (output.get("model"), about.get("model_name"), about.get("model"))
    found: Attributes = {
        semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
        **settings(parameters or given),
        semconv.REQUEST_MODEL: metadata.get("ls_model_name") or parameters.get("model") or given.get("model"),
        semconv.RESPONSE_MODEL: next(filter(None, models), _object(output.get("llm_output")).get("model_name")),
        semconv.RESPONSE_ID: output.get("id") or about.get("id"),
        semconv.PROVIDER_NAME: metadata.get("ls_provider"),
        semconv.TOOL_DEFINITIONS: tools(offered) if isinstance(offered, list) else None,
        **usage_attributes(_usage(output)),
    }
    if messages:
        found[semconv.INPUT_MESSAGES] = inputs([*whole_conversation([], given.get("system")), *_messages(messages)])
    if replies:
        found[semconv.OUTPUT_MESSAGES] = answers(replies)
    return found


def _message_of(output: dict[str, Any]) -> dict[str, Any]:
    """The first answer of LangChain's, as its fields."""
    generations = output.get("generations")
    first = generations[0] if isinstance(generations, list) and generations else None
    first = first[0] if isinstance(first, list) and first else first
    return _fields(_object(_object(first).get("message")))


def _fields(message: dict[str, Any]) -> dict[str, Any]:
    """A message's fields, also where LangChain's serialisation is around them."""
    return _object(message.get("kwargs")) or message


def _usage(output: dict[str, Any]) -> dict[str, Any]:
    """The counts of an output's tokens as OpenAI's APIs have them: theirs, Anthropic's, or LangChain's beside the
    answers or in one."""
    beside = _object(output.get("llm_output"))
    for own in (output.get("usage_metadata"), _message_of(output).get("usage_metadata")):
        if usage := _object(own):
            given, sampled = (_object(usage.get(f"{side}_token_details")) for side in ("input", "output"))
            cached = {"cached_tokens": given.get("cache_read"), "cache_write_tokens": given.get("cache_creation")}
            thought = {"reasoning_tokens": sampled.get("reasoning")}
            return {**usage, "input_tokens_details": cached, "output_tokens_details": thought}
    usages = (output.get("usage"), beside.get("token_usage"), beside.get("usage"))
    found = next(filter(None, map(_object, usages)), {})
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
            answer = _object(one)
            reason = stated_reason(_object(answer.get("generation_info")))
            if isinstance(answer.get("message"), dict):
                for message in _messages([answer["message"]]):
                    yield {"finish_reason": reason, **message}
            elif isinstance(answer.get("text"), str):
                yield {"content": answer["text"], "finish_reason": reason}
    elif isinstance(output.get("choices"), list):
        for choice in output["choices"]:
            answer = _object(choice)
            if isinstance(answer.get("message"), dict):
                yield {**answer["message"], "finish_reason": answer.get("finish_reason")}
    elif isinstance(output.get("messages"), list):
        yield from _messages(output["messages"][-1:])
    elif isinstance(output.get("message"), dict):
        yield from _messages([output["message"]])
    elif "role" in output or "content" in output:
        yield {"finish_reason": finish_reason(output.get("stop_reason")), **output}
    elif isinstance(output.get("output"), (str, dict)):
        yield {"content": output["output"]} if isinstance(output["output"], str) else output["output"]


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
        rest = _object(message.get("additional_kwargs"))
        chat: dict[str, Any] = {"role": role, "content": message.get("content")}
        if isinstance(chat["content"], list):
            *results, chat = in_openais_form({"role": str(role), "content": chat["content"]})
            yield from results
            if (text := joined_text(chat["content"])) is not None:
                chat["content"] = text
        for name in ("tool_call_id", "name"):
            if message.get(name):
                chat[name] = message[name]
        reasoning = message.get("reasoning_content") or rest.get("reasoning_content")
        if reasoning:
            chat["reasoning_content"] = reasoning
        calls = rest.get("tool_calls") or message.get("tool_calls")
        if isinstance(calls, list) and calls:
            chat["tool_calls"] = [_tool_call(call) for call in calls]
        about = _object(message.get("response_metadata"))
        if reason := finish_reason(stated_reason(about)):
            chat["finish_reason"] = reason
        yield chat


def _tool_call(call: Any) -> Any:
    if not isinstance(call, dict) or "function" in call:
        return call
    arguments = call.get("args", call.get("arguments"))
    function = {"name": call.get("name"), "arguments": arguments if isinstance(arguments, str) else text_of(arguments)}
    return {"id": call.get("id"), "type": "function", "function": function}


def _object(value: Any) -> dict[str, Any]:
    """An object, or the JSON text of one, as the bulk export has it."""
    if isinstance(value, str) and value[:1] == "{":
        try:
            value = read_json(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
