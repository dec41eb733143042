"""Trajectories that are announced by requests: what is known of each while it is open, and the spans that end it.

A trajectory opens with its first call and ends when its agent says so, or when it has been quiet for long. Until then
the store shows it as incomplete: its root span is there, without an end.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward, reward_clock
from arttrace.records.span import SpanRow
from arttrace.trajectories.identity.stand_ins import stand_in
from trainer.gateway.errors import Refusal
from trainer.gateway.recording.identity import CallOwner, derived_id, root_span_id, trajectory_owner
from trainer.gateway.recording.open_runs import OpenRun, OpenRuns

MAX_KEPT = 50_000
"""Open trajectories, and ended ones, that are remembered; of more, the quietest are forgotten and stay as they are."""

IDLE_TAG = "ended-by-idle-timeout"
_ERROR = 2
_MAX_ERROR = 4000


class EndOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an agent may say when its trajectory ends. `entry` names the program; an `error` is what it failed by, and
    `interrupted` why it is no run to be judged or learned from."""

    reward: float | None = None
    entry: str | None = None
    error: str | None = None
    interrupted: str | None = None
    scenario: str | None = None
    group: str | None = None
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    result: Any = None


class RewardOrder(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A reward for a trajectory. The same `id` twice is one reward."""

    value: float
    name: str = "reward"
    explanation: str = ""
    id: str | None = None


class EndReport(msgspec.Struct, frozen=True):
    """The answer to an end: the trajectory and the calls it made."""

    trajectory: str
    calls: int
    already_ended: bool = False


@dataclass(slots=True)
class _Span:
    owner: CallOwner
    span_id: str
    parent_span_id: str | None
    name: str
    start_ns: int
    end_ns: int = 0


@dataclass(slots=True)
class _Open:
    root: _Span
    agents: dict[str, _Span] = field(default_factory=dict)
    calls: int = 0
    under_way: int = 0
    touched: float = 0.0


def _restored(name: str, run: OpenRun) -> _Open:
    """What an earlier gateway knew of an open one."""
    root = _Span(trajectory_owner(name), root_span_id(name), None, "agent", run.start_ns)
    kept = _Open(root, calls=run.calls, touched=time.monotonic())
    for agent, start_ns in run.agents.items():
        owner = trajectory_owner(name, agent)
        kept.agents[agent] = _Span(owner, owner.parent_span_id, root.span_id, agent, start_ns)
    return kept


class Trajectories:
    """The open ones. Used from one event loop; every method returns the records to write."""

    def __init__(self, project: str, notes: OpenRuns | None = None) -> None:
        self._project = project
        self._notes = notes
        found = notes.runs if notes is not None else {}
        self._open: OrderedDict[str, _Open] = OrderedDict((name, _restored(name, run)) for name, run in found.items())
        self._ended: OrderedDict[str, EndReport] = OrderedDict()
        self._called_since: set[str] = set()
        self._ended_idle: set[str] = set()  # and their agents did not end them since
        self._told_late: set[str] = set()

    @property
    def open(self) -> int:
        """How many are open."""
        return len(self._open)

    def knows(self, trajectory: str | None) -> bool:
        """Whether it is open, or was ended since the gateway's start."""
        return trajectory in self._open or trajectory in self._ended

    def call_began(self, owner: CallOwner, start_ns: int) -> list[Record]:
        """A call of `owner` begins: its trajectory and its sub-agent are there, at the latest now."""
        if owner.trajectory is None:
            return []
        if owner.trajectory in self._ended:
            self._called_since.add(owner.trajectory)
            return []
        begun: list[Record] = []
        kept = self._open.get(owner.trajectory)
        if kept is None:
            root = _Span(owner, root_span_id(owner.trajectory), None, "agent", start_ns)
            kept = self._open[owner.trajectory] = _Open(root)
            begun.append(self._row(root, self._root_attributes()))
            if len(self._open) > MAX_KEPT:
                self.forget(self._open.popitem(last=False)[0])
        if owner.agent is not None and owner.agent not in kept.agents:
            agent = _Span(owner, owner.parent_span_id, kept.root.span_id, owner.agent, start_ns)
            kept.agents[owner.agent] = agent
            begun.append(self._row(agent, {}))
        kept.calls += 1
        kept.under_way += 1
        self._touch(owner.trajectory, kept)
        if self._notes is not None:
            self._notes.call_began(owner.trajectory, start_ns, owner.agent)
        return begun

    def forget(self, trajectory: str) -> None:
        """A gateway that is started again need not know it: its end is on the disk, or nobody waits for it."""
        if self._notes is not None:
            self._notes.ended(trajectory)

    def call_ended(self, owner: CallOwner, end_ns: int) -> None:
        """A call of `owner` is over."""
        kept = None if owner.trajectory is None else self._open.get(owner.trajectory)
        if kept is None or owner.trajectory is None:
            return
        kept.under_way -= 1
        if owner.agent is not None and owner.agent in kept.agents:
            kept.agents[owner.agent].end_ns = end_ns
        self._touch(owner.trajectory, kept)

    def end(self, trajectory: str, order: EndOrder) -> tuple[EndReport, list[Record]]:
        """End a trajectory: the spans of its sub-agents and its root, and its reward. A further end changes nothing,
        but the first that has tags adds them, and all that one by its agent says of one that had been quiet for long is
        kept; one after further calls is that of a second run, or of one that went on, whose calls cannot be
        distinguished from the first one's.

        Raises Refusal (404) when no call of it came here.
        """
        if (report := self._ended.get(trajectory)) is not None:
            again = self._called_again(trajectory) if trajectory in self._called_since else []
            late = order if trajectory in self._ended_idle else EndOrder(tags=order.tags)
            if trajectory not in self._told_late and (found := self._late(trajectory, late)):
                self._told_late.add(trajectory)
                again += found
            self._called_since.discard(trajectory)
            self._ended_idle.discard(trajectory)
            return msgspec.structs.replace(report, already_ended=True), again
        kept = self._open.pop(trajectory, None)
        if kept is None:
            trajectory_owner(trajectory)
            raise Refusal(404, "not_found", f"no call of trajectory {trajectory!r} that was not ended came here")
        now = time.time_ns()
        report = EndReport(trajectory, kept.calls)
        self._ended[trajectory] = report
        if len(self._ended) > MAX_KEPT:
            forgotten = self._ended.popitem(last=False)[0]
            for known in (self._called_since, self._ended_idle, self._told_late):
                known.discard(forgotten)
        records: list[Record] = []
        for agent in kept.agents.values():
            agent.end_ns = agent.end_ns or now
            records.append(self._row(agent, {}))
        kept.root.end_ns = now
        attributes = self._root_attributes()
        # Calls under way are counted too: until they are there, the trajectory is not whole.
        attributes[semconv.TRAJECTORY_SPAN_COUNT] = kept.calls + len(kept.agents)
        named = {semconv.SCENARIO: order.scenario, semconv.GROUP: order.group, semconv.ENTRY: order.entry}
        attributes |= {name: value for name, value in named.items() if value is not None}
        if order.interrupted is not None:
            attributes[semconv.INTERRUPTED] = order.interrupted[:_MAX_ERROR]
        if order.tags:
            attributes[semconv.TAGS] = list(order.tags)
        if order.metadata:
            attributes[semconv.METADATA] = msgspec.json.encode(order.metadata).decode()
        if order.result is not None:
            attributes[semconv.ENTRY_RESULT] = msgspec.json.encode(order.result).decode()
        root = self._row(kept.root, attributes)
        if order.error is not None:
            root = msgspec.structs.replace(root, status_code=_ERROR, status_message=order.error[:_MAX_ERROR])
        records.append(root)
        return report, [*records, *self._reward_at_end(trajectory, order)]

    def end_idle(self, idle_s: float) -> dict[str, list[Record]]:
        """End those without a call under way for `idle_s` seconds; each is tagged so."""
        limit = time.monotonic() - idle_s
        quiet = [id for id, kept in self._open.items() if not kept.under_way and kept.touched < limit]
        ended = {id: self.end(id, EndOrder(tags=(IDLE_TAG,)))[1] for id in quiet}
        self._ended_idle.update(quiet)
        return ended

    def _reward_at_end(self, trajectory: str, order: EndOrder) -> list[Reward]:
        if order.reward is None:
            return []
        return [self.reward(trajectory, RewardOrder(order.reward, id=derived_id(16, trajectory, "end")))]

    def _late(self, trajectory: str, order: EndOrder) -> list[Record]:
        """What an agent says at the end of a trajectory whose root has ended already: its reward, its tags, and all
        else as metadata, on a span that is there for nothing else."""
        others = msgspec.structs.asdict(order)
        tags, metadata = others.pop("tags"), others.pop("metadata")
        del others["reward"]
        reward = self._reward_at_end(trajectory, order)
        said = {name: value for name, value in others.items() if value is not None} | metadata
        if not (said or tags):
            return [*reward]
        owner, now = trajectory_owner(trajectory), time.time_ns()
        update = SpanRow(
            trace_id=owner.trace_id,
            span_id=derived_id(8, trajectory, "late"),
            parent_span_id=owner.parent_span_id,
            name="update",
            start_ns=now,
            end_ns=now,
            attributes={
                semconv.TRAJECTORY_ID: trajectory,
                semconv.TRAJECTORY_SPAN_COUNT: 0,
                **({semconv.TAGS: list(tags)} if tags else {}),
                **({semconv.METADATA: msgspec.json.encode(said).decode()} if said else {}),
            },
            resource={semconv.SERVICE_NAME: self._project},
            scope_name=SCOPE_NAME,
        )
        return [update, *reward]

    @staticmethod
    def reward(trajectory: str, order: RewardOrder) -> Reward:
        """The reward as a record. Raises Refusal (400) for a value that is not a finite number."""
        trajectory_owner(trajectory)
        if not abs(order.value) < float("inf"):
            raise Refusal(400, "invalid_request_error", "a reward is a finite number")
        now = reward_clock.now_ns()
        return Reward(
            id=order.id or derived_id(16, trajectory, order.name, str(now)),
            trajectory_id=trajectory,
            value=order.value,
            name=order.name,
            explanation=order.explanation,
            time_ns=now,
        )

    def _called_again(self, trajectory: str) -> list[Record]:
        """What makes a trajectory incomplete that was ended after further calls: under its name there was a second run,
        or it was quiet for long and went on."""
        owner = trajectory_owner(trajectory)
        refused = stand_in(
            "calls came after it was ended as quiet: give --trajectory-idle-seconds more, or, if they are a second "
            "run's, each run a name of its own"
            if trajectory in self._ended_idle
            else "a second run was ended under this name, whose calls are among these: give each run its own",
            trace_id=owner.trace_id,
            span_id=derived_id(8, trajectory, "second"),
            parent_span_id=owner.parent_span_id,
            name="agent",
            start_ns=time.time_ns(),
            attributes={semconv.TRAJECTORY_ID: trajectory, semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT},
        )
        return [] if refused is None else [refused]

    def _touch(self, trajectory: str, kept: _Open) -> None:
        kept.touched = time.monotonic()
        self._open.move_to_end(trajectory)

    def _root_attributes(self) -> dict[str, Any]:
        return {semconv.PROJECT: self._project, semconv.ENTRY: "gateway"}

    def _row(self, span: _Span, attributes: dict[str, Any]) -> SpanRow:
        return SpanRow(
            trace_id=span.owner.trace_id,
            span_id=span.span_id,
            parent_span_id=span.parent_span_id,
            name=f"{semconv.OPERATION_INVOKE_AGENT} {span.name}",
            start_ns=span.start_ns,
            end_ns=span.end_ns and max(span.end_ns, span.start_ns),  # earlier where the clock was set back
            attributes={
                semconv.OPERATION_NAME: semconv.OPERATION_INVOKE_AGENT,
                semconv.AGENT_NAME: span.name,
                semconv.TRAJECTORY_ID: span.owner.trajectory,
                **attributes,
            },
            resource={semconv.SERVICE_NAME: self._project},
            scope_name=SCOPE_NAME,
        )


SCOPE_NAME = "arttrace.gateway"
