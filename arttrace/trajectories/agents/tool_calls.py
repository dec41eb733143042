"""Tool calls of a trajectory: recorded by `execute_tool` spans, and inferred from the messages where none was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.call import Call
from arttrace.records.message import joined_text
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import ToolCall
from arttrace.trajectories.decoding.attribute_values import as_text, as_written, from_json, text
from arttrace.trajectories.decoding.operation import span_error
from arttrace.trajectories.messages.tool_results import ToolExchange


def recorded_tool_call(span: SpanRow, agent_id: str) -> ToolCall:
    """The tool call that an `execute_tool` span recorded; its id is the span's when the call id is not known."""
    attributes = span.attributes
    return ToolCall(
        id=text(attributes.get(semconv.TOOL_CALL_ID)) or span.span_id,
        agent_id=agent_id,
        name=text(attributes.get(semconv.TOOL_NAME)) or span.name.removeprefix(semconv.OPERATION_EXECUTE_TOOL).strip(),
        arguments=as_written(attributes.get(semconv.TOOL_CALL_ARGUMENTS)) or "",
        result=_result(attributes.get(semconv.TOOL_CALL_RESULT)),
        error=span_error(span),
        start_ns=span.start_ns,
        end_ns=span.end_ns,
    )


def _result(value: Any) -> str | None:
    """A result as a model would read it: a JSON text that holds a string, or text in parts, is that text."""
    decoded = from_json(value)
    decoded = decoded if (joined := joined_text(decoded)) is None else joined
    return decoded if isinstance(decoded, str) else as_text(value)


_TWINS_READ = 64


class Tooling(msgspec.Struct, frozen=True):
    """The tool calls of one agent span in order of start, then as asked, and the id given to each recorded one, by
    span id."""

    calls: list[ToolCall]
    id_of_span: dict[str, str]


def tool_calls(
    recorded: Mapping[str, ToolCall],
    exchanges: Iterable[ToolExchange],
    calls: Sequence[Call],
    agent_of: Sequence[str],
) -> Tooling:
    """Recorded tool calls (by span id) and the asked-for ones that no span recorded; `agent_of` is of the calls.

    The two are the same call when the span has an id under which the call was sampled, or came back. A span without one
    is the first with the same agent and name whose arguments hold those asked for (a function's defaults may have been
    added). The time of an inferred call is a bound: from the end of the call that asked to the start of the call that
    saw the answer.
    """
    by_start = sorted(recorded.items(), key=lambda item: (item[1].start_ns, item[0]))
    by_id = {(call.agent_id, call.id): span_id for span_id, call in reversed(by_start)}
    anonymous: dict[tuple[str, str], list[str]] = {}
    for span_id, call in by_start:
        if call.id == span_id:
            anonymous.setdefault((call.agent_id, call.name), []).append(span_id)

    found: dict[str, ToolCall] = dict(by_start)
    asked: list[tuple[int, ToolCall]] = []
    seen: set[tuple[str, int, int, str | None]] = set()
    for order, exchange in enumerate(exchanges):
        agent_id, part = agent_of[exchange.call], exchange.part
        if (same := (agent_id, exchange.answer, exchange.position, part.id)) in seen:  # one answer, sampled twice
            continue
        seen.add(same)
        ids = exchange.ids if by_id else ()
        known = next((by_id[agent_id, id] for id in ids if (agent_id, id) in by_id), None)
        if known is not None:
            # A framework may run the tool under an id of its own.
            found[known] = _with_what_was_asked(found[known], part.id or found[known].id, part.arguments, exchange)
            continue
        id = exchange.id(calls)
        unclaimed = anonymous.get((agent_id, part.name), [])
        twin = next(
            (span for span in unclaimed[:_TWINS_READ] if _holds(recorded[span].arguments, part.arguments)), None
        )
        if twin is not None:
            unclaimed.remove(twin)
            found[twin] = _with_what_was_asked(found[twin], id, part.arguments, exchange)
            continue
        asking = calls[exchange.call]
        inferred = ToolCall(
            id=id,
            agent_id=agent_id,
            name=part.name,
            arguments=part.arguments,
            result=exchange.result,
            start_ns=asking.end_ns,
            end_ns=exchange.seen_ns if exchange.seen_ns is not None else asking.end_ns,
            inferred=True,
        )
        asked.append((order, inferred))
    ordered = [(call.start_ns, -1, span_id, call) for span_id, call in found.items()]
    ordered += [(call.start_ns, order, call.id, call) for order, call in asked]
    return Tooling(
        [call for *_, call in sorted(ordered, key=lambda item: item[:3])],
        {span_id: call.id for span_id, call in found.items()},
    )


def _with_what_was_asked(recorded: ToolCall, id: str, arguments: str, exchange: ToolExchange) -> ToolCall:
    """The recorded call under its id; what its span does not say (many frameworks keep content out) the messages do."""
    result = exchange.result if recorded.result is None and recorded.error is None else recorded.result
    return msgspec.structs.replace(recorded, id=id, arguments=recorded.arguments or arguments, result=result)


_redacted = re.compile(r"\[redacted, [0-9]+ characters\]").search


def _holds(recorded: str, asked: str) -> bool:
    """Whether recorded arguments are the asked ones, or hold them; of redacted ones nobody knows better."""
    if _redacted(recorded) and _redacted(asked):
        return True
    have, want = from_json(recorded or "{}"), from_json(asked or "{}")
    if isinstance(have, dict) and isinstance(want, dict):
        return all(name in have and have[name] == value for name, value in want.items())
    return bool(have == want)
