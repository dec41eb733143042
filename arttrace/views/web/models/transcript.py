"""The transcript: what every agent read, said and did, in order, as one flat list of entries with levels."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.records.trajectory import Agent, AgentCall, HttpRequest, ToolCall, Trajectory
from arttrace.records.values.units import quantity
from arttrace.views.timeline import (
    ORDINARY,
    Answered,
    Timeline,
    agent_note,
    answered_unseen,
    broken_off,
    ended,
    failure,
    in_order,
    left,
    shown_with_tools,
    tokens_used,
    unanswered,
)
from arttrace.views.web.models.content import ContentPart, json_text, one_text, parts_of, shown, value_text

LEVELS = 12
"""How far entries are indented; deeper ones stand at this level."""

_DEEPEST = 200
"""Agents below stand at the end: Python's stack has bounds."""


class TranscriptEntry(msgspec.Struct, frozen=True):
    """One entry. `kind` is agent, message, answer, tool or request; `anchor` its name on the page; `span_id` the span
    it comes from, "" for a message. `offset_ns` counts from the run's start, -1 where no time is known, and so is
    `duration_ns`. `ended` says how an answer ended otherwise than by itself, `relation` how a history departs from an
    earlier one, with what that was seen by; `unanswered` what is said of a tool without a result."""

    kind: str
    anchor: str
    level: int
    title: str
    note: str = ""
    parts: tuple[ContentPart, ...] = ()
    result: ContentPart | None = None
    error: str = ""
    span_id: str = ""
    agent_id: str = ""
    offset_ns: int = -1
    duration_ns: int = -1
    relation: str = ""
    evidence: str = ""
    facts: tuple[str, ...] = ()
    ended: str = ""
    open: bool = False
    unanswered: str = ""
    same: str = ""
    """What it is known by while its run goes on, and entries come above it."""

    @property
    def content(self) -> tuple[object, ...]:
        """What is compared between runs: without times, ids, models and token counts."""
        return (self.kind, self.level, self.title, self.parts, self.result, self.error, self.ended)


def transcript(run: Trajectory) -> tuple[TranscriptEntry, ...]:
    """The entries of a run, a sub-agent's below the tool call that started it."""
    walk = _Walk(run)
    walk.agent(run.agents[0], 0)
    for agent in run.agents:  # of a tree that names parents which are not there, none is left out
        walk.agent(agent, 1)
    return tuple(walk.entries)


def matching(entries: Sequence[TranscriptEntry], text: str) -> tuple[TranscriptEntry, ...]:
    """The entries in which a text stands, in whatever case."""
    wanted = text.lower()
    return tuple(
        entry
        for entry in entries
        if wanted
        in "\n".join(
            (entry.title, entry.error, one_text(entry.parts), one_text((entry.result,) if entry.result else ()))
        ).lower()
    )


def alike(transcripts: Sequence[Sequence[TranscriptEntry]]) -> int:
    """With how many entries of the same content all of them begin."""
    return next(
        (
            number
            for number, same in enumerate(zip(*transcripts, strict=False))
            if len({entry.content for entry in same}) > 1
        ),
        min(map(len, transcripts), default=0),
    )


def first_error(entries: Sequence[TranscriptEntry]) -> TranscriptEntry | None:
    """Where the run went wrong: the last failed tool or call, as it is what the run's own error comes from; else
    None."""
    return next((entry for entry in reversed(entries) if entry.error and entry.kind != "agent"), None)


