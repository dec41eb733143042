"""Tool calls of a trajectory: recorded by `execute_tool` spans, and inferred from the messages where none was."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.call import Call
from arttrace.records.message import ToolCallPart, joined_text
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
        span_id=span.span_id,
    )


def _result(value: Any) -> str | None:
    """A result as a model would read it: a JSON text that holds a string, or text in parts, is that text."""
    decoded = from_json(value)
    decoded = decoded if (joined := joined_text(decoded)) is None else joined
    return decoded if isinstance(decoded, str) else as_text(value)


_TWINS_READ = 64


class Tooling(msgspec.Struct, frozen=True):
    """The tool calls of one agent span in order of start, then as asked, and the id given to each recorded one, by
    span id. `unanswered` are those of them that were asked for and have neither result nor error, each with the node of
    the answer that asked; `unasked` the recorded ones with an id of their own that no message asked for."""

    calls: list[ToolCall]
    id_of_span: dict[str, str]
    unanswered: list[tuple[ToolCall, int]]
    unasked: list[ToolCall]


def tool_calls(
    recorded: Mapping[str, ToolCall],
    exchanges: Iterable[ToolExchange],
    calls: Sequence[Call],
    agent_of: Sequence[str],
) -> Tooling:
    """Recorded tool calls (by span id) and the asked-for ones that no span recorded; `agent_of` is of the calls.

    The two are the same call when the span has an id under which the call was sampled, or came back. Some servers give
    one id to a call of each answer: of several spans under it that one is meant which has the name and the arguments
    asked for, and none where all are taken by other calls. A span without an id is the first with the same agent and
    name whose arguments hold those asked for (a function's defaults may have been added); so is one whose id no message
    has: Google ADK gives Gemini's calls, and langchain-ollama Ollama's, ids that it keeps to itself. The time of an
    inferred call is a bound: from the end of the call that asked to the start of the call that saw the answer.
    """
    by_start = sorted(recorded.items(), key=lambda item: (item[1].start_ns, item[0]))
    by_id: dict[tuple[str, str], list[str]] = {}
    for span_id, call in by_start:
        by_id.setdefault((call.agent_id, call.id), []).append(span_id)
    found: dict[str, ToolCall] = dict(by_start)
    asked: list[tuple[int, ToolCall]] = []
    seen: set[tuple[str, int, int, str | None]] = set()
    distinct: list[ToolExchange] = []
    for exchange in exchanges:
        same = (agent_of[exchange.call], exchange.answer, exchange.position, exchange.part.id)
        if same not in seen:  # else one answer, sampled twice
            seen.add(same)
            distinct.append(exchange)
    executions = _executions(distinct, by_id, recorded, agent_of) if by_id else {}
    in_messages = {(agent_of[exchange.call], id) for exchange in distinct for id in exchange.ids}
    anonymous: dict[tuple[str, str], list[str]] = {}
    foreign: dict[tuple[str, str], list[str]] = {}
    for span_id, call in by_start:
        if call.id == span_id:
            anonymous.setdefault((call.agent_id, call.name), []).append(span_id)
        elif (call.agent_id, call.id) not in in_messages:
            foreign.setdefault((call.agent_id, call.name), []).append(span_id)
    nodes: dict[str, int] = {}  # of the answer that asked for each recorded one
    for order, exchange in enumerate(distinct):
        agent_id, part = agent_of[exchange.call], exchange.part
        known = executions.get(order)
        if known is not None:
            # A framework may run the tool under an id of its own.
            found[known] = _with_what_was_asked(found[known], part.id or found[known].id, part.arguments, exchange)
            nodes[known] = exchange.answer
            continue
        id = exchange.id(calls)
        if (twin := _taken(anonymous.get((agent_id, part.name), []), recorded, part)) is not None:
            found[twin] = _with_what_was_asked(found[twin], id, part.arguments, exchange)
            nodes[twin] = exchange.answer
            continue
        if (twin := _taken(foreign.get((agent_id, part.name), []), recorded, part)) is not None:
            found[twin] = _with_what_was_asked(found[twin], part.id or found[twin].id, part.arguments, exchange)
            nodes[twin] = exchange.answer
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
    waiting = [(call, distinct[order].answer) for order, call in asked]
    waiting += [(found[span_id], node) for span_id, node in nodes.items()]
    return Tooling(
        [call for *_, call in sorted(ordered, key=lambda item: item[:3])],
        {span_id: call.id for span_id, call in found.items()},
        [(call, node) for call, node in waiting if call.result is None and call.error is None],
        [found[span_id] for span_id, call in by_start if span_id not in nodes and call.id != span_id],
    )


def _taken(unclaimed: list[str], recorded: Mapping[str, ToolCall], part: ToolCallPart) -> str | None:
    """The first span, of those that nobody has claimed, whose arguments hold those asked for: claimed from now on."""
    twin = next((span for span in unclaimed[:_TWINS_READ] if holds(recorded[span].arguments, part.arguments)), None)
    if twin is not None:
        unclaimed.remove(twin)
    return twin


def _executions(
    exchanges: Sequence[ToolExchange],
    by_id: Mapping[tuple[str, str], Sequence[str]],
    recorded: Mapping[str, ToolCall],
    agent_of: Sequence[str],
) -> dict[int, str]:
    """The span of each exchange (by place) that a span under an id of its tool call recorded. Those whose name and
    arguments a span has come first; one that was asked for before, as where two instrumentations recorded the answer,
    is the same."""
    unclaimed = {key: list(spans) for key, spans in by_id.items()}
    claimed: dict[tuple[tuple[str, str], str, str | None], str] = {}
    found: dict[int, str] = {}
    waiting: list[tuple[int, ToolCallPart, tuple[str, str]]] = []
    for place, exchange in enumerate(exchanges):
        keys = ((agent_of[exchange.call], id) for id in exchange.ids)
        if (key := next((key for key in keys if key in by_id), None)) is not None:
            waiting.append((place, exchange.part, key))
    for fits in (_says_the_same, _may_be):
        left, waiting = waiting, []
        for place, part, key in left:
            asked = (key, part.name, as_text(from_json(part.arguments or "{}")))
            free = next((span for span in unclaimed[key][:_TWINS_READ] if fits(recorded[span], part)), None)
            if free is not None:
                unclaimed[key].remove(free)
                claimed.setdefault(asked, free)
            if (span := free or claimed.get(asked)) is not None:
                found[place] = span
            else:
                waiting.append((place, part, key))
    return found


def _says_the_same(call: ToolCall, part: ToolCallPart) -> bool:
    return call.name == part.name and (not call.arguments or holds(call.arguments, part.arguments))


def _may_be(call: ToolCall, part: ToolCallPart) -> bool:
    """A framework may run a tool under another name, or with other arguments."""
    return True


def _with_what_was_asked(recorded: ToolCall, id: str, arguments: str, exchange: ToolExchange) -> ToolCall:
    """The recorded call under its id; what its span does not say (many frameworks keep content out) the messages do."""
    result = exchange.result if recorded.result is None and recorded.error is None else recorded.result
    return msgspec.structs.replace(recorded, id=id, arguments=recorded.arguments or arguments, result=result)


_redacted = re.compile(r"\[redacted, [0-9]+ characters\]").search


def holds(recorded: str, asked: str) -> bool:
    """Whether recorded arguments are the asked ones, or hold them; of redacted ones nobody knows better."""
    if _redacted(recorded) and _redacted(asked):
        return True
    have, want = from_json(recorded or "{}"), from_json(asked or "{}")
    if isinstance(have, dict) and isinstance(want, dict):
        return all(name in have and have[name] == value for name, value in want.items())
    return bool(have == want)
