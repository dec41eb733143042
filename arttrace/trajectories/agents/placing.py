"""Which agent made which call, asked for which tool, and which tool call started which agent. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from arttrace.records import semconv
from arttrace.records.call import Call
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Agent, AgentCall, HttpRequest, MessageNode, ToolCall
from arttrace.trajectories.agents.http_requests import http_request, is_http_request
from arttrace.trajectories.agents.resumed import ToolsOfSpan, resumed
from arttrace.trajectories.agents.returned_answers import Returned
from arttrace.trajectories.agents.subagents import AgentSpan, partition
from arttrace.trajectories.agents.tool_calls import Tooling, recorded_tool_call, tool_calls
from arttrace.trajectories.agents.tree import AgentTree, by_start
from arttrace.trajectories.decoding.attribute_values import as_text, from_json, text
from arttrace.trajectories.decoding.call import decode_call
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.trajectories.decoding.operation import is_call, operation
from arttrace.trajectories.identity.ancestors import without_cycles
from arttrace.trajectories.identity.deduplicate import SpanKey
from arttrace.trajectories.messages.graph import message_graph
from arttrace.trajectories.messages.relations import labelled
from arttrace.trajectories.messages.response_chains import join_responses
from arttrace.trajectories.messages.trie import MessageTrie, build_history

_OF_EACH_REQUEST = frozenset((semconv.OPENAI_API_TYPE, semconv.REQUEST_PREVIOUS_RESPONSE))
"""What calls have of APIs whose requests bring their tools also where they go on from a response."""


class Placed(NamedTuple):
    """What of a trajectory each agent did, as `Trajectory` holds it."""

    agents: tuple[Agent, ...]
    """The root first, then recorded ones and those that only the calls reveal, in order of start."""
    calls: tuple[AgentCall, ...]
    """In order of start."""
    tool_calls: tuple[ToolCall, ...]
    """In order of start."""
    http_requests: tuple[HttpRequest, ...]
    nodes: tuple[MessageNode, ...]


def place(tree: AgentTree, spans: Mapping[SpanKey, SpanRow], collided: Collection[SpanKey]) -> Placed:
    """Decodes a trajectory's calls, and places them and its tools below the agents of `tree`. `spans` are in order of
    start; `collided` are those under whose id another content came."""
    reader = MessageReader()
    read = _read(tree, spans, collided, reader)
    placing = _Placing(tree, read, reader)
    for agent in tree.agents:
        placing.add(agent)
    return placing.placed(spans)


class _OfAgents(NamedTuple):
    """A trajectory's spans by the agents that they were made in."""

    calls: dict[str, list[Call]]
    """By the recorded agent that they were made in."""
    below: dict[str, dict[SpanKey, SpanRow]]
    """Tools and agents, by the recorded agent that they are right below of."""
    executions: Mapping[str, str | None]
    """The parent of each flow of control."""
    requests: list[SpanKey]
    """Of HTTP."""


def _read(
    tree: AgentTree, spans: Mapping[SpanKey, SpanRow], collided: Collection[SpanKey], reader: MessageReader
) -> _OfAgents:
    read = _OfAgents({agent.id: [] for agent in tree.agents}, {agent.id: {} for agent in tree.agents}, {}, [])
    executions: dict[str, str | None] = {}
    decoded: dict[SpanKey, Call] = {}
    instructed: set[SpanKey] = set()
    threaded: set[SpanKey] = set()
    for key, span in spans.items():
        if semconv.EXECUTION_ID in span.attributes and (flow := text(span.attributes[semconv.EXECUTION_ID])):
            executions[flow] = text(span.attributes.get(semconv.EXECUTION_PARENT_ID))
        if is_call(span):
            decoded[key] = decode_call(span, reader)
            if collided and (key[0], key[1].rpartition(":")[2]) in collided:  # an id may have its trace before it
                decoded[key] = msgspec.structs.replace(decoded[key], collided=True)
            if semconv.SYSTEM_INSTRUCTIONS in span.attributes and reader.instructions(
                span.attributes[semconv.SYSTEM_INSTRUCTIONS]
            ):
                instructed.add(key)
            if semconv.PREVIOUS_RESPONSE_ID in span.attributes and _OF_EACH_REQUEST.isdisjoint(span.attributes):
                threaded.add(key)
        elif operation(span) == semconv.OPERATION_EXECUTE_TOOL or (span.span_id in tree.spans_of and span != tree.root):
            read.below[tree.agent_of[key]][key] = span
        elif is_http_request(span):
            read.requests.append(key)
    for key, call in join_responses(decoded, instructed, threaded, reader).items():
        read.calls[tree.agent_of[key]].append(call)
    return read._replace(executions=without_cycles(executions)[0])


