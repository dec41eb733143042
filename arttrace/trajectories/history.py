"""Calls of one agent span become a trie of messages: which call goes on from which, and what the tools answered.

Two histories share a trie node exactly when they agree on every message up to it, by canonical hash. A call
*continues* another when its prompt begins with that call's prompt and answer; the longest such one wins. An empty
answer is continued by nobody. Cost is linear in the messages read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from arttrace.records.call import Call
from arttrace.records.message import Message, ReasoningPart, ToolCallPart, ToolResultPart
from arttrace.trajectories.reader import MessageReader
from arttrace.trajectories.values import as_text

ROOT = 0
"""The trie node of the empty history."""


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """A tool call that the answer (the trie node `answer`) of a call (by number) asked for, and the first result seen.
    `seen_ns` is the start of the call whose prompt brought the result; None for both when there was none."""

    call: int
    answer: int
    part: ToolCallPart
    position: int
    choice: int
    result: str | None
    seen_ns: int | None


class History(msgspec.Struct, frozen=True):
    """The trie. `parent` and `message` have one entry per node (node 0 is empty). The calls are known by their number
    in order of start: `prompts` is the node at which each one's prompt ends, `answers` the node of each of its choices
    (None for an empty answer), `continues` the call that it goes on from, None where a history starts anew.
    `exchanges` are in the order asked. `without_reasoning` are the calls whose history holds the answer they go on from
    without its reasoning."""

    calls: Sequence[Call]
    parent: list[int]
    message: list[Message]
    prompts: list[int]
    answers: list[tuple[int | None, ...]]
    continues: list[int | None]
    exchanges: list[Exchange]
    without_reasoning: set[int]

    def path(self, node: int) -> list[int]:
        """The nodes from the first message to `node`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]


def build_history(calls: Sequence[Call], executions: Mapping[str, str | None], reader: MessageReader) -> History:
    """The history of the calls of one agent span, which are in order of start.

    `executions` gives the parent of each flow of control; of several calls with one and the same history, the one
    nearest in it is continued, then one that had ended, then one that nobody continued yet, then the earliest.
    """
    index: dict[tuple[int, str], int] = {}
    parent, message = [ROOT], [Message("", ())]
    first_seen: list[int] = [0]

    def step(node: int, item: Message, time_ns: int) -> int:
        key = (node, reader.hash(item))
        found = index.get(key)
        if found is None:
            found = index[key] = len(parent)
            parent.append(node)
            message.append(item)
            first_seen.append(time_ns)
        return found

    prompts: list[int] = []
    node_of: dict[int, int] = {}  # the node at which a tuple of messages ends, by its identity
    for call in calls:  # all prompts before any answer: a node is first seen where a prompt brought it
        node, further = ROOT, call.messages
        for before in reader.befores(call.messages):
            if id(before) in node_of:
                node, further = node_of[id(before)], call.messages[len(before) :]
                break
        for item in further:
            node = step(node, item, call.start_ns)
        node_of[id(call.messages)] = node
        prompts.append(node)
    answers: list[tuple[int | None, ...]] = [
        tuple([step(end, c.message, call.end_ns) if c.message.parts else None for c in call.choices])
        for call, end in zip(calls, prompts, strict=True)
    ]
    echoes: dict[int, int] = {}  # answers by the node at which they came back without their reasoning
    for call, end, nodes in zip(calls, prompts, answers, strict=True):
        for choice, answer in zip(call.choices, nodes, strict=True):
            bare = without_reasoning(choice.message)
            if answer is not None and bare is not None and bare.parts:
                echo = index.get((end, reader.hash(bare)))
                if echo is not None and echo != answer:
                    echoes.setdefault(echo, answer)
    continues, nearest = _continuations(calls, parent, prompts, answers, echoes, executions)
    without = {n for n, before in enumerate(continues) if before is not None and nearest[prompts[n]] in echoes}
    exchanges = _exchanges(calls, answers, parent, message, first_seen, echoes)
    return History(calls, parent, message, prompts, answers, continues, exchanges, without)


def without_reasoning(message: Message) -> Message | None:
    """A message without its reasoning parts; None when it has none."""
    parts = tuple([part for part in message.parts if not isinstance(part, ReasoningPart)])
    return Message(message.role, parts, message.name) if len(parts) < len(message.parts) else None


