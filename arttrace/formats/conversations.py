"""Conversations kept as OpenAI messages, and single requests with their answers, as spans and rewards. Pure.

There are no token ids in them: their calls stand in the graph and out of the sequences. Where no time is given they
stand at the start of the year 2000, a second per call. Ids are hashes of the content, so that a file imported twice is
there once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.imported_run import NO_TIME
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.openai_messages import answers, inputs, plain, settings, text_of, tools
from arttrace.records import semconv
from arttrace.records.message import ToolCallPart, canonical_json
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import finite
from arttrace.wire.messages import parse_message

_SECOND = 1_000_000_000
_MESSAGES = ("messages", "traj", "trajectory", "conversation", "conversations")
_TASKS = ("task_id", "scenario", "task", "problem_id", "prompt_id")
_REWARDS = ("reward", "score")


def messages_of(item: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The messages of a conversation, or None when it is none."""
    for name in _MESSAGES:
        found = item.get(name)
        if isinstance(found, list) and found and all(_is_message(message) for message in found):
            return found
    return None


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("role"), str)


class Conversations:
    """Conversations of one source."""

    def __init__(self, source: str, ids: ContentIds) -> None:
        self._source = source
        self._ids = ids

    def records(self, item: dict[str, Any]) -> Iterator[Read]:
        """One run: a span for its agent, one per assistant message, and its reward where it has one.

        An assistant message of weight 0 is context, as in OpenAI's fine-tuning. Runs with the same task id of one
        source are a group. Raises ValueError when the item holds no messages.
        """
        messages = messages_of(item)
        if messages is None:
            raise ValueError("no list of messages with roles")
        yield from _conversation(item, messages, self._source, self._ids.next(self._source, item))


def _conversation(
    item: dict[str, Any], messages: Sequence[dict[str, Any]], source: str, trace_id: str
) -> Iterator[Read]:
    start = _time(item) or NO_TIME
    root_id = _span_id(trace_id, "root")
    tags = _tags(item)
    beside = _beside(item, *_MESSAGES, "tools", *(["tags"] if tags else []))
    task = _task(beside)
    model = item.get("model")
    definitions = tools(item["tools"]) if isinstance(item.get("tools"), list) else None
    calls = [at for at, message in enumerate(messages) if message["role"] == "assistant" and message.get("weight") != 0]
    for number, at in enumerate(calls):
        yield SpanRow(
            trace_id=trace_id,
            span_id=_span_id(trace_id, str(at)),
            parent_span_id=root_id,
            name=f"chat {model}" if isinstance(model, str) else "chat",
            start_ns=start + number * _SECOND,
            end_ns=start + (number + 1) * _SECOND,
            kind=3,
            attributes=_said(
                {
                    semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
                    semconv.TRAJECTORY_ID: trace_id,
                    semconv.REQUEST_MODEL: model if isinstance(model, str) else None,
                    semconv.INPUT_MESSAGES: inputs(messages[:at]),
                    semconv.OUTPUT_MESSAGES: answers([messages[at]]),
                    semconv.TOOL_DEFINITIONS: definitions,
                }
            ),
        )
    end = start + max(len(calls), 1) * _SECOND
    last = calls[-1] if calls else len(messages)
    tools_run = 0
    for read in _behind(messages, last, trace_id, root_id, end):
        tools_run += isinstance(read, SpanRow)
        yield read
    rest = _without_rewards(beside)
    yield SpanRow(
        trace_id=trace_id,
        span_id=root_id,
        name=f"invoke_agent {source}",
        start_ns=start,
        end_ns=end,
        attributes=_said(
            {
                semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
                semconv.TRAJECTORY_ID: trace_id,
                semconv.TRAJECTORY_SPAN_COUNT: len(calls) + tools_run,
                semconv.AGENT_NAME: source,
                semconv.PROJECT: source,
                semconv.SCENARIO: None if task is None else f"{source}/{task}",
                semconv.METADATA: text_of(rest),
                semconv.TAGS: tags,
                semconv.ENTRY_RESULT: text_of(messages[-1].get("content")) if calls else None,
            }
        ),
    )
    yield from _rewards(beside, trace_id, start)


def _behind(
    messages: Sequence[dict[str, Any]], last: int, trace_id: str, root_id: str, end_ns: int
) -> Iterator[SpanRow | LeftOutItem]:
    """What the last answer's tools returned, which no later prompt says, as spans of their own, a nanosecond apart up
    to `end_ns`; the rest is counted, also where an earlier tool call had the same id, or no id and the same words."""
    if last + 1 >= len(messages):
        return
    often = Counter(map(_known_by, (call for message in messages for call in parse_message(plain(message)).tool_calls)))
    asked = [call for call in parse_message(plain(messages[last])).tool_calls if often[_known_by(call)] == 1]
    for at in range(last + 1, len(messages)):
        message = messages[at]
        id = message.get("tool_call_id")
        call = next((one for one in asked if not id or one.id == id), None) if message["role"] == "tool" else None
        if call is None:
            yield LeftOutItem("messages behind the last answer")
            continue
        asked.remove(call)
        yield SpanRow(
            trace_id=trace_id,
            span_id=_span_id(trace_id, str(at)),
            parent_span_id=root_id,
            name=f"{semconv.OPERATION_EXECUTE_TOOL} {call.name}",
            start_ns=end_ns - (len(messages) - at),
            end_ns=end_ns - (len(messages) - at) + 1,
            attributes=_said(
                {
                    semconv.OPERATION_NAME: semconv.OPERATION_EXECUTE_TOOL,
                    semconv.TRAJECTORY_ID: trace_id,
                    semconv.TOOL_NAME: call.name,
                    semconv.TOOL_CALL_ID: call.id,
                    semconv.TOOL_CALL_ARGUMENTS: call.arguments or None,
                    semconv.TOOL_CALL_RESULT: text_of(message.get("content")),
                }
            ),
        )