class _Placing:
    """Takes one recorded agent after the other."""

    def __init__(self, tree: AgentTree, read: _OfAgents, reader: MessageReader) -> None:
        self._tree = tree
        self._read = read
        self._reader = reader
        self._inferred: list[Agent] = []
        self._calls: list[AgentCall] = []
        self._tools: list[ToolsOfSpan] = []
        self._nodes: list[MessageNode] = []
        self._parent_of: dict[str, str] = {}
        self._spawned_by: dict[str, _Spawned] = {}
        self._tool_ids: dict[str, str] = {}
        self._agent_of_tool: dict[SpanKey, str] = {}

    def add(self, agent: Agent) -> None:
        """Its calls and tools, some of which agents made that only they reveal."""
        head = self._tree.spans_of.get(agent.id)
        below = self._read.below[agent.id]
        history = build_history(self._read.calls[agent.id], self._read.executions, self._reader)
        split = partition(
            AgentSpan(
                agent_id=agent.id,
                execution_id=text(head.attributes.get(semconv.EXECUTION_ID)) if head else None,
                history=history,
                tool_of=self._tree.tool_of,
                spans=below,
                executions=self._read.executions,
            )
        )
        self._add_calls({agent.id: agent, **{one.id: one for one in split.agents}}, split.agent_of_call, history)

        recorded: dict[str, ToolCall] = {}
        decorated: dict[SpanKey, SpanRow] = {}
        for key, span in below.items():
            if operation(span) == semconv.OPERATION_EXECUTE_TOOL:
                recorded[span.span_id] = recorded_tool_call(span, split.agent_of_span[key])
                self._agent_of_tool[key] = split.agent_of_span[key]
            else:
                decorated[key] = span
        tools = tool_calls(recorded, history.exchanges, history.calls, split.agent_of_call)
        self._tools.append(ToolsOfSpan(tools, history))
        self._tool_ids.update(tools.id_of_span)
        self._inferred += [
            msgspec.structs.replace(one, spawned_by=tools.id_of_span.get(one.spawned_by or "", one.spawned_by))
            for one in split.agents
        ]
        self._parent_of.update({key[1]: split.agent_of_span[key] for key in decorated})
        taken = {one.spawned_by for one in split.agents}
        self._spawned_by.update(_spawners(decorated, self._tree.tool_of, tools, taken))

    def _add_calls(self, agents: Mapping[str, Agent], agent_of_call: Sequence[str], history: MessageTrie) -> None:
        by_agent: dict[str, list[int]] = {}
        for number, agent_id in enumerate(agent_of_call):
            by_agent.setdefault(agent_id, []).append(number)
        for agent_id, own in by_agent.items():
            calls, nodes = message_graph(agent_id, own, history)
            self._calls += labelled(agents[agent_id], own, calls, history, self._reader)
            self._nodes += nodes

    def placed(self, spans: Mapping[SpanKey, SpanRow]) -> Placed:
        """All of it, after the last agent."""
        root, *others = self._tree.agents
        agents = [_placed_agent(agent, self._parent_of, self._spawned_by) for agent in others]
        return Placed(
            agents=(root, *by_start([*agents, *self._inferred], root.id if self._tree.root is None else None)),
            calls=tuple(sorted(self._calls, key=lambda item: (item.call.start_ns, item.call.span_id))),
            tool_calls=tuple(sorted(resumed(self._tools), key=lambda call: call.start_ns)),
            http_requests=tuple(self._request(key, spans[key]) for key in self._read.requests),
            nodes=tuple(self._nodes),
        )

    def _request(self, key: SpanKey, span: SpanRow) -> HttpRequest:
        agent_id, tool = self._tree.agent_of[key], self._tree.tool_of[key]
        if tool is None:
            return http_request(span, agent_id, None)
        return http_request(span, self._agent_of_tool.get(tool, agent_id), self._tool_ids.get(tool[1], tool[1]))


def _placed_agent(agent: Agent, parent_of: Mapping[str, str], spawned_by: Mapping[str, _Spawned]) -> Agent:
    parent_id = parent_of.get(agent.id, agent.parent_id)
    spawned = spawned_by.get(agent.id)
    if spawned is None:
        return msgspec.structs.replace(agent, parent_id=parent_id, spawned_by=None)
    return msgspec.structs.replace(
        agent,
        parent_id=parent_id,
        spawned_by=spawned.by,
        evidence=agent.evidence or spawned.evidence,
        confidence=spawned.confidence,
    )


class _Spawned(msgspec.Struct, frozen=True):
    """The tool call that started a decorated agent, how that is known, and how sure it is."""

    by: str
    evidence: str = ""
    confidence: float = 1.0


def _spawners(
    decorated: Mapping[SpanKey, SpanRow],
    tool_of: Mapping[SpanKey, SpanKey | None],
    tools: Tooling,
    taken: Collection[str | None],
) -> dict[str, _Spawned]:
    """The tool call that started each decorated agent: the tool span it runs in, else the first tool call not yet
    taken that gave back what the agent returned."""
    spawners: dict[str, _Spawned] = {}
    for key in decorated:
        if (tool := tool_of.get(key)) is not None:
            spawners[key[1]] = _Spawned(tools.id_of_span.get(tool[1], tool[1]))
    returned = Returned((call.result, call) for call in tools.calls if call.id not in taken)
    used: set[int] = set()  # by identity: several may have one id
    for level in returned.LEVELS:
        for key, span in decorated.items():
            if key[1] in spawners:
                continue
            answer = (as_text(from_json(span.attributes.get(semconv.ENTRY_RESULT))) or "").strip()

            def around(call: ToolCall, span: SpanRow = span) -> bool:
                return call.start_ns <= span.start_ns and 0 < span.end_ns <= call.end_ns

            found = next((one for one in returned.find(answer, level, around) if id(one.item) not in used), None)
            if found is not None:
                used.add(id(found.item))
                how = f"its answer {found.how} {found.item.name} returned"
                spawners[key[1]] = _Spawned(found.item.id, how, found.confidence)
    return spawners