def _continuations(
    calls: Sequence[Call],
    parent: Sequence[int],
    prompts: Sequence[int],
    answers: Sequence[tuple[int | None, ...]],
    echoes: Mapping[int, int],
    executions: Mapping[str, str | None],
) -> tuple[list[int | None], list[int]]:
    producers: dict[int, list[int]] = {}
    for number, nodes in enumerate(answers):
        for node in dict.fromkeys(nodes):
            if node is not None:
                producers.setdefault(node, []).append(number)
    for echo, answer in echoes.items():
        producers.setdefault(echo, producers[answer])
    nearest = [ROOT]  # the deepest answered node at or above each node
    for node in range(1, len(parent)):  # a node is made after its parent
        nearest.append(node if node in producers else nearest[parent[node]])

    claimed: set[int] = set()
    continues: list[int | None] = []
    by_flow: dict[int, dict[str | None, list[int]]] = {}
    for call, prompt in zip(calls, prompts, strict=True):
        node = nearest[prompt]
        candidates = producers.get(node, [])
        if len(candidates) > 1:
            if node not in by_flow:
                by_flow[node] = {}
                for other in candidates:
                    by_flow[node].setdefault(calls[other].execution_id, []).append(other)
            candidates = by_flow[node].get(call.execution_id) or candidates  # none is nearer than the flow itself

            def nearness(other: int, call: Call = call) -> tuple[int, bool, bool]:
                depth = _common_depth(call.execution_id, calls[other].execution_id, executions)
                return (depth, calls[other].end_ns <= call.start_ns, other not in claimed)

            best = max(nearness(other) for other in candidates)
            candidates = [other for other in candidates if nearness(other) == best]
        chosen = candidates[0] if candidates else None
        continues.append(chosen)
        if chosen is not None:
            claimed.add(chosen)
    return continues, nearest


def lineage(execution: str | None, executions: Mapping[str, str | None]) -> list[str]:
    """A flow of control and those above it, nearest first."""
    line: dict[str, None] = {}
    while execution is not None and execution not in line:
        line[execution] = None
        execution = executions.get(execution)
    return list(line)


def _common_depth(one: str | None, other: str | None, executions: Mapping[str, str | None]) -> int:
    depth = 0
    for a, b in zip(reversed(lineage(one, executions)), reversed(lineage(other, executions)), strict=False):
        if a != b:
            break
        depth += 1
    return depth


def _exchanges(
    calls: Sequence[Call],
    answers: Sequence[tuple[int | None, ...]],
    parent: Sequence[int],
    message: Sequence[Message],
    first_seen: Sequence[int],
    echoes: Mapping[int, int],
) -> list[Exchange]:
    asker: dict[int, int] = {}  # tool-result node -> the assistant node it answers
    results: dict[tuple[int, str], list[tuple[int, int, str | None]]] = {}
    positions: dict[int, int] = {}  # assistant or tool-result node -> results so far on this path
    for node in range(1, len(parent)):
        parts = [part for part in message[node].parts if isinstance(part, ToolResultPart)]
        if not parts:
            continue
        above = parent[node]
        owner = asker.get(above, above if message[above].tool_calls else None)
        if owner is None:
            continue
        owner = echoes.get(owner, owner)
        asker[node] = owner
        position = positions.get(above, 0)
        for offset, part in enumerate(parts):
            response = as_text(part.response)
            key = part.id or f"#{position + offset}"
            results.setdefault((owner, key), []).append((first_seen[node], node, response))
        positions[node] = position + len(parts)

    by_id: dict[str, list[tuple[int, int, str | None]]] = {}
    for (_, key), found in results.items():
        by_id.setdefault(key, []).extend(found)

    asked: list[tuple[int, int, int, ToolCallPart, int]] = []
    asked_at: dict[str, set[int]] = {}
    for number, (call, nodes) in enumerate(zip(calls, answers, strict=True)):
        for choice, answer in zip(call.choices, nodes, strict=True):
            if answer is None:
                continue
            for position, wanted in enumerate(choice.message.tool_calls):
                asked.append((number, choice.index, position, wanted, answer))
                if wanted.id:
                    asked_at.setdefault(wanted.id, set()).add(answer)

    exchanges: list[Exchange] = []
    for number, choice_index, position, wanted, node in asked:
        found = results.get((node, wanted.id or f"#{position}"), [])
        if not found and wanted.id and len(asked_at[wanted.id]) == 1:  # the echo of the answer was edited on the way
            found = by_id.get(wanted.id, [])
        seen_ns, _, result = min(found, key=lambda item: item[:2]) if found else (None, 0, None)
        exchanges.append(Exchange(number, node, wanted, position, choice_index, result, seen_ns))
    return exchanges
