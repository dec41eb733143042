"""Calls of one agent span are divided between that agent and the undecorated sub-agents it started.

Facts decide, in this order: a call that continues a history belongs to that history's agent; a history that starts
anew inside an `execute_tool` span, or in another flow of control than its agent's, is a sub-agent's; a history in its
agent's own flow is a sub-agent's only when its last answer came back as the result of a tool call that another history
made around it. Twins with identical messages in different flows stay apart. An answer that came back wrapped is linked
too, less surely (see returned_answers.py); one that came back word for word goes first.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Agent
from arttrace.trajectories.agents.returned_answers import Found, Returned
from arttrace.trajectories.decoding.attribute_values import text
from arttrace.trajectories.identity.deduplicate import SpanKey
from arttrace.trajectories.messages.tool_results import ToolExchange
from arttrace.trajectories.messages.trie import MessageTrie

_Key = tuple[SpanKey | None, str | None, int | None]
"""Of a sub-agent: the tool span it runs in, its flow of control, the call that started its history (when only its
answer distinguishes it). All None: the agent itself."""

_OWN: _Key = (None, None, None)


class AgentSpan(msgspec.Struct, frozen=True):
    """One agent span with what the inference needs: the history of its calls, the tool span above each span (None
    outside tools), the spans of tools and decorated agents right below it, and the parent of every known flow of
    control. Neither tools nor flows go round in a cycle. `placed` has what was found out by `_place`."""

    agent_id: str
    execution_id: str | None
    history: MessageTrie
    tool_of: Mapping[SpanKey, SpanKey | None]
    spans: Mapping[SpanKey, SpanRow]
    executions: Mapping[str, str | None]
    placed: dict[tuple[SpanKey | None, str | None], _Key] = {}


class Partition(msgspec.Struct, frozen=True):
    """The inferred agents of an agent span, the agent of each of its calls (by number), and the one under which each
    span of a tool or a decorated agent stands. An inferred agent that runs in a tool span without call id has that
    span's id as `spawned_by`."""

    agents: tuple[Agent, ...]
    agent_of_call: list[str]
    agent_of_span: dict[SpanKey, str]


class _Group(msgspec.Struct):
    """A sub-agent in the making."""

    key: _Key
    calls: list[int]
    parent: _Key = _OWN
    name: str = "sub-agent"
    spawned_by: str | None = None
    evidence: str = ""
    confidence: float = 1.0


def partition(agent_span: AgentSpan) -> Partition:
    """Tells the agents of one agent span apart."""
    roots = _roots(agent_span.history)
    groups = _by_flow(agent_span, roots)
    returned = Returned((exchange.result, exchange) for exchange in agent_span.history.exchanges)
    _split_by_answer(agent_span, groups, roots, returned)
    for group in groups.values():
        if group.key != _OWN and group.key[2] is None:
            group.parent = _place_above(agent_span, groups, group.key)
            _name_by_tool_span(agent_span, group)
    _name_by_answer(agent_span, groups, returned)
    own = _collapsed(groups)
    ids = {
        key: agent_span.agent_id
        if key in (_OWN, own)
        else f"inferred:{agent_span.history.calls[group.calls[0]].span_id}"
        for key, group in groups.items()
    }
    ids[_OWN] = agent_span.agent_id
    calls = agent_span.history.calls
    agents = [
        Agent(
            id=ids[key],
            name=group.name,
            parent_id=ids[group.parent],
            start_ns=calls[group.calls[0]].start_ns,
            end_ns=max(calls[number].end_ns for number in group.calls),
            inferred=True,
            evidence=group.evidence,
            confidence=group.confidence,
            spawned_by=group.spawned_by,
        )
        for key, group in groups.items()
        if key not in (_OWN, own)
    ]
    agent_of_call = [""] * len(calls)
    for key, group in groups.items():
        for number in group.calls:
            agent_of_call[number] = ids[key]
    exchanges = agent_span.history.exchanges if agent_span.spans else ()
    asked_by = {id: agent_of_call[e.call] for e in exchanges for id in e.ids[1:]}
    asked_by |= {e.part.id: agent_of_call[e.call] for e in exchanges if e.part.id}
    agent_of_span = {
        key: asked_by.get(text(span.attributes.get(semconv.TOOL_CALL_ID)) or "")
        or ids[_place(agent_span, groups, agent_span.tool_of.get(key), _flow(span))]
        for key, span in agent_span.spans.items()
    }
    return Partition(tuple(agents), agent_of_call, agent_of_span)


def _flow(span: SpanRow | None) -> str | None:
    return text(span.attributes.get(semconv.EXECUTION_ID)) if span else None


