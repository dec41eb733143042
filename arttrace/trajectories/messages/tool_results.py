"""Tool calls and what answered them, by position: which call of which answer each tool result belongs to.

A chat template renders no ids, and frameworks rewrite them between one request and the next. Within one prompt the ids
agree, so a result is placed there: it answers the n-th tool call of the assistant message before it. Where there are
none, as in Gemini's prompts, the name of the tool and the order place it. Ids then only tell apart answers that are the
same word for word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import count

import msgspec
from msgspec.structs import replace

from arttrace.records.call import Call
from arttrace.records.message import Message, Part, ToolCallPart, ToolResultPart, joined_text
from arttrace.trajectories.decoding.attribute_values import as_text


class ToolExchange(msgspec.Struct, frozen=True, gc=False):
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


class Carried(msgspec.Struct, frozen=True, gc=False):
    """A tool call that stands in the prompts of an agent none of whose answers asked for it, at the trie node `node`,
    and the first result seen there, with the start of the call whose prompt brought it."""

    node: int
    part: ToolCallPart
    result: ToolResultPart | None
    seen_ns: int


def result_text(part: ToolResultPart) -> str | None:
    """What a tool returned, as one text."""
    result = part.response
    return result if isinstance(result, str) else joined_text(result) or as_text(result)


class Asked:
    """While a prompt is read: the trie node of the assistant message that the next tool results answer, and which of
    its tool calls are answered so far. A result of no known id answers the first call that has no result, nor one by
    its id among those that follow; the first of those that ask for the tool that it names, if any does."""

    __slots__ = ("_answered", "_count", "_names", "_next", "_places", "node")

    def __init__(self, node: int, calls: Sequence[ToolCallPart] = ()) -> None:
        self.node = node
        self._count = len(calls)
        self._names: Sequence[str] = [call.name for call in calls]
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
        other._count, other._names = self._count, self._names
        return other

    def place(self, id: str | None, following: Iterable[Message] = (), tool: str | None = None) -> int:
        """The position of the tool call that the next result answers; `following` are the messages behind it, `tool` is
        the name that stands at the result."""
        places = self._places.get(id or "")
        if places is None:
            while self._next in self._answered:
                self._next += 1
            found = self._next
            if found < self._count - 1 and (self._places or tool):
                taken = self._answered.union(*(self._places.get(id, ()) for id in _ids_of_results(following)))
                free = [place for place in range(found, self._count) if place not in taken]
                named = [place for place in free if self._names[place] == tool]
                found = next(iter(named or free), found)
        else:
            found = places[0]
            if found in self._answered:
                found = next((place for place in places if place not in self._answered), found)
        self._answered.add(found)
        return found


def _ids_of_results(messages: Iterable[Message]) -> Iterator[str]:
    """The ids of the results that stand in a row at the beginning."""
    for message in messages:
        results = [part for part in message.parts if isinstance(part, ToolResultPart)]
        if not results:
            return
        yield from (part.id for part in results if part.id)


def with_call_ids(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages, with an id for each tool call that was sampled without one, as Gemini's are, and for its result:
    readers of other people's forms tie the one to the other by it."""
    if all(call.id for message in messages for call in message.tool_calls):
        return tuple(messages)
    taken = {call.id for message in messages for call in message.tool_calls}
    unused = (id for number in count() if (id := f"call_{number}") not in taken)
    found: list[Message] = []
    asked, ids = Asked(0), list[str]()
    for at, message in enumerate(messages, 1):
        if calls := message.tool_calls:
            asked, ids = Asked(0, calls), [call.id or next(unused) for call in calls]
            left = iter(ids)
            parts = [replace(part, id=next(left)) if isinstance(part, ToolCallPart) else part for part in message.parts]
            found.append(replace(message, parts=tuple(parts)))
        elif any(isinstance(part, ToolResultPart) for part in message.parts):
            parts = [_tied(part, asked, ids, messages[at:], message.name) for part in message.parts]
            found.append(replace(message, parts=tuple(parts)))
        else:
            found.append(message)
    return tuple(found)


def _tied(part: Part, asked: Asked, ids: Sequence[str], following: Sequence[Message], tool: str | None) -> Part:
    if not isinstance(part, ToolResultPart):
        return part
    place = asked.place(part.id, following, tool)
    return replace(part, id=ids[place]) if not part.id and place < len(ids) else part


_Place = tuple[int, int]
"""A tool call, by the trie node that asked for it and its position there."""
_Seen = tuple[int, int, ToolResultPart]
"""A result: the start of the call whose prompt brought it first, its trie node, and itself."""


