"""Transcript: what a judge may know of one run, taken from its trajectory, without what would say more.

What goes in is what the agents saw and did: the agent tree, every branch of every history, tool calls and their
results, and the outcome. What stays out could sway a judge or tell it the answer: rewards, metadata, tags, the scenario
and the arguments of the entry point (they may hold the ground truth), policy versions, model names, times, and ids.

Tool call ids are random per run, so they are renumbered ("c1", "c2", ...): two runs with the same content give equal
transcripts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from arttrace.records.message import Message, ToolCallPart, ToolResultPart, canonical_json
from arttrace.records.trajectory import Agent, AgentCall, MessageNode, ToolCall, Trajectory

History = tuple[Message, ...]


class ToolRun(msgspec.Struct, frozen=True):
    """A tool execution that is in no history: the agent's code ran it, or its result never reached the model."""

    name: str
    arguments: str = ""
    result: str | None = None
    error: str | None = None


class AgentTranscript(msgspec.Struct, frozen=True):
    """One agent: `parent` is its parent's index in `Transcript.agents`, None for the root.

    `histories` holds every branch, first to last message, in order of time. `spawned_by` is the renumbered tool call of
    the parent that this agent's answer became. `tools` are the definitions its calls offered, in OpenAI's form.
    """

    name: str
    parent: int | None = None
    inferred: bool = False
    spawned_by: str | None = None
    histories: tuple[History, ...] = ()
    tools: tuple[dict[str, Any], ...] = ()
    tool_runs: tuple[ToolRun, ...] = ()


class Transcript(msgspec.Struct, frozen=True):
    """One run as a judge sees it: parents come before their children, the root first."""

    agents: tuple[AgentTranscript, ...] = ()
    result: Any = None
    error: str | None = None


def transcript(trajectory: Trajectory) -> Transcript:
    """What a judge may know of `trajectory`."""
    histories = _histories(trajectory)
    calls_of: dict[str, list[AgentCall]] = defaultdict(list)
    for placed in trajectory.calls:
        calls_of[placed.agent_id].append(placed)
    tools_of: dict[str, list[ToolCall]] = defaultdict(list)
    for tool in trajectory.tool_calls:
        tools_of[tool.agent_id].append(tool)
    ordered = list(_preorder(trajectory.agents, histories))
    index = {agent.id: position for position, agent in enumerate(ordered)}
    numbers = _call_numbers(history for agent in ordered for history in histories[agent.id])
    return Transcript(
        agents=tuple(
            AgentTranscript(
                name=agent.name,
                parent=index.get(agent.parent_id or ""),
                inferred=agent.inferred,
                spawned_by=numbers.get(agent.spawned_by or ""),
                histories=tuple(renumber(history, numbers) for history in histories[agent.id]),
                tools=_tools(calls_of[agent.id]),
                tool_runs=tuple(_untold(tools_of[agent.id], histories[agent.id])),
            )
            for agent in ordered
        ),
        result=trajectory.result,
        error=trajectory.error,
    )


def transcript_of_messages(history: History, tools: tuple[dict[str, Any], ...] = ()) -> Transcript:
    """One plain list of messages as the transcript of an agent without sub-agents, its last message the outcome."""
    agent = AgentTranscript(name="agent", histories=(renumber(history, _call_numbers([history])),), tools=tools)
    return Transcript(agents=(agent,))


def renumber(history: History, numbers: dict[str, str]) -> History:
    """`history` with its tool call ids replaced by their numbers."""

    def part(value: Any) -> Any:
        if isinstance(value, ToolCallPart | ToolResultPart):
            return msgspec.structs.replace(value, id=numbers.get(value.id or ""))
        return value

    return tuple(
        msgspec.structs.replace(message, parts=tuple(part(value) for value in message.parts)) for message in history
    )


def _call_numbers(histories: Iterable[History]) -> dict[str, str]:
    numbers: dict[str, str] = {}
    for history in histories:
        for message in history:
            for part in message.parts:
                if isinstance(part, ToolCallPart | ToolResultPart) and part.id:
                    numbers.setdefault(part.id, f"c{len(numbers) + 1}")
    return numbers


def _histories(trajectory: Trajectory) -> dict[str, tuple[History, ...]]:
    """For every agent each root-to-leaf path of its message graph, in the order in which calls first reached the
    leaves."""
    nodes: dict[str, dict[str, MessageNode]] = {agent.id: {} for agent in trajectory.agents}
    for node in trajectory.nodes:
        nodes[node.agent_id][node.id] = node
    inner = {node.parent_id for node in trajectory.nodes}
    reached: dict[str, int] = {}
    for position, placed in enumerate(trajectory.calls):
        for node_id in (placed.prompt_node, *placed.choice_nodes):
            if node_id is not None:
                reached.setdefault(node_id, position)
    found = {}
    for agent_id, own in nodes.items():
        leaves = [node_id for node_id in own if node_id not in inner]
        leaves.sort(key=lambda node_id: (reached.get(node_id, len(trajectory.calls)), _choice(own[node_id]), node_id))
        found[agent_id] = tuple(_path(own, leaf) for leaf in leaves)
    return found


def _choice(node: MessageNode) -> int:
    return min((index for _span, index in node.sampled_by), default=-1)


def _path(nodes: dict[str, MessageNode], leaf: str) -> History:
    path = []
    node = nodes.get(leaf)
    while node is not None:
        path.append(node.message)
        node = nodes.get(node.parent_id or "")
    return tuple(reversed(path))


def _preorder(agents: tuple[Agent, ...], histories: dict[str, tuple[History, ...]]) -> Iterator[Agent]:
    """Parents before children; siblings by the tool call that spawned them where known, else in their order.

    The order of the spawning calls is part of the content, the order in which parallel sub-agents started is not.
    """
    known = {agent.id for agent in agents}
    children: dict[str | None, list[Agent]] = defaultdict(list)
    for agent in agents:
        children[agent.parent_id if agent.parent_id in known else None].append(agent)

    def below(parent_id: str | None) -> list[Agent]:
        spawned = list(_call_numbers(histories.get(parent_id or "", ())))
        order = {call_id: position for position, call_id in enumerate(spawned)}
        return sorted(children[parent_id], key=lambda a: order.get(a.spawned_by or "", len(order)))

    waiting = below(None)[::-1]
    while waiting:
        agent = waiting.pop()
        yield agent
        waiting += below(agent.id)[::-1]


def _tools(calls: Iterable[AgentCall]) -> tuple[dict[str, Any], ...]:
    distinct = {canonical_json(tool): tool for placed in calls for tool in placed.call.tools}
    return tuple(distinct.values())


def _untold(tool_calls: Iterable[ToolCall], histories: tuple[History, ...]) -> Iterator[ToolRun]:
    answered = {
        part.id
        for history in histories
        for message in history
        for part in message.parts
        if isinstance(part, ToolResultPart)
    }
    for run in tool_calls:
        if not run.inferred and run.id not in answered:
            yield ToolRun(run.name, run.arguments, run.result, run.error)
