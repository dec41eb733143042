"""Conversations kept as OpenAI's or Anthropic's messages as spans and rewards. Pure.

There are no token ids in them: their calls stand in the graph and out of the sequences. Where no time is given they
stand at the start of the year 2000, a second per call. Ids are hashes of the content, so that a file imported twice is
there once.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from arttrace.formats.content_ids import ContentIds
from arttrace.formats.imported_run import BEHIND, NO_NUMBERS, NO_TIME, SECOND, failed_with_others, said, tool_span
from arttrace.formats.left_out import LeftOutItem, Read
from arttrace.formats.sdks.anthropic_messages import is_system_text, unread_parts, whole_conversation
from arttrace.formats.sdks.openai_messages import (
    GrowingInputs,
    answers,
    metadata_text,
    offered_tools,
    plain,
    text_of,
    tools,
)
from arttrace.records import semconv
from arttrace.records.message import ToolCallPart, joined_text
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_object
from arttrace.records.values.times import time_ns
from arttrace.trajectories.decoding.attribute_values import finite
from arttrace.wire.messages import parse_message

_MESSAGES = ("messages", "traj", "trajectory", "conversation", "conversations")
_TASKS = ("task_id", "scenario", "task", "problem_id", "prompt_id")
REWARDS = ("reward", "score")


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


def _conversation(item: dict[str, Any], given: Sequence[dict[str, Any]], source: str, trace_id: str) -> Iterator[Read]:
    start = time_of(item) or NO_TIME
    root_id = _span_id(trace_id, "root")
    tags, offered = _tags(item), offered_tools(item.get("tools"))
    instructed = is_system_text(item.get("system")) and given[0]["role"] not in ("system", "developer")
    messages = whole_conversation(given, item["system"] if instructed else None)
    taken = {"tags": tags, "tools": offered is not None or not item.get("tools"), "system": instructed}
    beside = beside_of(item, *_MESSAGES, *(name for name, is_taken in taken.items() if is_taken))
    yield from unread_parts(given)
    task = task_of(beside)
    model = item.get("model")
    definitions = None if offered is None else tools(offered)
    calls = [at for at, message in enumerate(messages) if message["role"] == "assistant" and message.get("weight") != 0]
    if not calls:
        yield LeftOutItem("conversations without an answer")
    histories = GrowingInputs()
    for number, at in enumerate(calls):
        yield SpanRow(
            trace_id=trace_id,
            span_id=_span_id(trace_id, str(at)),
            parent_span_id=root_id,
            name=f"chat {model}" if isinstance(model, str) else "chat",
            start_ns=start + number * SECOND,
            end_ns=start + (number + 1) * SECOND,
            kind=3,
            attributes=said(
                {
                    semconv.OPERATION_NAME: semconv.OPERATION_CHAT,
                    semconv.TRAJECTORY_ID: trace_id,
                    semconv.REQUEST_MODEL: model if isinstance(model, str) else None,
                    semconv.INPUT_MESSAGES: histories.text(messages[:at]),
                    semconv.OUTPUT_MESSAGES: answers([messages[at]]),
                    semconv.TOOL_DEFINITIONS: definitions,
                }
            ),
        )
    end = start + max(len(calls), 1) * SECOND
    last = calls[-1] if calls else len(messages)
    tools_run = 0
    for read in chain(_failed(messages, calls, trace_id, start), _behind(messages, last, trace_id, end)):
        tools_run += isinstance(read, SpanRow)
        yield read
    rest = without_rewards(beside)
    yield SpanRow(
        trace_id=trace_id,
        span_id=root_id,
        name=f"invoke_agent {source}",
        start_ns=start,
        end_ns=end,
        attributes=said(
            {
                semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
                semconv.TRAJECTORY_ID: trace_id,
                semconv.TRAJECTORY_SPAN_COUNT: len(calls) + tools_run,
                semconv.AGENT_NAME: source,
                semconv.PROJECT: source,
                semconv.SCENARIO: None if task is None else f"{source}/{task}",
                semconv.METADATA: metadata_text(rest),
                semconv.TAGS: tags,
                semconv.ENTRY_RESULT: _plain_text(messages[-1].get("content")) if calls else None,
            }
        ),
    )
    yield from rewards_beside(beside, trace_id, start)


def _plain_text(content: Any) -> str | None:
    return text_of(content if (text := joined_text(content)) is None else text)


def _failed(
    messages: Sequence[dict[str, Any]], calls: Sequence[int], trace_id: str, start_ns: int
) -> Iterator[SpanRow]:
    """The results of tools of which one failed, which no prompt says, as spans before the call that was given them."""
    for number, (before, after) in enumerate(pairwise(calls), 1):
        end_ns = start_ns + number * SECOND
        for at, call in failed_with_others(messages[:after], before):
            yield _tool(call, messages[at], trace_id, at, end_ns - (len(messages) - at))


def _behind(
    messages: Sequence[dict[str, Any]], last: int, trace_id: str, end_ns: int
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
            yield LeftOutItem(BEHIND)
            continue
        asked.remove(call)
        yield _tool(call, message, trace_id, at, end_ns - (len(messages) - at))


def _tool(call: ToolCallPart, message: dict[str, Any], trace_id: str, at: int, start_ns: int) -> SpanRow:
    own, root = (_span_id(trace_id, name) for name in (str(at), "root"))
    return tool_span(call, message, trace_id, own, start_ns, parent_span_id=root)


def _known_by(call: ToolCallPart) -> tuple[str, ...]:
    return (call.id,) if call.id else ("", call.name, call.arguments)


def rewards_beside(item: dict[str, Any], trace_id: str, time_ns: int) -> Iterator[Read]:
    """What stands beside as a reward."""
    for name in REWARDS:
        value = finite(item.get(name))
        if value is not None:
            yield Reward(id=f"{trace_id}:{name}", trajectory_id=trace_id, value=value, name=name, time_ns=time_ns)
        elif isinstance(item.get(name), (int, float)):
            yield LeftOutItem("rewards that are no finite numbers")
        elif item.get(name) is not None:
            yield LeftOutItem(NO_NUMBERS)


def task_of(item: dict[str, Any]) -> str | None:
    """The task that runs are grouped by."""
    return next((str(item[name]) for name in _TASKS if isinstance(item.get(name), (str, int))), None)


def beside_of(item: dict[str, Any], *without: str) -> dict[str, Any]:
    """What is said beside messages, with what their metadata says."""
    inside = json_object(item.get("metadata"))
    without = (*without, *(["metadata"] if inside else []))
    outside = {
        name: value
        for name, value in item.items()
        if name not in without and not (value is None and name in inside)  # an empty cell of a table
    }
    hidden = {name: value for name, value in inside.items() if name in outside and outside[name] != value}
    return {**inside, **outside, **({"metadata": hidden} if hidden else {})}


def without_rewards(beside: dict[str, Any]) -> dict[str, Any]:
    """All of it but what is read as a reward."""
    return {name: value for name, value in beside.items() if name not in REWARDS or finite(value) is None}


def _tags(item: dict[str, Any]) -> list[str] | None:
    """The words that stand as tags beside messages."""
    found = item.get("tags")
    return [str(tag) for tag in found] if isinstance(found, list) and found else None


def _span_id(trace_id: str, name: str) -> str:
    return hashlib.blake2b(f"{trace_id}/{name}".encode(), digest_size=8).hexdigest()


def time_of(item: dict[str, Any]) -> int | None:
    """When it was, by what stands beside its messages."""
    for value in (item.get(name) for name in ("created", "created_at", "timestamp")):
        if (found := time_ns(value)) is not None:
            return found
    return None
