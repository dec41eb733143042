"""What one agent did, and in which order it is shown: by time, and a tool call between the answer that asked for it and
the next call, also where the clocks are too coarse to tell, or there were none."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from arttrace.records import semconv
from arttrace.records.call import Call, Choice
from arttrace.records.message import Message, ToolResultPart
from arttrace.records.trajectory import Agent, AgentCall, HttpRequest, MessageNode, Relation, ToolCall, Trajectory
from arttrace.records.values.units import quantity
from arttrace.trajectories.messages.tool_results import result_text

_Place = tuple[int, float, int]


Event = AgentCall | ToolCall | Agent | HttpRequest
"""What an agent does."""


def in_order(
    calls: Sequence[AgentCall], tools: Iterable[ToolCall], agents: Iterable[Agent], requests: Iterable[HttpRequest]
) -> list[Event]:
    """Calls in order of start; tool calls, sub-agents, and requests that are no tool's, among them. A tool call that
    was inferred stands right behind the call that asked for it."""
    asking: dict[str, list[int]] = {}
    for number, placed in enumerate(calls):
        for choice in placed.call.choices:
            for position, part in enumerate(choice.message.tool_calls):
                id = part.id or f"{placed.call.span_id}:{choice.index}:{position}"
                asking.setdefault(id, []).append(number)
    events: list[tuple[_Place, Event]] = [
        ((placed.call.start_ns, number, 0), placed) for number, placed in enumerate(calls)
    ]
    for tool in tools:
        numbers = asking.get(tool.id, [])
        asker = numbers.pop(0) if len(numbers) > 1 else numbers[0] if numbers else None
        place: _Place = (tool.start_ns, math.inf, 0)
        if asker is not None:
            asked_ns = calls[asker].call.start_ns
            place = (asked_ns, asker, 1) if tool.inferred or tool.start_ns <= asked_ns else (tool.start_ns, -1, 0)
        events.append((place, tool))
    events += [((agent.start_ns, math.inf, 1), agent) for agent in agents]
    events += [((request.start_ns, math.inf, 2), request) for request in requests]
    return [event for _, event in sorted(events, key=lambda event: event[0])]


ORDINARY = (Relation.START, Relation.EXTENDS, Relation.SUB_AGENT)
"""Histories that go on as is to be expected: nothing is said of them."""


def agents_with_levels(run: Trajectory) -> Iterator[tuple[Agent, int]]:
    """Each agent once, a parent before its children, and how many agents are above it. One whose parent is no agent of
    the run is below the root."""
    root = run.agents[0]
    known = {agent.id for agent in run.agents}
    children: dict[str | None, list[Agent]] = {}
    for agent in run.agents[1:]:
        children.setdefault(agent.parent_id if agent.parent_id in known else root.id, []).append(agent)
    waiting, seen = [(root, 0)], set[str]()
    while waiting:
        agent, level = waiting.pop()
        if agent.id not in seen:
            seen.add(agent.id)
            yield agent, level
            waiting += [(child, level + 1) for child in reversed(children.get(agent.id, ()))]


class Answered(NamedTuple):
    """The tools of an agent that returned or failed: their ids, and what those returned that nobody gave an id."""

    ids: set[str]
    results: set[str]


class Below(NamedTuple):
    """What lies right below an agent. `started` are the sub-agents that its tools started, by the tool call's identity
    (`id`), since several may have one id, `others` the rest; `requests` likewise, under None those that are no tool's
    here."""

    calls: Sequence[AgentCall]
    tools: Sequence[ToolCall]
    started: Mapping[int, Sequence[Agent]]
    others: Sequence[Agent]
    requests: Mapping[int | None, Sequence[HttpRequest]]
    answered: Answered


class Timeline:
    """A run by agents, and its messages by id."""

    def __init__(self, run: Trajectory) -> None:
        self._nodes = {node.id: node for node in run.nodes}
        self._agents: dict[str | None, list[Agent]] = {}
        for agent in run.agents[1:]:
            self._agents.setdefault(agent.parent_id, []).append(agent)
        self._tools: dict[str, list[ToolCall]] = {}
        for tool in run.tool_calls:
            self._tools.setdefault(tool.agent_id, []).append(tool)
        self._calls: dict[str, list[AgentCall]] = {}
        for call in run.calls:
            self._calls.setdefault(call.agent_id, []).append(call)
        self._requests: dict[str, list[HttpRequest]] = {}
        for request in run.http_requests:
            self._requests.setdefault(request.agent_id, []).append(request)

    def below(self, agent: Agent) -> Below:
        """What lies right below an agent."""
        tools = self._tools.get(agent.id, [])
        own: dict[str | None, list[ToolCall]] = {}
        for tool in tools:
            own.setdefault(tool.id, []).append(tool)
        started: dict[int, list[Agent]] = {}
        others: list[Agent] = []
        for child in self._agents.get(agent.id, []):
            if child.spawned_by in own:
                started.setdefault(id(_at(own[child.spawned_by], child.start_ns)), []).append(child)
            else:
                others.append(child)
        requests: dict[int | None, list[HttpRequest]] = {}
        for request in self._requests.get(agent.id, []):
            made_by = own.get(request.tool_call_id)
            requests.setdefault(id(_at(made_by, request.start_ns)) if made_by else None, []).append(request)
        calls = self._calls.get(agent.id, [])
        named = {part.id for placed in calls for choice in placed.call.choices for part in choice.message.tool_calls}
        answered = Answered(
            {tool.id for tool in tools if tool.result is not None or tool.error is not None},
            {tool.result for tool in tools if tool.result is not None and tool.id not in named},
        )
        return Below(calls, tools, started, others, requests, answered)

    def unseen(self, node_id: str | None, seen: set[str]) -> list[MessageNode]:
        """The messages up to a node that were not `seen`, in order; they are from now on."""
        fresh: list[MessageNode] = []
        while node_id is not None and node_id not in seen:
            seen.add(node_id)
            node = self._nodes[node_id]
            fresh.append(node)
            node_id = node.parent_id
        return fresh[::-1]


def _at(tools: Sequence[ToolCall], start_ns: int) -> ToolCall:
    """The one of the tool calls under one id during which something began: the last that had, else the first."""
    return next((tool for tool in reversed(tools) if tool.start_ns <= start_ns), tools[0])


def shown_with_tools(message: Message, answered: Answered) -> bool:
    """Whether a message says nothing but what `answered` tools returned, which is shown with them."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    return len(results) == len(message.parts) > 0 and all(
        part.id in answered.ids if part.id else not answered.results.isdisjoint(_returned(part)) for part in results
    )


