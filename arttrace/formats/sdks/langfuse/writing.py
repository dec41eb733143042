"""Spans as Langfuse shows them best: types, chats, parameters, usage, and what of its run every span says. Pure.

Nothing is lost: what Langfuse has no place for goes along as one text of the observation's metadata, from which
`reading.observation` makes the very span again. The mapping is that of Langfuse server 4
(packages/shared/src/server/otel/OtelIngestionProcessor.ts); docs/langfuse.md has it as a table.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from arttrace.formats.sdks.langfuse import names
from arttrace.formats.sdks.openai_messages import answers, inputs, tools
from arttrace.records import semconv
from arttrace.records.message import Message
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.finish_reasons import CUT_SHORT, finish_reason
from arttrace.trajectories.decoding.attribute_values import finite, from_json, shallow_object, text
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.wire.messages import openai_message

_json = msgspec.json.Encoder()

_SENT_AS_THEY_ARE: Final = (
    semconv.OPERATION_NAME,
    semconv.PROVIDER_NAME,
    semconv.REQUEST_MODEL,
    semconv.RESPONSE_MODEL,
    semconv.RESPONSE_ID,
    semconv.RESPONSE_FINISH_REASONS,
    semconv.AGENT_NAME,
    semconv.AGENT_ID,
    semconv.AGENT_DESCRIPTION,
    semconv.TOOL_NAME,
    semconv.TOOL_TYPE,
    semconv.TOOL_CALL_ID,
    semconv.TRAJECTORY_ID,
    semconv.POLICY_VERSION,
    "gen_ai.usage.cost",
    names.LEVEL,
    names.STATUS_MESSAGE,
)
_PARAMETERS: Final = {
    semconv.REQUEST_TEMPERATURE: "temperature",
    semconv.REQUEST_TOP_P: "top_p",
    semconv.REQUEST_TOP_K: "top_k",
    semconv.REQUEST_MAX_TOKENS: "max_tokens",
    semconv.REQUEST_SEED: "seed",
    semconv.REQUEST_STOP_SEQUENCES: "stop",
    semconv.REQUEST_FREQUENCY_PENALTY: "frequency_penalty",
    semconv.REQUEST_PRESENCE_PENALTY: "presence_penalty",
    semconv.REQUEST_CHOICE_COUNT: "n",
}


class Experiment(msgspec.Struct, frozen=True):
    """The place of a run among those that attempted the same: one experiment holds one run of each item."""

    id: str
    name: str
    item: str


class ShownRun(msgspec.Struct, frozen=True, kw_only=True):
    """What every span says of its run. `root` is the root span's (trace id, span id); `metadata` stands on it alone."""

    name: str | None
    root: tuple[str, str]
    tags: tuple[str, ...] = ()
    session: str | None = None
    user: str | None = None
    environment: str | None = None
    release: str | None = None
    metadata: Mapping[str, Any] = {}
    experiment: Experiment | None = None


class AsCaptured(msgspec.Struct, frozen=True):
    """The text under `names.SPAN_KEY`: the span without the attributes named in `shown`, which stand in the
    observation's input and output."""

    span: SpanRow
    shown: tuple[str, ...] = ()


def observation(span: SpanRow, run: ShownRun, *, read: SpanRow | None = None) -> SpanRow:
    """The span as it is sent to Langfuse. `read` is the span under the names of the conventions, where it came under
    others (formats.foreign.normalise)."""
    attributes = (span if read is None else read).attributes
    found: Attributes = {name: attributes[name] for name in _SENT_AS_THEY_ARE if attributes.get(name) is not None}
    operation = attributes.get(semconv.OPERATION_NAME)
    shown: tuple[str, ...] = ()
    if operation in semconv.CALL_OPERATIONS:
        found.update(_call(span, attributes))
        chat, shown = _chat(attributes)
        found.update(chat)
        if span.status_code != 2 and (warning := _warning(attributes)):
            found |= {names.LEVEL: "WARNING", names.STATUS_MESSAGE: warning}
    elif operation == semconv.OPERATION_EXECUTE_TOOL:
        shown = _texts(attributes, found, semconv.TOOL_CALL_ARGUMENTS, semconv.TOOL_CALL_RESULT)
    elif operation == semconv.OPERATION_INVOKE_AGENT:
        shown = _texts(attributes, found, semconv.ENTRY_ARGUMENTS, semconv.ENTRY_RESULT)
    elif semconv.HTTP_METHOD in attributes:
        found.update(_http(attributes))
    shown = tuple(name for name in shown if span.attributes.get(name) == attributes.get(name))
    rest = {name: value for name, value in span.attributes.items() if name not in shown}
    document = AsCaptured(msgspec.structs.replace(span, attributes=rest), shown)
    found[f"{names.METADATA}.{names.SPAN_KEY}"] = _json.encode(document).decode()
    found.update(_of_run(span, run))
    of_program = {names.ENVIRONMENT: run.environment, names.RELEASE: run.release}
    resource = {**span.resource, **{name: value for name, value in of_program.items() if value}}
    message = span.status_message or (str(attributes.get(semconv.ERROR_TYPE) or "") if span.status_code == 2 else "")
    return SpanRow(
        trace_id=span.trace_id,
        span_id=span.span_id,
        parent_span_id=span.parent_span_id,
        name=span.name,
        start_ns=span.start_ns,
        end_ns=span.end_ns,
        kind=span.kind,
        status_code=span.status_code,
        status_message=message,
        attributes=found,
        resource=_writable(resource),
        scope_name=span.scope_name,
        scope_version=span.scope_version,
    )