class ToolTraffic:
    """What the prompts of an agent, read in order of start, say of tool calls: under which ids the answers came back,
    and the results."""

    def __init__(self) -> None:
        self._answers_to: dict[int, tuple[int, Sequence[int]]] = {}
        self._sent: dict[int, dict[tuple[str | None, ...], None]] = {}
        self._results: dict[_Place, dict[str, _Seen]] = {}  # by the id that they came with, "" for none

    def sent(self, node: int, calls: Sequence[ToolCallPart]) -> None:
        """An assistant message with tool calls stood in a prompt."""
        self._sent.setdefault(node, {})[tuple([call.id for call in calls])] = None

    def answered(
        self, node: int, asked: int, places: Sequence[int], results: Sequence[ToolResultPart], ns: int
    ) -> None:
        """Tool results stood in a prompt."""
        self._answers_to[node] = (asked, places)
        for place, result in zip(places, results, strict=True):
            found = self._results.get((asked, place))
            if found is None:
                found = self._results[asked, place] = {}
            found.setdefault(result.id or "", (ns, node, result))

    def give_ids(self, message: list[Message]) -> None:
        """Gives tool results, by node, the ids of the tool calls that they answer."""
        for node, (asked, places) in self._answers_to.items():
            calls, item = message[asked].tool_calls, message[node]
            if len(places) == len(item.parts) == 1 and _with_id(item.parts[0], calls, places[0]) is item.parts[0]:
                continue
            left = iter(places)
            parts = [
                _with_id(part, calls, next(left)) if isinstance(part, ToolResultPart) else part for part in item.parts
            ]
            if any(new is not old for new, old in zip(parts, item.parts, strict=True)):
                message[node] = Message(item.role, tuple(parts), item.name)

    def exchanges(
        self, calls: Sequence[Call], answers: Sequence[tuple[int | None, ...]], echoes: Mapping[int, int]
    ) -> list[ToolExchange]:
        """Every tool call asked for with its result, in the order asked. `echoes` are the answers by the node at which
        they came back without their reasoning."""
        self._merge(echoes)
        asked = [
            (number, choice.index, position, wanted, answer)
            for number, (call, nodes) in enumerate(zip(calls, answers, strict=True))
            for choice, answer in zip(call.choices, nodes, strict=True)
            if answer is not None
            for position, wanted in enumerate(choice.message.tool_calls)
        ]
        others: _Others | None = None
        came: set[str] | None = None  # the ids of all results, looked at where a tool call has none
        exchanges: list[ToolExchange] = []
        for number, choice, position, wanted, node in asked:
            found = self._results.get((node, position))
            own = found.get(wanted.id or "") if found else None
            ids = (wanted.id,) if wanted.id else ()
            came_back = [other[position] for other in self._sent.get(node, ())]
            elsewhere = own is None and bool(self._results)
            if elsewhere and not found:  # as of the last tool call of a run that was stopped: nothing came there
                came = {id for seen in self._results.values() for id in seen} if came is None else came
                elsewhere = wanted.id in came
            if elsewhere or came_back.count(wanted.id) < len(came_back):
                if others is None:
                    others = _Others(asked, self._results)
                twins = others.twins[node, position]
                own = own or others.nobodys(node, position) or others.elsewhere(wanted.id)
                ids = tuple(dict.fromkeys((*ids, *(id for id in came_back if id and id not in twins))))
            seen_ns, text = (own[0], result_text(own[2])) if own else (None, None)
            exchanges.append(ToolExchange(number, node, wanted, position, choice, text, seen_ns, ids))
        return exchanges

    def carried(self, own: Collection[int], message: Sequence[Message]) -> list[Carried]:
        """The tool calls in prompts that have an id, and stand at none of the `own` answers' nodes."""
        found: list[Carried] = []
        for node in self._sent:
            if node in own:
                continue
            for position, part in enumerate(message[node].tool_calls):
                results = self._results.get((node, position), {})
                first = min(results.values(), key=lambda one: one[:2], default=None)
                if part.id:
                    found.append(Carried(node, part, *((first[2], first[0]) if first else (None, 0))))
        return found

    def _merge(self, echoes: Mapping[int, int]) -> None:
        for echo, answer in echoes.items():
            if echo in self._sent:
                self._sent.setdefault(answer, {}).update(self._sent[echo])
        for (node, position), found in list(self._results.items()) if echoes else ():
            if node in echoes:
                results = self._results.setdefault((echoes[node], position), {})
                for id, seen in found.items():
                    results[id] = min(seen, results.get(id, seen), key=lambda one: one[:2])


class _Others:
    """What is looked at where a result came under another id than its tool call was sampled with."""

    def __init__(
        self, asked: Iterable[tuple[int, int, int, ToolCallPart, int]], results: Mapping[_Place, dict[str, _Seen]]
    ) -> None:
        self._results = results
        self.twins: dict[_Place, set[str]] = {}
        """The ids of all tool calls that are the same word for word."""
        self._asked_at: dict[str, set[int]] = {}
        for _, _, position, wanted, node in asked:
            self.twins.setdefault((node, position), set()).add(wanted.id or "")
            if wanted.id:
                self._asked_at.setdefault(wanted.id, set()).add(node)
        self._by_id: dict[str, _Seen] = {}
        for found in results.values():
            for id, seen in found.items():
                self._by_id[id] = min(seen, self._by_id.get(id, seen), key=lambda one: one[:2])
        self._nobodys: dict[_Place, _Seen | None] = {}

    def nobodys(self, node: int, position: int) -> _Seen | None:
        """The result there under an id that none of the tool calls there has."""
        place = node, position
        if place not in self._nobodys:
            twins = self.twins[place]
            found = [seen for id, seen in self._results.get(place, {}).items() if id not in twins]
            self._nobodys[place] = min(found, key=lambda one: one[:2], default=None)
        return self._nobodys[place]

    def elsewhere(self, id: str | None) -> _Seen | None:
        """The result under an id that one answer alone has, which was edited on its way back."""
        return self._by_id.get(id) if id and len(self._asked_at[id]) == 1 else None


def _with_id(part: Part, calls: Sequence[ToolCallPart], place: int) -> Part:
    id = calls[place].id if place < len(calls) else None
    return ToolResultPart(part.response, id) if id and isinstance(part, ToolResultPart) and id != part.id else part
