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
from arttrace.trajectories.decode import MessageReader, as_text
from arttrace.trajectories.shared import Prefixes
from arttrace.trajectories.spans import SpanKey

ROOT = 0
"""The trie node of the empty history."""


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """A tool call that a call's answer (the trie node `answer`) asked for, and the first result seen to it. `seen_ns`
    is the start of the call whose prompt brought the result; None for both when there was none."""

    call: SpanKey
    answer: int
    part: ToolCallPart
    position: int
    choice: int
    result: str | None
    seen_ns: int | None


class History(msgspec.Struct, frozen=True):
    """The trie. `parent` and `message` have one entry per node (node 0 is empty); `prompts` is the node at which each
    call's prompt ends, `answers` the node of each of its choices (None for an empty answer); `continues` the call
    that each call goes on from, None where a history starts anew. `exchanges` are in the order asked.
    `without_reasoning` are the calls whose history holds the answer they go on from without its reasoning."""

    parent: list[int]
    message: list[Message]
    prompts: dict[SpanKey, int]
    answers: dict[SpanKey, tuple[int | None, ...]]
    continues: dict[SpanKey, SpanKey | None]
    exchanges: list[Exchange]
    without_reasoning: set[SpanKey]

    def path(self, node: int) -> list[int]:
        """The nodes from the first message to `node`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]


def call_key(call: Call) -> SpanKey:
    """The key of a call's span."""
    return (call.trace_id, call.span_id)


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

    prompts: dict[SpanKey, int] = {}
    read: Prefixes[int] = Prefixes()
    for call in calls:  # all prompts before any answer: a node is first seen where a prompt brought it
        length, known = read.longest(call.messages)
        node = known or ROOT
        for item in call.messages[length:]:
            node = step(node, item, call.start_ns)
        if call.messages:
            read.keep(call.messages, node)
        prompts[call_key(call)] = node
    answers: dict[SpanKey, tuple[int | None, ...]] = {}
    for call in calls:
        end = prompts[call_key(call)]
        answers[call_key(call)] = tuple(
            step(end, choice.message, call.end_ns) if choice.message.parts else None for choice in call.choices
        )
    echoes: dict[int, int] = {}  # answers by the node at which they came back without their reasoning
    for call in calls:
        for choice, answer in zip(call.choices, answers[call_key(call)], strict=True):
            bare = without_reasoning(choice.message)
            if answer is not None and bare is not None and bare.parts:
                echo = index.get((prompts[call_key(call)], reader.hash(bare)))
                if echo is not None and echo != answer:
                    echoes.setdefault(echo, answer)
    continues, nearest = _continuations(calls, parent, prompts, answers, echoes, executions)
    without = {key for key, before in continues.items() if before and nearest[prompts[key]] in echoes}
    history = History(parent, message, prompts, answers, continues, [], without)
    history.exchanges.extend(_exchanges(calls, history, first_seen, echoes))
    return history


def without_reasoning(message: Message) -> Message | None:
    """A message without its reasoning parts; None when it has none."""
    if not any(isinstance(part, ReasoningPart) for part in message.parts):
        return None
    parts = tuple(part for part in message.parts if not isinstance(part, ReasoningPart))
    return Message(message.role, parts, message.name)


def _continuations(
    calls: Sequence[Call],
    parent: list[int],
    prompts: Mapping[SpanKey, int],
    answers: Mapping[SpanKey, tuple[int | None, ...]],
    echoes: Mapping[int, int],
    executions: Mapping[str, str | None],
) -> tuple[dict[SpanKey, SpanKey | None], dict[int, int]]:
    producers: dict[int, list[Call]] = {}
    for call in calls:
        for node in {node for node in answers[call_key(call)] if node is not None}:
            producers.setdefault(node, []).append(call)
    for echo, answer in echoes.items():
        producers.setdefault(echo, producers[answer])
    nearest: dict[int, int] = {ROOT: ROOT}  # the deepest answered node at or above a node
    for node in range(1, len(parent)):  # a node is made after its parent
        nearest[node] = node if node in producers else nearest[parent[node]]

    claimed: set[SpanKey] = set()
    continues: dict[SpanKey, SpanKey | None] = {}
    by_flow: dict[int, dict[str | None, list[Call]]] = {}
    for call in calls:
        node = nearest[prompts[call_key(call)]]
        candidates = producers.get(node, [])
        if len(candidates) > 1:
            if node not in by_flow:
                by_flow[node] = {}
                for other in candidates:
                    by_flow[node].setdefault(other.execution_id, []).append(other)
            candidates = by_flow[node].get(call.execution_id) or candidates  # none is nearer than the flow itself

            def nearness(other: Call, call: Call = call) -> tuple[int, bool, bool]:
                depth = _common_depth(call.execution_id, other.execution_id, executions)
                return (depth, other.end_ns <= call.start_ns, call_key(other) not in claimed)

            best = max(nearness(other) for other in candidates)
            candidates = [other for other in candidates if nearness(other) == best]
        chosen = call_key(candidates[0]) if candidates else None
        continues[call_key(call)] = chosen
        if chosen:
            claimed.add(chosen)
    return continues, nearest


def lineage(execution: str | None, executions: Mapping[str, str | None]) -> list[str]:
    """A flow of control and those above it, nearest first."""
    line: list[str] = []
    while execution is not None and execution not in line:
        line.append(execution)
        execution = executions.get(execution)
    return line


def _common_depth(one: str | None, other: str | None, executions: Mapping[str, str | None]) -> int:
    depth = 0
    for a, b in zip(reversed(lineage(one, executions)), reversed(lineage(other, executions)), strict=False):
        if a != b:
            break
        depth += 1
    return depth


def _exchanges(
    calls: Sequence[Call], history: History, first_seen: list[int], echoes: Mapping[int, int]
) -> list[Exchange]:
    asker: dict[int, int] = {}  # tool-result node -> the assistant node it answers
    results: dict[tuple[int, str], list[tuple[int, int, str | None]]] = {}
    positions: dict[int, int] = {}  # assistant or tool-result node -> results so far on this path
    for node in range(1, len(history.parent)):
        above = history.parent[node]
        owner = asker.get(above, above if history.message[above].tool_calls else None)
        parts = [part for part in history.message[node].parts if isinstance(part, ToolResultPart)]
        if owner is None or not parts:
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

    asked: list[tuple[Call, int, int, ToolCallPart, int]] = []
    asked_at: dict[str, set[int]] = {}
    for call in calls:
        for choice, answer in zip(call.choices, history.answers[call_key(call)], strict=True):
            if answer is None:
                continue
            for position, wanted in enumerate(choice.message.tool_calls):
                asked.append((call, choice.index, position, wanted, answer))
                if wanted.id:
                    asked_at.setdefault(wanted.id, set()).add(answer)

    exchanges: list[Exchange] = []
    for call, choice_index, position, wanted, node in asked:
        found = results.get((node, wanted.id or f"#{position}"), [])
        if not found and wanted.id and len(asked_at[wanted.id]) == 1:  # the echo of the answer was edited on the way
            found = by_id.get(wanted.id, [])
        seen_ns, _, result = min(found, key=lambda item: item[:2]) if found else (None, 0, None)
        exchanges.append(Exchange(call_key(call), node, wanted, position, choice_index, result, seen_ns))
    return exchanges