def as_it_says(span: SpanRow, environment: str | None = None, release: str | None = None) -> ShownRun:
    """What a span says of its run by itself, where the others are not at hand."""
    said = span.attributes
    is_root = semconv.ENTRY in said or semconv.ENTRY_NAME in said
    metadata = shallow_object(said.get(semconv.METADATA)) if is_root else {}
    tags = said.get(names.TRACE_TAGS)
    return ShownRun(
        name=text(said.get(names.TRACE_NAME)),
        root=(span.trace_id, span.span_id) if is_root else ("", ""),
        tags=tuple(tag for tag in tags if isinstance(tag, str)) if isinstance(tags, list) else (),
        session=text(said.get(names.SESSION_ID)),
        user=text(said.get(names.USER_ID)),
        environment=environment,
        release=release,
        metadata=metadata,
    )


def _of_run(span: SpanRow, run: ShownRun) -> Attributes:
    found: Attributes = {names.TRACE_NAME: run.name} if run.name else {}
    if run.tags:
        found[names.TRACE_TAGS] = list(run.tags)
    if run.session:
        found[names.SESSION_ID] = run.session
    if run.user:
        found[names.USER_ID] = run.user
    if run.experiment is not None:
        found[names.EXPERIMENT_ID] = run.experiment.id
        found[names.EXPERIMENT_NAME] = run.experiment.name
        found[names.EXPERIMENT_ITEM_ID] = run.experiment.item
        found[names.EXPERIMENT_ITEM_ROOT] = run.root[1]
    if (span.trace_id, span.span_id) == run.root:
        if span.parent_span_id is not None:  # in somebody else's trace
            found[names.IS_APP_ROOT] = True
        if run.metadata:
            found[names.TRACE_METADATA] = _json.encode(dict(run.metadata)).decode()
    return found


def _call(span: SpanRow, attributes: Attributes) -> Attributes:
    found: Attributes = {}
    parameters = {name: attributes[key] for key, name in _PARAMETERS.items() if attributes.get(key) is not None}
    if parameters:
        found[names.MODEL_PARAMETERS] = _json.encode(parameters).decode()
    usage = _usage(attributes)
    if usage:
        found[names.USAGE_DETAILS] = _json.encode(usage).decode()
    first = finite(attributes.get(semconv.RESPONSE_TIME_TO_FIRST_CHUNK))
    if first is not None and 0 <= first < 86_400:
        at = datetime.datetime.fromtimestamp(span.start_ns / 1e9 + first, tz=datetime.UTC)
        found[names.COMPLETION_START_TIME] = at.isoformat(timespec="milliseconds")
    return found


def _usage(attributes: Attributes) -> dict[str, int]:
    """Tokens in buckets that exclude each other, and their total."""

    def count(name: str) -> int:
        value = attributes.get(name)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    taken, made = count(semconv.USAGE_INPUT_TOKENS), count(semconv.USAGE_OUTPUT_TOKENS)
    if not taken and not made:
        return {}
    cached, written = count(semconv.USAGE_CACHE_READ_INPUT_TOKENS), count(semconv.USAGE_CACHE_WRITE_INPUT_TOKENS)
    reasoning = count(semconv.USAGE_REASONING_OUTPUT_TOKENS)
    buckets = {
        "input": max(taken - cached - written, 0),
        "input_cached_tokens": cached,
        "input_cache_creation": written,
        "output": max(made - reasoning, 0),
        "output_reasoning_tokens": reasoning,
        "total": taken + made,
    }
    return {name: value for name, value in buckets.items() if value or name in ("input", "output", "total")}


def _warning(attributes: Attributes) -> str:
    """Why an answer is not whole though nothing failed; "" for one that is."""
    stated = from_json(attributes.get(semconv.RESPONSE_FINISH_REASONS))
    of_answers = [reason for _, reason in MessageReader().choices(attributes.get(semconv.OUTPUT_MESSAGES))]
    reasons = dict.fromkeys(map(finish_reason, [*of_answers, *(stated if isinstance(stated, list) else ())]))
    interrupted = text(attributes.get(semconv.INTERRUPTED))
    said = [f"interrupted: {interrupted}"] if interrupted else []
    return ", ".join([*said, *(f"ended by {reason}" for reason in reasons if reason in CUT_SHORT)])


