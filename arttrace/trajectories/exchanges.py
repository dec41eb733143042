"""Tool calls and what answered them, by position: which call of which answer each tool result belongs to.

A chat template renders no ids, and frameworks rewrite them between one request and the next. Within one prompt the ids
agree, so a result is placed there: it answers the n-th tool call of the assistant message before it. Ids then only
tell apart answers that are the same word for word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from arttrace.records.call import Call
from arttrace.records.message import Message, Part, ToolCallPart, ToolResultPart, joined_text
from arttrace.trajectories.values import as_text


class Exchange(msgspec.Struct, frozen=True, gc=False):
    """A tool call that the answer (the trie node `answer`) of a call (by number) asked for, and the first result seen.
    `seen_ns` is the start of the call whose prompt brought the result; None for both when there was none. `ids` are
    all under which the tool call came back, its own first."""

    call: int
    answer: int
    part: ToolCallPart
    position: int
    choice: int
    result: str | None
    seen_ns: int | None
    ids: tuple[str, ...] = ()

    def id(self, calls: Sequence[Call]) -> str:
        """The id of its tool call; one that nobody gave an id is named by its place."""
        return self.part.id or f"{calls[self.call].span_id}:{self.choice}:{self.position}"


class Asked:
    """While a prompt is read: the trie node of the assistant message that the next tool results answer, and which of
    its tool calls are answered so far. A result of no known id answers the first call that has no result."""

    __slots__ = ("_answered", "_next", "_places", "node")

    def __init__(self, node: int, calls: Sequence[ToolCallPart] = ()) -> None:
        self.node = node
        self._places: dict[str, list[int]] = {}
        for place, call in enumerate(calls):
            if call.id:
                self._places.setdefault(call.id, []).append(place)
        self._answered: set[int] = set()
        self._next = 0

    def copy(self) -> Asked:
        """The same, to be gone on from apart: prompts branch."""
        other = Asked(self.node)
        other._places, other._answered, other._next = self._places, set(self._answered), self._next
        return other

    def place(self, id: str | None) -> int:
        """The position of the tool call that the next result answers."""
        places = self._places.get(id or "", ())
        found = next((place for place in places if place not in self._answered), None)
        if found is None and places:
            return places[0]
        if found is None:
            while self._next in self._answered:
                self._next += 1
            found = self._next
        self._answered.add(found)
        return found


class _Result(msgspec.Struct, frozen=True, gc=False):
    seen_ns: int
    node: int
    response: str | None

    def first(self, other: _Result | None) -> _Result:
        """Whichever was seen first."""
        return other if other is not None and (other.seen_ns, other.node) <= (self.seen_ns, self.node) else self


class ToolTraffic:
    """What the prompts of an agent told of tool calls: under which ids the answers came back, and the results."""

    def __init__(self) -> None:
        self.answers_to: dict[int, tuple[int, tuple[int, ...]]] = {}
        """Of each node with tool results: the node that asked, and the positions of the calls they answer."""
        self._sent: dict[int, dict[tuple[str | None, ...], None]] = {}
        self._seen: dict[int, dict[tuple[str | None, ...], int]] = {}

    def sent(self, node: int, calls: Sequence[ToolCallPart]) -> None:
        """An assistant message with tool calls stood in a prompt."""
        self._sent.setdefault(node, {})[tuple([call.id for call in calls])] = None

    def answered(
        self, node: int, asked: int, places: tuple[int, ...], results: Sequence[ToolResultPart], ns: int
    ) -> None:
        """Tool results stood in a prompt."""
        self.answers_to[node] = (asked, places)
        self._seen.setdefault(node, {}).setdefault(tuple([result.id for result in results]), ns)

    def exchanges(
        self,
        calls: Sequence[Call],
        answers: Sequence[tuple[int | None, ...]],
        message: Sequence[Message],
        echoes: Mapping[int, int],
    ) -> list[Exchange]:
        """Every tool call asked for with its result, in the order asked. `echoes` are the answers by the node at which
        they came back without their reasoning."""
        results = self._results(message, echoes)
        asked: list[tuple[int, int, int, ToolCallPart, int]] = []
        asked_at: dict[str, set[int]] = {}
        twins: dict[tuple[int, int], set[str]] = {}
        for number, (call, nodes) in enumerate(zip(calls, answers, strict=True)):
            for choice, answer in zip(call.choices, nodes, strict=True):
                if answer is None:
                    continue
                for position, wanted in enumerate(choice.message.tool_calls):
                    asked.append((number, choice.index, position, wanted, answer))
                    twins.setdefault((answer, position), set()).add(wanted.id or "")
                    if wanted.id:
                        asked_at.setdefault(wanted.id, set()).add(answer)

        by_id: dict[str, _Result] = {}
        for found in results.values():
            for id, result in found.items():
                by_id[id] = result.first(by_id.get(id))
        nobodys: dict[tuple[int, int], _Result] = {}  # results under an id that none of the calls there has
        for place, held in twins.items():
            for id, result in results.get(place, {}).items():
                if id not in held:
                    nobodys[place] = result.first(nobodys.get(place))
        sent = self._ids_sent(answers, echoes)
        exchanges: list[Exchange] = []
        for number, choice_index, position, wanted, node in asked:
            own = results.get((node, position), {}).get(wanted.id or "") or nobodys.get((node, position))
            if own is None and wanted.id and len(asked_at[wanted.id]) == 1:  # the answer was edited on its way back
                own = by_id.get(wanted.id)
            others = twins[node, position]
            ids = dict.fromkeys([wanted.id] if wanted.id else ())
            for came_back in sent.get(node, ()):
                other = came_back[position]
                if other and other not in others:
                    ids[other] = None
            exchanges.append(
                Exchange(
                    number,
                    node,
                    wanted,
                    position,
                    choice_index,
                    own.response if own else None,
                    own.seen_ns if own else None,
                    tuple(ids),
                )
            )
        return exchanges

    def _results(
        self, message: Sequence[Message], echoes: Mapping[int, int]
    ) -> dict[tuple[int, int], dict[str, _Result]]:
        """By the tool call that they answer (node, position) and the id they came with ("" for none), each the first
        seen."""
        results: dict[tuple[int, int], dict[str, _Result]] = {}
        for node, (asked, places) in self.answers_to.items():
            parts = [part for part in message[node].parts if isinstance(part, ToolResultPart)]
            for ids, seen_ns in self._seen[node].items():
                for place, part, id in zip(places, parts, ids, strict=True):
                    found = results.setdefault((echoes.get(asked, asked), place), {})
                    result = _Result(seen_ns, node, joined_text(part.response) or as_text(part.response))
                    found[id or ""] = result.first(found.get(id or ""))
        return results

    def _ids_sent(
        self, answers: Sequence[tuple[int | None, ...]], echoes: Mapping[int, int]
    ) -> dict[int, list[tuple[str | None, ...]]]:
        sampled = {node for nodes in answers for node in nodes if node is not None}
        found: dict[int, list[tuple[str | None, ...]]] = {}
        for node, ids in self._sent.items():
            answer = echoes.get(node, node)
            if answer in sampled:
                found.setdefault(answer, []).extend(ids)
        return found


def with_ids_of(message: Message, asked: Message, places: Sequence[int]) -> Message:
    """Tool results with the ids of the tool calls (of `asked`) that they answer."""
    calls, left = asked.tool_calls, iter(places)
    parts: list[Part] = []
    changed = False
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            place = next(left)
            id = calls[place].id if place < len(calls) else None
            if id and part.id != id:
                part, changed = ToolResultPart(part.response, id), True
        parts.append(part)
    return msgspec.structs.replace(message, parts=tuple(parts)) if changed else message