def _returned(part: ToolResultPart) -> Iterator[str | None]:
    """What a tool may have returned by a result without an id: Google's client puts what is no object into one."""
    yield result_text(part)
    if isinstance(part.response, dict) and part.response.keys() == {"result"}:
        yield result_text(ToolResultPart(part.response["result"]))


def unanswered(tool: ToolCall) -> str:
    """What is said of a tool call without a result."""
    return "no result recorded" if tool.end_ns and not tool.inferred else "not answered"


def answered_unseen(call: Call) -> bool:
    """Whether an answer came of which nothing was recorded but its length, as where content is off."""
    return not call.choices and not call.error and bool(call.output_tokens)


_BROKEN = {"cancelled": "cancelled before the answer was whole", "error": "broken off"}
_LEFT = {
    "closed": "not read to its end",
    semconv.BACKGROUND: "asked for in the background, another request brought the answer",
}
_ITSELF = (None, "stop", "tool_calls", "function_call")


def broken_off(interrupted: str | None) -> str:
    """In words what failed of an answer, by why it is not whole; "" where nothing did: whoever stops reading one has
    what they wanted."""
    return "" if not interrupted or interrupted in _LEFT else _BROKEN.get(interrupted, interrupted)


def left(interrupted: str | None) -> str:
    """In words that the program did without the rest of an answer, by why it is not whole; else ""."""
    return _LEFT.get(interrupted or "", "")


def failure(call: Call) -> str:
    """What a call failed by, in words; "" for one that did not, or has not ended."""
    if call.error or not call.end_ns:
        return call.error or ""
    lacks = not (call.choices or call.interrupted or answered_unseen(call))
    return broken_off(call.interrupted) or ("no answer recorded" if lacks else "")


def ended(call: Call, choice: Choice | None) -> str:
    """How an answer ended otherwise than by itself or a failure, in words; else ""."""
    reason = None if choice is None else choice.end
    return ", ".join(filter(None, ("" if reason in _ITSELF else f"ended by {reason}", left(call.interrupted))))


def tokens_used(asked: int | None, answered: int | None) -> str:
    """The tokens of a call's prompt and answer; "" where nobody counted the answer's."""
    return "" if answered is None else f"{'?' if asked is None else asked} → {quantity(answered, 'token')}"


def agent_note(agent: Agent) -> str:
    """How an agent is known, where no span of its own says so, and how sure that is."""
    sure = "" if agent.confidence == 1 else f", {agent.confidence:.0%} sure"
    if agent.placeholder:
        return f"missing: {agent.evidence}"
    if agent.inferred:
        return f"inferred: {agent.evidence}{sure}"
    return f"{agent.evidence}{sure}" if agent.confidence < 1 else ""