def _roots(history: MessageTrie) -> list[int]:
    """The call that started the history each call goes on with."""
    roots: list[int | None] = [None] * len(history.continues)
    for start in range(len(roots)):
        path = [start]
        while roots[path[-1]] is None and (before := history.continues[path[-1]]) is not None:
            path.append(before)
        root = roots[path[-1]]
        for number in path:
            roots[number] = path[-1] if root is None else root
    return [number if root is None else root for number, root in enumerate(roots)]


def _by_flow(agent_span: AgentSpan, roots: Sequence[int]) -> dict[_Key, _Group]:
    calls = agent_span.history.calls
    key_of: dict[int, _Key] = {}  # of each root
    groups: dict[_Key, _Group] = {}
    for number, root in enumerate(roots):
        key = key_of.get(root)
        if key is None:
            tool = agent_span.tool_of.get((calls[root].trace_id, calls[root].span_id))
            base = _flow(agent_span.spans.get(tool)) if tool else agent_span.execution_id
            flow = calls[root].execution_id
            forked = flow is not None and base is not None and flow != base
            key = key_of[root] = (tool, flow if forked else None, None)
            groups.setdefault(key, _Group(key, []))
        groups[key].calls.append(number)
    for key, group in groups.items():
        if key[1]:
            group.evidence = "own flow of control"
    return groups


def _last_answer(history: MessageTrie, numbers: Sequence[int]) -> str:
    last = max((history.calls[number] for number in numbers), key=lambda call: (call.end_ns, call.span_id))
    return last.choices[0].message.text.strip() if last.choices else ""


def _around(agent_span: AgentSpan, numbers: Sequence[int]) -> Callable[[ToolExchange], bool]:
    """Whether a tool call was asked for before these calls, and its result seen after them."""
    calls = agent_span.history.calls
    start_ns = min(calls[number].start_ns for number in numbers)
    end_ns = max(calls[number].end_ns for number in numbers)
    return lambda exchange: calls[exchange.call].end_ns <= start_ns and end_ns <= (exchange.seen_ns or 0)


_Slot = tuple[int, int, str | None]


def _slot(exchange: ToolExchange) -> _Slot:
    return exchange.answer, exchange.position, exchange.part.id


def _split_by_answer(
    agent_span: AgentSpan, groups: dict[_Key, _Group], roots: Sequence[int], returned: Returned[ToolExchange]
) -> None:
    """Histories of one flow whose answers were asked for, by another history of it or by an agent elsewhere, are apart.
    In the flow of a sub-agent that is so only where several of them were."""
    if len(set(roots)) < 2:
        return
    histories: dict[_Key, dict[int, list[int]]] = {}
    for key, group in groups.items():
        for number in group.calls:
            histories.setdefault(key, {}).setdefault(roots[number], []).append(number)
    used: set[_Slot] = set()
    for level in returned.LEVELS:
        for key, own in histories.items():
            for root in [root for root in own if len(own) > 1 and (key[0], key[1], root) not in groups]:
                around = _around(agent_span, own[root])
                for found in returned.find(_last_answer(agent_span.history, own[root]), level, around):
                    exchange = found.item
                    asking = roots[exchange.call]
                    if asking not in own or asking == root or _slot(exchange) in used or not around(exchange):
                        continue
                    used.add(_slot(exchange))
                    _split(agent_span, groups, key, root, own[root], found)
                    break
    for key, own in histories.items():
        if key != _OWN and len(own) > 1:
            _split_flow(agent_span, groups, key, own, roots, returned, used)


def _split_flow(
    agent_span: AgentSpan,
    groups: dict[_Key, _Group],
    key: _Key,
    own: Mapping[int, list[int]],
    roots: Sequence[int],
    returned: Returned[ToolExchange],
    used: set[_Slot],
) -> None:
    """Several sub-agents that ran one after the other in one flow, each the answer to a tool call made elsewhere. A
    history nobody asked for (before a compaction, say) belongs to the next one that was."""
    left = [root for root in own if (key[0], key[1], root) not in groups]
    asked: dict[int, Found[ToolExchange]] = {}
    taken: set[_Slot] = set()
    for level in returned.LEVELS:
        for root in left:
            around = _around(agent_span, own[root])
            for found in (
                returned.find(_last_answer(agent_span.history, own[root]), level, around) if root not in asked else ()
            ):
                slot = _slot(found.item)
                if roots[found.item.call] not in own and slot not in used and slot not in taken and around(found.item):
                    asked[root] = found
                    taken.add(slot)
                    break
    if len(asked) < 2:
        return
    first, *others = [root for root in left if root in asked]
    used |= {_slot(asked[root].item) for root in others}
    before: list[int] = []
    for root in left[left.index(first) + 1 :]:
        before += own[root]
        if root in asked:
            _split(agent_span, groups, key, root, before, asked[root])
            before = []


