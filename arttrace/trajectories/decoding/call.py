"""One `chat` span becomes one Call: attributes to messages, choices, tools and token truth, without ever raising.

Numbers may come in digits. An attribute of another type than its own is left out (None or empty), so that it costs
nothing else; one that says how the call was sampled counts as a setting that altered it. The newest GenAI names are
read.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from arttrace.records import semconv
from arttrace.records.call import Call, Choice
from arttrace.records.message import Message, MessageTexts, OtherPart, ToolCallPart
from arttrace.records.span import SpanRow
from arttrace.records.values.finish_reasons import finish_reason
from arttrace.records.values.tokens import TokenIds, decode_logprobs, decode_token_ids
from arttrace.trajectories.decoding.attribute_values import any_number, from_json, or_none, whole_number
from arttrace.trajectories.decoding.messages import MessageReader, has_unnamed_calls
from arttrace.trajectories.decoding.operation import span_error
from arttrace.trajectories.decoding.shared_prefixes import MessageList


def _named(attribute: str) -> Any:
    return msgspec.field(default=None, name=attribute)


class _Attributes(msgspec.Struct, gc=False):
    """What is read of a call's span. `Any` is read further on."""

    input_messages: Any = _named(semconv.INPUT_MESSAGES)
    output_messages: Any = _named(semconv.OUTPUT_MESSAGES)
    system_instructions: Any = _named(semconv.SYSTEM_INSTRUCTIONS)
    tool_definitions: Any = _named(semconv.TOOL_DEFINITIONS)
    prompt_token_ids: Any = _named(semconv.PROMPT_TOKEN_IDS)
    request_model: str | None = _named(semconv.REQUEST_MODEL)
    response_model: str | None = _named(semconv.RESPONSE_MODEL)
    policy_version: str | None = _named(semconv.POLICY_VERSION)
    temperature: Any = _named(semconv.REQUEST_TEMPERATURE)
    sampling: str | None = _named(semconv.SAMPLING)
    response_id: str | None = _named(semconv.RESPONSE_ID)
    previous_response_id: str | None = _named(semconv.PREVIOUS_RESPONSE_ID)
    prompt_form: str | None = _named(semconv.PROMPT_FORM)
    messages_kept: Any = _named(semconv.MESSAGES_KEPT)
    compacted: bool | None = _named(semconv.CONVERSATION_COMPACTED)
    input_tokens: Any = _named(semconv.USAGE_INPUT_TOKENS)
    output_tokens: Any = _named(semconv.USAGE_OUTPUT_TOKENS)
    interrupted: str | None = _named(semconv.INTERRUPTED)
    truncated: Any = _named(semconv.TRUNCATED)
    masked: Any = _named(semconv.MASKED)
    execution_id: str | None = _named(semconv.EXECUTION_ID)
    execution_parent_id: str | None = _named(semconv.EXECUTION_PARENT_ID)


# Sampling settings with their values that leave the policy's own distribution as it is; vLLM takes 0 and -1 for all.
_NEUTRAL: dict[str, tuple[int, ...]] = {
    semconv.REQUEST_TOP_P: (1,),
    semconv.REQUEST_TOP_K: (-1, 0),
    semconv.REQUEST_FREQUENCY_PENALTY: (0,),
    semconv.REQUEST_PRESENCE_PENALTY: (0,),
}
_SAMPLING = frozenset((*_NEUTRAL, semconv.SAMPLING_SETTINGS, semconv.REQUEST_TEMPERATURE))


def decode_call(span: SpanRow, reader: MessageReader) -> Call:
    """The call that a `chat` span recorded."""
    said = _read(span.attributes)
    messages = asked = reader.read(said.input_messages)
    instructions = reader.instructions(said.system_instructions)
    tools = reader.tools(said.tool_definitions)
    answers = reader.choices(said.output_messages)
    dropped = _dropped(span)
    if instructions is not None:
        messages = reader.instructed(instructions, messages)
    return Call(
        span_id=span.span_id,
        trace_id=span.trace_id,
        parent_span_id=span.parent_span_id,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        request_model=said.request_model or "",
        response_model=said.response_model or "",
        policy_version=said.policy_version or None,
        messages=messages,
        tools=tools,
        choices=_choices(answers, span.attributes),
        prompt_token_ids=or_none(_prompt_token_ids, said.prompt_token_ids),
        # Whatever was asked for: the gateway let the policy sample by itself.
        temperature=None if said.sampling == "policy" else any_number(said.temperature),
        altered_sampling=() if said.sampling == "policy" else _altered_sampling(span.attributes),
        processed_logprobs=said.sampling == "processed",
        response_id=said.response_id or None,
        previous_response_id=said.previous_response_id or None,
        compacted=said.compacted is True,
        prompt_form=said.prompt_form or None,
        input_tokens=whole_number(said.input_tokens),
        output_tokens=whole_number(said.output_tokens),
        error=span_error(span),
        interrupted=said.interrupted or None,
        truncated=bool(said.truncated or dropped),
        masked=bool(said.masked),
        unreadable=_unreadable(
            said.truncated,
            (semconv.INPUT_MESSAGES, said.input_messages, asked),
            (semconv.OUTPUT_MESSAGES, said.output_messages, answers),
            (semconv.SYSTEM_INSTRUCTIONS, said.system_instructions, instructions),
            (semconv.TOOL_DEFINITIONS, said.tool_definitions, tools),
        )
        + _not_recorded(span, said, messages, answers)
        + dropped
        + kept_by_server(said.messages_kept),
        execution_id=said.execution_id or None,
        execution_parent_id=said.execution_parent_id or None,
    )


