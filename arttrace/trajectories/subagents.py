"""Calls of one agent span are told apart into that agent and the undecorated sub-agents it started.

Facts decide, in this order: a call that continues a history belongs to that history's agent; a history that starts
anew inside an `execute_tool` span, or in another flow of control than its agent's, is a sub-agent's; a history in its
agent's own flow is a sub-agent's only when its last answer came back, word for word, as the result of a tool call
that another history of the agent made around it. Twins with identical messages in different flows stay apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from arttrace import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Agent
from arttrace.trajectories.history import Exchange, History
from arttrace.trajectories.spans import SpanKey
from arttrace.trajectories.values import text

_Key = tuple[SpanKey | None, str | None, int | None]
"""Of a sub-agent: the tool span it runs in, its flow of control, the call that started its history (when only its
answer tells it apart). All None: the agent itself."""

_OWN: _Key = (None, None, None)


class Scope(msgspec.Struct, frozen=True):
    """One agent span with what the inference needs: the history of its calls, the tool span above each span (None
    outside tools), the spans of tools and decorated agents right below it, and the parent of every known flow of
    control. Neither tools nor flows go round in a cycle. `placed` has what was found out by `_place`."""

    agent_id: str
    execution_id: str | None
    history: History
    tool_of: Mapping[SpanKey, SpanKey | None]
    spans: Mapping[SpanKey, SpanRow]
    executions: Mapping[str, str | None]
    placed: dict[tuple[SpanKey | None, str | None], _Key] = {}


class Partition(msgspec.Struct, frozen=True):
    """The inferred agents of a scope, the agent of each of its calls (by number), and the one under which each span of
    a tool or a decorated agent stands. An inferred agent that runs in a tool span without call id has that span's id as
    `spawned_by`."""

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


def partition(scope: Scope) -> Partition:
    """Tells the agents of one scope apart."""
    roots = _roots(scope.history)
    groups = _by_flow(scope, roots)
    _split_by_answer(scope, groups, roots)
    for group in groups.values():
        if group.key != _OWN and group.key[2] is None:
            group.parent = _place_above(scope, groups, group.key)
            _name_by_tool_span(scope, group)
    _name_by_answer(scope, groups)
    own = _collapsed(groups)
    ids = {
        key: scope.agent_id if key in (_OWN, own) else f"inferred:{scope.history.calls[group.calls[0]].span_id}"
        for key, group in groups.items()
    }
    ids[_OWN] = scope.agent_id
    calls = scope.history.calls
    agents = [
        Agent(
            id=ids[key],
            name=group.name,
            parent_id=ids[group.parent],
            start_ns=calls[group.calls[0]].start_ns,
            end_ns=max(calls[number].end_ns for number in group.calls),
            inferred=True,
            evidence=group.evidence,
            spawned_by=group.spawned_by,
        )
        for key, group in groups.items()
        if key not in (_OWN, own)
    ]
    agent_of_call = [""] * len(calls)
    for key, group in groups.items():
        for number in group.calls:
            agent_of_call[number] = ids[key]
    asked_by = {e.part.id: agent_of_call[e.call] for e in scope.history.exchanges if e.part.id}
    agent_of_span = {
        key: asked_by.get(text(span.attributes.get(semconv.TOOL_CALL_ID)) or "")
        or ids[_place(scope, groups, scope.tool_of.get(key), _flow(span))]
        for key, span in scope.spans.items()
    }
    return Partition(tuple(agents), agent_of_call, agent_of_span)


def _flow(span: SpanRow | None) -> str | None:
    return text(span.attributes.get(semconv.EXECUTION_ID)) if span else None


def _roots(history: History) -> list[int]:
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


def _by_flow(scope: Scope, roots: Sequence[int]) -> dict[_Key, _Group]:
    calls = scope.history.calls
    key_of: dict[int, _Key] = {}  # of each root
    groups: dict[_Key, _Group] = {}
    for number, root in enumerate(roots):
        key = key_of.get(root)
        if key is None:
            tool = scope.tool_of.get((calls[root].trace_id, calls[root].span_id))
            base = _flow(scope.spans.get(tool)) if tool else scope.execution_id
            flow = calls[root].execution_id
            forked = flow is not None and base is not None and flow != base
            key = key_of[root] = (tool, flow if forked else None, None)
            groups.setdefault(key, _Group(key, []))
        groups[key].calls.append(number)
    for key, group in groups.items():
        if key[1]:
            group.evidence = "own flow of control"
    return groups


def _last_answer(history: History, numbers: Sequence[int]) -> str:
    last = max((history.calls[number] for number in numbers), key=lambda call: (call.end_ns, call.span_id))
    return last.choices[0].message.text.strip() if last.choices else ""


def _by_result(scope: Scope) -> dict[str, list[Exchange]]:
    found: dict[str, list[Exchange]] = {}
    for exchange in scope.history.exchanges:
        if exchange.result and exchange.result.strip():
            found.setdefault(exchange.result.strip(), []).append(exchange)
    return found


def _split_by_answer(scope: Scope, groups: dict[_Key, _Group], roots: Sequence[int]) -> None:
    if len(set(roots)) < 2:
        return
    by_result = _by_result(scope)
    calls = scope.history.calls
    used: set[tuple[int, int]] = set()
    for key, group in list(groups.items()):
        histories: dict[int, list[int]] = {}
        for number in group.calls:
            histories.setdefault(roots[number], []).append(number)
        for root, members in histories.items() if len(histories) > 1 else ():
            answer = _last_answer(scope.history, members)
            end_ns = max(calls[number].end_ns for number in members)
            for exchange in by_result.get(answer, []):
                around = calls[exchange.call].end_ns <= calls[members[0]].start_ns and end_ns <= (exchange.seen_ns or 0)
                if roots[exchange.call] not in histories or roots[exchange.call] == root or not around:
                    continue
                if (exchange.answer, exchange.position) in used:
                    continue
                used.add((exchange.answer, exchange.position))
                split: _Key = (key[0], key[1], root)
                groups[split] = _Group(
                    split, members, key, exchange.part.name, exchange.part.id, _evidence_of_answer(exchange)
                )
                group.calls = [number for number in group.calls if roots[number] != root]
                break


def _evidence_of_answer(exchange: Exchange) -> str:
    return f"its answer is what {exchange.part.name} returned"


def _place(scope: Scope, groups: Mapping[_Key, _Group], tool: SpanKey | None, execution: str | None) -> _Key:
    """The agent that whatever runs in this tool span and flow of control belongs to."""
    passed: list[tuple[SpanKey | None, str | None]] = []
    found: _Key | None = None
    while found is None:
        found = scope.placed.get((tool, execution))
        if found is not None:
            break
        passed.append((tool, execution))
        base = _flow(scope.spans.get(tool)) if tool else scope.execution_id
        if execution is not None and execution != base:
            if (tool, execution, None) in groups:
                found = (tool, execution, None)
            execution = scope.executions.get(execution)
        elif tool is None:
            found = _OWN
        elif (tool, None, None) in groups:
            found = (tool, None, None)
        else:
            execution, tool = _flow(scope.spans.get(tool)), scope.tool_of.get(tool)
    scope.placed.update(dict.fromkeys(passed, found))
    return found


def _place_above(scope: Scope, groups: Mapping[_Key, _Group], key: _Key) -> _Key:
    tool, execution, _ = key
    if execution is not None:
        return _place(scope, groups, tool, scope.executions.get(execution))
    return _place(
        scope, groups, scope.tool_of.get(tool) if tool else None, _flow(scope.spans.get(tool)) if tool else None
    )


def _name_by_tool_span(scope: Scope, group: _Group) -> None:
    span = scope.spans.get(group.key[0]) if group.key[0] else None
    if span is None:
        return
    group.name = text(span.attributes.get(semconv.TOOL_NAME)) or group.name
    group.spawned_by = text(span.attributes.get(semconv.TOOL_CALL_ID)) or span.span_id
    group.evidence = f"runs inside the tool {group.name}"


def _name_by_answer(scope: Scope, groups: dict[_Key, _Group]) -> None:
    unnamed = [g for g in groups.values() if g.key != _OWN and not g.spawned_by and g.key[2] is None]
    if not unnamed:
        return
    by_result = _by_result(scope)
    asker = {number: key for key, group in groups.items() for number in group.calls}
    used = {group.spawned_by for group in groups.values()} - {None}
    taken: set[tuple[int, int]] = set()
    for group in unnamed:
        candidates = [
            exchange
            for exchange in by_result.get(_last_answer(scope.history, group.calls), [])
            if (exchange.answer, exchange.position) not in taken
            and exchange.part.id not in used
            and not _stands_under(groups, asker[exchange.call], group.key)
        ]
        if not candidates:
            continue
        exchange = min(candidates, key=lambda item: asker[item.call] != group.parent)  # the first of the parent's
        taken.add((exchange.answer, exchange.position))
        group.name, group.spawned_by = exchange.part.name, exchange.part.id
        group.parent = asker[exchange.call]
        group.evidence = ", ".join(filter(None, [group.evidence, _evidence_of_answer(exchange)]))


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
