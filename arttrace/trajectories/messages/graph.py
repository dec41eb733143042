"""The trie of one agent's messages becomes its part of the message graph, with ids that any order of spans gives."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from arttrace.records.message import canonical_json
from arttrace.records.trajectory import AgentCall, MessageNode
from arttrace.trajectories.messages.trie import ROOT, MessageTrie


class _GraphNode(msgspec.Struct):
    """A MessageNode in the making: `sampled_by` grows."""

    id: str
    parent_id: str | None
    trie_node: int
    sampled_by: list[tuple[str, int]]


def message_graph(
    agent_id: str, calls: Iterable[int], history: MessageTrie
) -> tuple[list[AgentCall], list[MessageNode]]:
    """One agent's calls (by number) placed in its graph, and the graph's nodes, parents first.

    A node is keyed by (agent, tools, parent, message): equal histories under equal tools share nodes.
    """
    nodes: list[_GraphNode] = []
    of_tools: dict[str, dict[int, _GraphNode]] = {}  # by trie node
    placed: list[AgentCall] = []
    hashes: dict[int, str] = {}  # of tool lists, each of which is one object
    for number in calls:
        call = history.calls[number]
        tools = hashes.get(id(call.tools))
        if tools is None:
            tools = hashes[id(call.tools)] = _hash(canonical_json(call.tools)) if call.tools else ""

        known = of_tools.get(tools)
        if known is None:
            known = of_tools[tools] = {}
        answers = history.answers[number]
        prompt = history.prompts[number]
        for end in (prompt, *answers):
            missing: list[int] = []
            at = ROOT if end is None else end
            while at != ROOT and at not in known:
                missing.append(at)
                at = history.parent[at]
            above = known[at].id if at != ROOT else None
            for item in reversed(missing):
                node_id = _hash(f"{agent_id}|{tools}|{above or ''}|{history.keys[item]}".encode())
                known[item] = node = _GraphNode(node_id, above, item, [])
                nodes.append(node)
                above = node_id
        choice_nodes: list[str] = []
        for choice, answer in zip(call.choices, answers, strict=True):
            if answer is not None:
                node = known[answer]
                node.sampled_by.append((call.span_id, choice.index))
                choice_nodes.append(node.id)
        prompt_id = known[prompt].id if prompt != ROOT else None
        placed.append(AgentCall(call, agent_id, prompt_id, tuple(choice_nodes)))
    return placed, [
        MessageNode(node.id, agent_id, node.parent_id, history.message[node.trie_node], tuple(node.sampled_by))
        for node in nodes
    ]


def _hash(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()