def _dropped(span: SpanRow) -> tuple[str, ...]:
    """What the sender's limits kept from a call, by the variables that set them. Of events that counts where a call
    says its messages in them: a stream may have one for each of its chunks as well."""
    if span.rest is None:
        return ()
    says_in_events = span.rest.dropped_events and any(event.name.startswith("gen_ai.") for event in span.events)
    return (
        *(("attributes beyond OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT",) if span.rest.dropped_attributes else ()),
        *(("events beyond OTEL_SPAN_EVENT_COUNT_LIMIT",) if says_in_events else ()),
    )


def _not_recorded(
    span: SpanRow, said: _Attributes, messages: tuple[Message, ...], answers: list[tuple[Message, str | None]]
) -> tuple[str, ...]:
    """The attributes in which another SDK's span of a call lacks what it had: a prompt to an answer, tool calls where
    it ended in some, and the name of one. What is captured here is as the call was."""
    if semconv.TRAJECTORY_ID in span.attributes:
        return ()
    found = [message for message, _ in answers]
    no_prompt = said.input_messages is None and not messages and any(message.parts for message in found)
    no_calls = any(
        finish_reason(reason) in _CALLS and not {ToolCallPart, OtherPart} & {type(part) for part in message.parts}
        for message, reason in answers
    )
    return (
        *((semconv.INPUT_MESSAGES,) if no_prompt else ()),
        *((semconv.OUTPUT_MESSAGES,) if no_calls or any(map(has_unnamed_calls, found)) else ()),
    )


_CALLS = frozenset(("tool_calls", "function_call"))


KEPT: Final = "messages that the server keeps"


def kept_by_server(names: Any) -> tuple[str, ...]:
    """What a call lacks of its prompt, by the fields of the request that name what the server keeps."""
    listed = names if isinstance(names, list | tuple) else ()
    return tuple(f"{KEPT} under {name}" for name in listed if isinstance(name, str))


def _unreadable(cut: Any, *content: tuple[str, Any, object]) -> tuple[str, ...]:
    """The names of attributes that say something of which nothing was read, and of those that were `cut`."""
    named = cut if isinstance(cut, list | tuple) else ()
    return tuple(
        name for name, value, read in content if name in named or (value and not read and _says_something(value))
    )


def _says_something(value: Any) -> bool:
    if isinstance(value, MessageList):
        return value.size > 0
    return any(True for _ in value) if isinstance(value, MessageTexts) else bool(from_json(value))


def _read(attributes: dict[str, Any]) -> _Attributes:
    try:
        return msgspec.convert(attributes, _Attributes)
    except msgspec.ValidationError:
        return msgspec.convert({name: value for name, value in attributes.items() if _fits(name, value)}, _Attributes)


def _fits(name: str, value: Any) -> bool:
    try:
        msgspec.convert({name: value}, _Attributes)
    except msgspec.ValidationError:
        return False
    return True


def _prompt_token_ids(value: Any) -> TokenIds | None:
    ids = value if isinstance(value, TokenIds) else decode_token_ids(value)
    return None if ids is None else TokenIds.of(ids)


def _altered_sampling(attributes: dict[str, Any]) -> tuple[str, ...]:
    """The names of settings that may have changed what was sampled; one that cannot be read may have."""
    if attributes.keys().isdisjoint(_SAMPLING):
        return ()
    altered = [
        name
        for name, neutral in _NEUTRAL.items()
        if (value := attributes.get(name)) is not None and any_number(value) not in neutral
    ]
    temperature = attributes.get(semconv.REQUEST_TEMPERATURE)
    if temperature is not None and any_number(temperature) is None:
        altered.append(semconv.REQUEST_TEMPERATURE)
    further = from_json(attributes.get(semconv.SAMPLING_SETTINGS))
    names = further if isinstance(further, (list, tuple)) else () if further is None else (further,)
    return (*altered, *(name if isinstance(name, str) else semconv.SAMPLING_SETTINGS for name in names))


def _choices(answers: list[tuple[Message, str | None]], attributes: dict[str, Any]) -> tuple[Choice, ...]:
    """The answers, each with its own reason to finish, else with that which the span has in its place."""
    found = list(answers)
    while attributes.get(f"{semconv.TOKEN_IDS}.{len(found)}" if found else semconv.TOKEN_IDS) is not None:
        found.append((Message("assistant", ()), None))
    beside = from_json(attributes.get(semconv.RESPONSE_FINISH_REASONS))
    if isinstance(beside, list | tuple) and len(beside) == len(found):
        stated = [reason if isinstance(reason, str) else None for reason in beside]
        found = [(message, own or reason) for (message, own), reason in zip(found, stated, strict=True)]
    return tuple(_choice(index, message, reason, attributes) for index, (message, reason) in enumerate(found))


def _choice(index: int, message: Message, reason: str | None, attributes: dict[str, Any]) -> Choice:
    suffix = f".{index}" if index else ""
    ids, logprobs = attributes.get(semconv.TOKEN_IDS + suffix), attributes.get(semconv.LOGPROBS + suffix)
    prompt = attributes.get(semconv.PROMPT_TOKEN_IDS + suffix) if index else None
    return Choice(
        index=index,
        message=message,
        finish_reason=reason,
        token_ids=None if ids is None else or_none(decode_token_ids, ids),
        logprobs=None if logprobs is None else or_none(decode_logprobs, logprobs),
        prompt_token_ids=None if prompt is None else or_none(decode_token_ids, prompt),
    )