def _known_by(call: ToolCallPart) -> tuple[str, ...]:
    return (call.id,) if call.id else ("", call.name, call.arguments)


def _rewards(item: dict[str, Any], trace_id: str, time_ns: int) -> Iterator[Read]:
    for name in _REWARDS:
        value = finite(item.get(name))
        if value is not None:
            yield Reward(id=f"{trace_id}:{name}", trajectory_id=trace_id, value=value, name=name, time_ns=time_ns)
        elif isinstance(item.get(name), (int, float)):
            yield LeftOutItem("rewards that are no finite numbers")


def _task(item: dict[str, Any]) -> str | None:
    return next((str(item[name]) for name in _TASKS if isinstance(item.get(name), (str, int))), None)


def _beside(item: dict[str, Any], *without: str) -> dict[str, Any]:
    """What is said beside messages, with what their metadata says."""
    inside = _object(item.get("metadata"))
    without = (*without, *(["metadata"] if inside else []))
    outside = {
        name: value
        for name, value in item.items()
        if name not in without and not (value is None and name in inside)  # an empty cell of a table
    }
    hidden = {name: value for name, value in inside.items() if name in outside and outside[name] != value}
    return {**inside, **outside, **({"metadata": hidden} if hidden else {})}


def _without_rewards(beside: dict[str, Any]) -> dict[str, Any]:
    """All of it but what is read as a reward."""
    return {name: value for name, value in beside.items() if name not in _REWARDS or finite(value) is None}


def _tags(item: dict[str, Any]) -> list[str] | None:
    """The words that stand as tags beside messages."""
    found = item.get("tags")
    return [str(tag) for tag in found] if isinstance(found, list) and found else None


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


class Exchanges:
    """Requests with their answers, in the order they were made: one whose messages extend those of an earlier one is
    of the same run.

    What stands beside them, or in the metadata of either, is the run's: runs with the same task id are a group, and of
    several rewards of one name in a run the last one counts.
    """

    def __init__(self, source: str, ids: ContentIds) -> None:
        self._source = source
        self._ids = ids
        self._runs = KnownIds()

    def records(self, item: dict[str, Any]) -> Iterator[Read]:
        """The call, and the run's rewards. Raises ValueError when the item holds no request with messages or no answer
        with choices."""
        request, response = item.get("request"), item.get("response")
        messages = messages_of(request) if isinstance(request, dict) else None
        choices = response.get("choices") if isinstance(response, dict) else None
        if (
            not isinstance(request, dict)
            or not isinstance(response, dict)
            or messages is None
            or not isinstance(choices, list)
        ):
            raise ValueError("no request with messages and response with choices")
        replies = [
            {**choice["message"], "finish_reason": choice.get("finish_reason")}
            for choice in choices
            if isinstance(choice, dict) and isinstance(choice.get("message"), dict)
        ]
        own = self._ids.next(self._source, item)
        span_id, trace_id = own[:16], self._run(messages, own)
        start = (_time(response) or NO_TIME) + len(messages)  # within one second the longer history is the later one
        offered = request.get("tools")
        reported = response.get("usage")
        usage = reported if isinstance(reported, dict) else {}
        beside = {
            **_object(request.get("metadata")),
            **_beside(item, "request", "response"),
        }
        task = _task(beside)
        rest = _without_rewards(beside)
        yield SpanRow(
            trace_id=trace_id,
            span_id=span_id,
            name=f"chat {request.get('model', '')}".strip(),
            start_ns=start,
            end_ns=start + _SECOND,
            kind=3,
            attributes=_said(
                {
                    semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
                    **settings(request),
                    semconv.RESPONSE_MODEL: response.get("model"),
                    semconv.RESPONSE_ID: response.get("id"),
                    semconv.USAGE_INPUT_TOKENS: usage.get("prompt_tokens"),
                    semconv.USAGE_OUTPUT_TOKENS: usage.get("completion_tokens"),
                    semconv.INPUT_MESSAGES: inputs(messages),
                    semconv.OUTPUT_MESSAGES: answers(replies),
                    semconv.TOOL_DEFINITIONS: tools(offered) if isinstance(offered, list) else None,
                    semconv.SCENARIO: None if task is None else f"{self._source}/{task}",
                    semconv.METADATA: text_of(rest) if rest else None,
                }
            ),
            resource={semconv.SERVICE_NAME: self._source},
        )
        yield from _rewards(beside, trace_id, start)

    def _run(self, messages: Sequence[dict[str, Any]], own: str) -> str:
        digest, found = hashlib.blake2b(digest_size=16), own
        for number, message in enumerate(messages, 1):
            digest.update(canonical_json(_bare(message)) + b"\n")
            if number < len(messages):
                found = str(self._runs.get(digest.digest()) or found)
        self._runs.keep(digest.digest(), found)
        return found


def _bare(message: dict[str, Any]) -> dict[str, Any]:
    """A message without the nulls and defaults that some clients add to an answer they send back."""
    return {name: value for name, value in message.items() if value is not None and value != []}


def _said(attributes: Attributes) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}


def _span_id(trace_id: str, name: str) -> str:
    return hashlib.blake2b(f"{trace_id}/{name}".encode(), digest_size=8).hexdigest()


def _time(item: dict[str, Any]) -> int | None:
    """When it was, by what stands beside its messages: seconds since 1970 or an ISO 8601 time."""
    for value in (item.get(name) for name in ("created", "created_at", "timestamp")):
        if isinstance(value, (int, float)) and 0 < value < 1 << 33:
            return int(value * _SECOND)
        if (found := time_ns(value)) is not None:
            return found
    return None