class _Walk:
    """Goes through agents, calls and tools in order of time, and notes an entry for each."""

    def __init__(self, run: Trajectory) -> None:
        self.entries: list[TranscriptEntry] = []
        self._run = run
        self._timeline = Timeline(run)
        self._drawn: set[str] = set()

    def agent(self, agent: Agent, level: int) -> None:
        """Notes an agent and all below it, once."""
        if agent.id in self._drawn:
            return
        self._drawn.add(agent.id)
        if level:
            self._add(
                "agent",
                level,
                agent.name,
                span_id="" if agent.inferred else agent.id,
                agent_id=agent.id,
                note=agent_note(agent),
                start_ns=agent.start_ns,
                end_ns=agent.end_ns,
            )
        below = self._timeline.below(agent)
        seen: set[str] = set()
        for event in in_order(below.calls, below.tools, below.others, below.requests.get(None, ())):
            if isinstance(event, AgentCall):
                self._call(event, level, seen, below.answered)
            elif isinstance(event, ToolCall):
                self._tool(event, level)
                for request in below.requests.get(id(event), ()):
                    self._request(request, level + 1)
                for child in below.started.get(id(event), ()):
                    self._nested(child, level + 1)
            elif isinstance(event, HttpRequest):
                self._request(event, level)
            else:
                self._nested(event, level + 1)

    def _nested(self, agent: Agent, level: int) -> None:
        if level < _DEEPEST:
            self.agent(agent, level)

    def _call(self, placed: AgentCall, level: int, seen: set[str], answered: Answered) -> None:
        call = placed.call
        departs = placed.relation not in ORDINARY and placed.confidence > 0
        for node in self._timeline.unseen(placed.prompt_node, seen):
            if not node.sampled_by and not shown_with_tools(node.message, answered):
                parts = parts_of(node.message)
                note = "context" if node.message.role == "assistant" else ""
                self._add(
                    "message", level, node.message.role, note=note, parts=parts, agent_id=placed.agent_id, same=node.id
                )
        model = call.policy_version or call.response_model or call.request_model
        tokens = tokens_used(call.input_tokens, call.output_tokens)
        evidence = placed.evidence
        if departs and placed.confidence < 1:
            evidence = f"{evidence} ({placed.confidence:.0%} sure)"
        for choice in call.choices or (None,):
            facts = (model, tokens, "content not recorded" if answered_unseen(call) else None)
            answer = f"{call.span_id} {choice.index if choice else 0}"
            several = f"choice {choice.index}" if choice and len(call.choices) > 1 else None
            self._add(
                "answer",
                level,
                "assistant" if call.end_ns or choice else "call in progress",
                parts=parts_of(choice.message) if choice else (),
                error=failure(call),
                span_id=call.span_id,
                agent_id=placed.agent_id,
                start_ns=call.start_ns,
                end_ns=call.end_ns,
                relation=placed.relation.value if departs else "",
                evidence=evidence if departs else "",
                facts=tuple(filter(None, (several, *facts))),
                ended=ended(call, choice),
                same=answer,
            )
        seen.update(placed.choice_nodes)

    def _tool(self, tool: ToolCall, level: int) -> None:
        result = None if tool.result is None else shown("result", value_text(tool.result))
        self._add(
            "tool",
            level,
            tool.name,
            note="inferred from messages" if tool.inferred else "",
            parts=(shown("call", json_text(tool.arguments) or "{}", tool.name),),
            result=result,
            error=tool.error or "",
            span_id=tool.span_id,
            agent_id=tool.agent_id,
            start_ns=tool.start_ns,
            end_ns=tool.end_ns,
            opened=tool.error is not None,
            unanswered="" if result or tool.error else unanswered(tool),
            same=tool.id,
        )

    def _request(self, request: HttpRequest, level: int) -> None:
        size = None if request.response_bytes is None else f"{quantity(request.response_bytes, 'byte')}"
        self._add(
            "request",
            level,
            f"{request.method} {request.url or request.host}",
            error=request.error or broken_off(request.interrupted),
            span_id=request.span_id,
            agent_id=request.agent_id,
            start_ns=request.start_ns,
            end_ns=request.end_ns,
            facts=tuple(filter(None, (str(request.status) if request.status else None, size))),
            ended=left(request.interrupted),
        )

    def _add(
        self,
        kind: str,
        level: int,
        title: str,
        *,
        note: str = "",
        parts: tuple[ContentPart, ...] = (),
        result: ContentPart | None = None,
        error: str = "",
        span_id: str = "",
        agent_id: str = "",
        start_ns: int = 0,
        end_ns: int = 0,
        relation: str = "",
        evidence: str = "",
        facts: tuple[str, ...] = (),
        ended: str = "",
        opened: bool = False,
        unanswered: str = "",
        same: str = "",
    ) -> None:
        known = start_ns and not is_undated(start_ns)
        self.entries.append(
            TranscriptEntry(
                kind=kind,
                anchor=f"e{len(self.entries)}",
                level=min(level, LEVELS),
                title=title or kind,
                note=note,
                parts=parts,
                result=result,
                error=error,
                span_id=span_id,
                agent_id=agent_id,
                offset_ns=start_ns - self._run.start_ns if known else -1,
                duration_ns=end_ns - start_ns if known and end_ns else -1,
                relation=relation,
                evidence=evidence,
                facts=facts,
                ended=ended,
                open=opened,
                unanswered=unanswered,
                same=f"{kind} {agent_id} {same or span_id}",
            )
        )
