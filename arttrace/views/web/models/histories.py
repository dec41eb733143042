"""The message graph, drawn as calls in lanes: a call that goes on with a history stays in its lane; one that departs
from it (a retry, an edit, a compaction, ...) opens a lane, labelled with how it departs and what that was seen by."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.records.trajectory import Agent, AgentCall, Relation, Trajectory
from arttrace.views.labels import one_line
from arttrace.views.timeline import answered_unseen, ended, failure

LANES = 10
"""Lanes that are drawn; further ones share the last."""

_BEGINNINGS = (Relation.START, Relation.SUB_AGENT)


class GraphRow(msgspec.Struct, frozen=True):
    """One call: the lane it stands in, whether a line comes from above and goes on below, the lanes that pass it by,
    and those that open here, each with the lane it opens from. `offset_ns` is -1 where no time is known."""

    span_id: str
    lane: int
    comes: bool
    goes_on: bool
    passing: tuple[int, ...]
    opening: tuple[tuple[int, int], ...]
    relation: str
    evidence: str
    sure: float
    messages: int
    text: str
    offset_ns: int
    error: str


class AgentGraph(msgspec.Struct, frozen=True):
    """The calls of one agent. `lanes` is how many are drawn, `departures` how many calls depart from a history."""

    agent: str
    agent_id: str
    lanes: int
    departures: int
    rows: tuple[GraphRow, ...]


def graphs(run: Trajectory) -> tuple[AgentGraph, ...]:
    """A graph per agent that called a model, those with departures first."""
    calls: dict[str, list[AgentCall]] = {}
    for placed in run.calls:
        calls.setdefault(placed.agent_id, []).append(placed)
    made = [_graph(agent, calls[agent.id], run.start_ns) for agent in run.agents if agent.id in calls]
    return tuple(sorted(made, key=lambda one: -bool(one.departures)))


def _graph(agent: Agent, calls: Sequence[AgentCall], start_ns: int) -> AgentGraph:
    at = {placed.call.span_id: number for number, placed in enumerate(calls)}
    lanes: list[int] = []
    before: list[int] = []
    tips: list[int] = []  # of each lane the last call in it
    for number, placed in enumerate(calls):
        known = at.get(placed.related_to or "", number)
        earlier = known if known < number and placed.relation not in _BEGINNINGS else -1
        if earlier >= 0 and tips[lanes[earlier]] == earlier and placed.relation is Relation.EXTENDS:
            lane = lanes[earlier]
            tips[lane] = number
        else:
            lane = len(tips)
            tips.append(number)
        lanes.append(lane)
        before.append(earlier)
    drawn = min(len(tips), LANES)

    def shown(lane: int) -> int:
        return min(lane, LANES - 1)

    passing: list[set[int]] = [set() for _ in calls]
    opening: list[set[tuple[int, int]]] = [set() for _ in calls]
    goes_on = [tips[lane] > number for number, lane in enumerate(lanes)]
    begun: dict[int, int] = {}
    for number, lane in enumerate(lanes):
        if lane in begun:
            continue
        begun[lane] = number
        parent = before[number]
        if parent >= 0:
            goes_on[parent] = True
            opening[parent + 1].add((shown(lanes[parent]), shown(lane)))
            begun[lane] = parent + 1
    for lane, first in begun.items():
        if shown(lane) == lane:
            for row in range(first, tips[lane]):
                if lanes[row] != lane:
                    passing[row].add(lane)
    rows = tuple(
        GraphRow(
            span_id=placed.call.span_id,
            lane=shown(lanes[number]),
            comes=before[number] >= 0 and lanes[before[number]] == lanes[number],
            goes_on=goes_on[number],
            passing=tuple(sorted(passing[number] - {lane for _, lane in opening[number]})),
            opening=tuple(sorted(opening[number])),
            relation=placed.relation.value,
            evidence=placed.evidence,
            sure=placed.confidence,
            messages=len(placed.call.messages),
            text=_said(placed),
            offset_ns=-1 if is_undated(placed.call.start_ns) else placed.call.start_ns - start_ns,
            error=failure(placed.call),
        )
        for number, placed in enumerate(calls)
    )
    departures = sum(placed.relation not in (*_BEGINNINGS, Relation.EXTENDS) for placed in calls)
    return AgentGraph(agent.name, agent.id, drawn, departures, rows)


def _said(placed: AgentCall) -> str:
    for choice in placed.call.choices:
        asked = ", ".join(f"{one.name}()" for one in choice.message.tool_calls)
        return one_line(" ".join(filter(None, (choice.message.text, asked and f"calls {asked}"))) or "(empty)", 200)
    call = placed.call
    unseen = "content not recorded" if answered_unseen(call) else ended(call, None)
    return one_line(failure(call) or unseen or "call in progress", 200)