# --- input and output --------------------------------------------------------------------------------------


def _chat(attributes: Attributes) -> tuple[Attributes, tuple[str, ...]]:
    """Input and output as messages in OpenAI's form, and the attributes that can be made from them again."""
    reader = MessageReader()
    system = reader.instructions(attributes.get(semconv.SYSTEM_INSTRUCTIONS))
    asked = reader.read(attributes.get(semconv.INPUT_MESSAGES))
    messages = [_shown_message(one) for one in ((system, *asked) if system is not None else asked)]
    definitions = from_json(attributes.get(semconv.TOOL_DEFINITIONS))
    replies = [
        (_shown_message(message), reason) for message, reason in reader.choices(attributes.get(semconv.OUTPUT_MESSAGES))
    ]
    if not messages and not replies:
        return {}, ()
    with_tools = isinstance(definitions, list) and bool(definitions)
    shown_input = {"messages": messages, "tools": definitions} if with_tools else messages
    shown_output = [reply for reply, _ in replies]
    found: Attributes = {
        names.INPUT: _json.encode(shown_input).decode(),
        names.OUTPUT: _json.encode(shown_output[0] if len(shown_output) == 1 else shown_output).decode(),
    }
    back = chat_attributes(
        from_json(found[names.INPUT]), from_json(found[names.OUTPUT]), attributes.get(semconv.RESPONSE_FINISH_REASONS)
    )
    return found, tuple(name for name, value in back.items() if attributes.get(name) == value)


def chat_attributes(attributes: Any, output: Any, reasons: Any) -> Attributes:
    """What `observation` shows as a chat, under the names of the conventions again; `reasons` are its
    `gen_ai.response.finish_reasons`."""
    found: Attributes = {}
    messages = attributes.get("messages") if isinstance(attributes, dict) else attributes
    if isinstance(messages, list):
        found[semconv.INPUT_MESSAGES] = inputs([_plain(one) for one in messages])
    if isinstance(attributes, dict) and isinstance(attributes.get("tools"), list):
        found[semconv.TOOL_DEFINITIONS] = tools(attributes["tools"])
    if output is not None:
        replies = output if isinstance(output, list) else [output]
        whys: Sequence[Any] = reasons if isinstance(reasons, list) else ()
        plain = [{"role": "assistant", "content": one} if isinstance(one, str) else _plain(one) for one in replies]
        for reply, why in zip(plain, whys, strict=False):
            if isinstance(reply, dict):
                reply.setdefault("finish_reason", why)
        found[semconv.OUTPUT_MESSAGES] = answers(plain)
    return found


def _shown_message(message: Message) -> dict[str, Any]:
    """OpenAI's form, the reasoning as Langfuse shows it."""
    chat = openai_message(message)
    reasoning = chat.pop("reasoning_content", None)
    if reasoning is not None:
        chat["thinking"] = [{"type": "thinking", "content": reasoning}]
    return chat


def _plain(message: Any) -> Any:
    """The inverse of `_shown_message`."""
    if not isinstance(message, dict) or not isinstance(message.get("thinking"), list):
        return message
    texts = [one.get("content", one.get("thinking")) for one in message["thinking"] if isinstance(one, dict)]
    rest = {name: value for name, value in message.items() if name != "thinking"}
    return {**rest, "reasoning_content": "".join(one for one in texts if isinstance(one, str))}


def _texts(attributes: Attributes, found: Attributes, asked: str, answered: str) -> tuple[str, ...]:
    """Input and output as they are; the attributes that stand there word for word."""
    shown = []
    for name, place in ((asked, names.INPUT), (answered, names.OUTPUT)):
        value = attributes.get(name)
        if value is not None:
            found[place] = value if isinstance(value, str) else _json.encode(value).decode()
            if isinstance(value, str):
                shown.append(name)
    return tuple(shown)


def _http(attributes: Attributes) -> Attributes:
    """A request of a tool's: what was asked for, and how it was answered."""
    asked = {
        "method": attributes[semconv.HTTP_METHOD],
        "url": attributes.get(semconv.URL_FULL, attributes.get(semconv.SERVER_ADDRESS)),
    }
    answered = {"status": attributes.get(semconv.HTTP_STATUS_CODE), "bytes": attributes.get(semconv.HTTP_RESPONSE_SIZE)}
    return {names.INPUT: _json.encode(asked).decode(), names.OUTPUT: _json.encode(answered).decode()}


def _writable(resource: Attributes) -> Attributes:
    """Resource attributes that Langfuse takes: none without a value."""
    return {name: value for name, value in resource.items() if value is not None and value != [] and value != {}}