def _split(
    agent_span: AgentSpan,
    groups: dict[_Key, _Group],
    key: _Key,
    root: int,
    members: list[int],
    found: Found[ToolExchange],
) -> None:
    part, split, apart = found.item.part, (key[0], key[1], root), set(members)
    groups[key].calls = [number for number in groups[key].calls if number not in apart]
    id = found.item.id(agent_span.history.calls)
    groups[split] = _Group(split, members, key, part.name, id, _evidence(found), found.confidence)
    asker = next((k for k, group in groups.items() if found.item.call in group.calls), key)
    if not _stands_under(groups, asker, split):
        groups[split].parent = asker


def _evidence(found: Found[ToolExchange]) -> str:
    return f"its answer {found.how} {found.item.part.name} returned"


def _place(agent_span: AgentSpan, groups: Mapping[_Key, _Group], tool: SpanKey | None, execution: str | None) -> _Key:
    """The agent that whatever runs in this tool span and flow of control belongs to."""
    passed: list[tuple[SpanKey | None, str | None]] = []
    found: _Key | None = None
    while found is None:
        found = agent_span.placed.get((tool, execution))
        if found is not None:
            break
        passed.append((tool, execution))
        base = _flow(agent_span.spans.get(tool)) if tool else agent_span.execution_id
        if execution is not None and execution != base:
            if (tool, execution, None) in groups:
                found = (tool, execution, None)
            execution = agent_span.executions.get(execution)
        elif tool is None:
            found = _OWN
        elif (tool, None, None) in groups:
            found = (tool, None, None)
        else:
            execution, tool = _flow(agent_span.spans.get(tool)), agent_span.tool_of.get(tool)
    agent_span.placed.update(dict.fromkeys(passed, found))
    return found


def _place_above(agent_span: AgentSpan, groups: Mapping[_Key, _Group], key: _Key) -> _Key:
    tool, execution, _ = key
    if execution is not None:
        return _place(agent_span, groups, tool, agent_span.executions.get(execution))
    return _place(
        agent_span,
        groups,
        agent_span.tool_of.get(tool) if tool else None,
        _flow(agent_span.spans.get(tool)) if tool else None,
    )


def _name_by_tool_span(agent_span: AgentSpan, group: _Group) -> None:
    span = agent_span.spans.get(group.key[0]) if group.key[0] else None
    if span is None:
        return
    group.name = text(span.attributes.get(semconv.TOOL_NAME)) or group.name
    group.spawned_by = text(span.attributes.get(semconv.TOOL_CALL_ID)) or span.span_id
    group.evidence = f"runs inside the tool {group.name}"


def _name_by_answer(agent_span: AgentSpan, groups: dict[_Key, _Group], returned: Returned[ToolExchange]) -> None:
    unnamed = [g for g in groups.values() if g.key != _OWN and g.calls and not g.spawned_by and g.key[2] is None]
    if not unnamed:
        return
    asker = {number: key for key, group in groups.items() for number in group.calls}
    used = {group.spawned_by for group in groups.values()} - {None}
    taken: set[_Slot] = set()
    for level in returned.LEVELS:
        for group in [group for group in unnamed if not group.spawned_by]:
            candidates = [
                found
                for found in returned.find(
                    _last_answer(agent_span.history, group.calls), level, _around(agent_span, group.calls)
                )
                if _slot(found.item) not in taken
                and found.item.part.id not in used
                and not _stands_under(groups, asker[found.item.call], group.key)
            ]
            if not candidates:
                continue
            found = min(candidates, key=lambda one: asker[one.item.call] != group.parent)  # the first of the parent's
            taken.add(_slot(found.item))
            group.name, group.spawned_by = found.item.part.name, found.item.id(agent_span.history.calls)
            group.parent = asker[found.item.call]
            group.evidence = ", ".join(filter(None, [group.evidence, _evidence(found)]))
            group.confidence = found.confidence


def _stands_under(groups: Mapping[_Key, _Group], key: _Key, above: _Key) -> bool:
    while key != above:
        if key == _OWN:
            return False
        key = groups[key].parent
    return True


def _collapsed(groups: dict[_Key, _Group]) -> _Key:
    """The group that is the agent itself.

    An agent that runs its own loop in another flow than it was entered in (`asyncio.wait_for`, `to_thread`) has no
    call of its own; if just one of its children was not started by a tool call, that child is the agent.
    """
    if _OWN in groups and groups[_OWN].calls:
        return _OWN
    children = [g.key for g in groups.values() if g.parent == _OWN and g.key[0] is None and not g.spawned_by]
    return children[0] if len(children) == 1 else _OWN
