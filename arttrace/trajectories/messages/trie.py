"""Calls of one agent span become a trie of messages: which call goes on from which, and what the tools answered.

Two histories share a trie node exactly when they agree on every message up to it as a chat template renders it: by
canonical hash, and for tool results by the position of the calls they answer. A call
*continues* another when its prompt begins with that call's prompt and answer; the longest such one wins. An empty
answer is continued by nobody. Cost is linear in the messages read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from arttrace.records.call import Call
from arttrace.records.message import Message, ReasoningPart, ToolResultPart
from arttrace.trajectories.decoding.messages import MessageReader
from arttrace.trajectories.messages.tool_results import Asked, Carried, ToolExchange, ToolTraffic

ROOT = 0
"""The trie node of the empty history."""


class MessageTrie(msgspec.Struct, frozen=True):
    """The trie. `parent`, `message` and `keys` have one entry per node (node 0 is empty); a key distinguishes a message
    from others after the same one, and the ids of tool calls in messages are those sampled. The calls are known by
    number in order of start: `prompts` is the node at which each one's prompt ends, `answers` the node of each of its
    choices (None for an empty answer), `continues` the call that it goes on from, None where a history starts anew.
    `exchanges` are in the order asked, `carried` are the tool calls in prompts that none of the calls asked for.
    `without_reasoning` are the calls whose history holds the answer they go on from
    without its reasoning."""

    calls: Sequence[Call]
    parent: list[int]
    message: list[Message]
    keys: list[str]
    prompts: list[int]
    answers: list[tuple[int | None, ...]]
    continues: list[int | None]
    exchanges: list[ToolExchange]
    carried: list[Carried]
    without_reasoning: set[int]

    def path(self, node: int) -> list[int]:
        """The nodes from the first message to `node`."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parent[node]
        return nodes[::-1]


def build_history(calls: Sequence[Call], executions: Mapping[str, str | None], reader: MessageReader) -> MessageTrie:
    """The history of the calls of one agent span, which are in order of start.

    `executions` gives the parent of each flow of control; of several calls with one and the same history, the one
    nearest in it is continued, then one that had ended, then one that nobody continued yet, then the earliest.
    """
    index: dict[tuple[int, str], int] = {}
    parent, message, keys = [ROOT], [Message("", ())], [""]
    traffic = ToolTraffic()

    hashes = reader.hashes

    def step(node: int, item: Message, places: Sequence[int] = ()) -> int:
        key = hashes.get(id(item)) or reader.hash(item)
        if places:
            key = f"{key}@{places[0] if len(places) == 1 else places}"
        found = index.get((node, key))
        if found is None:
            found = index[node, key] = len(parent)
            parent.append(node)
            message.append(item)
            keys.append(key)
        return found

    prompts: list[int] = []
    nobody = Asked(ROOT)
    read: dict[int, tuple[int, Asked]] = {}  # the node at which a tuple of messages ends, by its identity
    for call in calls:  # all prompts before any answer: a result is first seen where a prompt brought it
        node, asked, further, shared = ROOT, nobody, call.messages, True
        for before in reader.befores(call.messages):
            if id(before) in read:
                node, asked = read[id(before)]
                further = call.messages[len(before) :]
                break
        for at, item in enumerate(further, 1):
            if item.role == "assistant":
                node = step(node, item)
                wanted = item.tool_calls
                asked, shared = Asked(node, wanted), False
                if wanted:
                    traffic.sent(node, wanted)
            elif results := [part for part in item.parts if isinstance(part, ToolResultPart)]:
                if shared:  # with the prompts that this one branches off from
                    asked, shared = asked.copy(), False
                places = tuple(
                    [
                        asked.place(part.id, map(further.__getitem__, range(at, len(further))), item.name)
                        for part in results
                    ]
                )
                node = step(node, item, places)
                traffic.answered(node, asked.node, places, results, call.start_ns)
            else:
                node = step(node, item)
        read[id(call.messages)] = node, asked  # is copied before it is gone on from
        prompts.append(node)
    answers: list[tuple[int | None, ...]] = [
        tuple([step(end, c.message) if c.message.parts else None for c in call.choices])
        for call, end in zip(calls, prompts, strict=True)
    ]
    echoes: dict[int, int] = {}  # answers by the node at which they came back without their reasoning
    sampled: dict[int, Message] = {}
    for call, end, nodes in zip(calls, prompts, answers, strict=True):
        for choice, answer in zip(call.choices, nodes, strict=True):
            if answer is None:
                continue
            sampled.setdefault(answer, choice.message)
            bare = without_reasoning(choice.message)
            if bare is not None and bare.parts:
                echo = index.get((end, reader.hash(bare)))
                if echo is not None and echo != answer:
                    echoes.setdefault(echo, answer)
                    sampled.setdefault(echo, bare)
    continues, nearest = _continuations(calls, parent, prompts, answers, echoes, executions)
    without = {n for n, before in enumerate(continues) if before is not None and nearest[prompts[n]] in echoes}
    for node, item in sampled.items():
        message[node] = item
    carried = traffic.carried(sampled, message)
    traffic.give_ids(message)
    exchanges = traffic.exchanges(calls, answers, echoes)
    return MessageTrie(calls, parent, message, keys, prompts, answers, continues, exchanges, carried, without)


def without_reasoning(message: Message) -> Message | None:
    """A message without its reasoning parts; None when it has none."""
    if len(message.parts) == 1 and not isinstance(message.parts[0], ReasoningPart):
        return None  # as most are
    parts = tuple([part for part in message.parts if not isinstance(part, ReasoningPart)])
    return Message(message.role, parts, message.name) if len(parts) < len(message.parts) else None


_Ids = tuple[str | None, ...]


def _ids(message: Message) -> _Ids:
    return tuple([call.id for call in message.tool_calls])


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
    by_ids: dict[int, dict[_Ids, list[int]]] = {}
    by_flow: dict[tuple[int, _Ids | None], dict[str | None, list[int]]] = {}
    depth: list[int] = []  # is asked for where several calls gave one answer
    for call, prompt in zip(calls, prompts, strict=True):
        node = nearest[prompt]
        candidates = producers.get(node, [])
        if len(candidates) > 1:
            if not depth:
                depth.append(0)
                for at in range(1, len(parent)):
                    depth.append(depth[parent[at]] + 1)
            if node not in by_ids:
                by_ids[node] = {}
                for other in candidates:
                    for own in dict.fromkeys(_ids(choice.message) for choice in calls[other].choices):
                        by_ids[node].setdefault(own, []).append(other)
            ids: _Ids | None = _ids(call.messages[depth[node] - 1])  # word for word the same, they tell apart still
            ids = ids if ids in by_ids[node] else None
            candidates = candidates if ids is None else by_ids[node][ids]
            if (node, ids) not in by_flow:
                flows = by_flow[node, ids] = {}
                for other in candidates:
                    flows.setdefault(calls[other].execution_id, []).append(other)
            candidates = by_flow[node, ids].get(call.execution_id) or candidates  # none is nearer than the flow itself

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
