"""One line about a trajectory, for lists."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterable, Sequence
from importlib.metadata import version
from typing import Any, NamedTuple

import msgspec

from arttrace.records.reward import Reward
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories import sequences
from arttrace.trajectories.groups import group_key
from arttrace.trajectories.identity.reward_membership import before_colons
from arttrace.trajectories.usage import used


class TrajectorySummary(msgspec.Struct, frozen=True):
    """What a list shows of a trajectory. Token counts are those of TokenReport; `error` is the run's own; `incomplete`
    is the reason, "" for a complete trajectory; `unread` are the calls without a readable message. `input_tokens` and
    `output_tokens` are those of all prompts and all answers as the models counted them, None where nobody did."""

    id: str
    revision: str
    entry: str
    group: str
    tags: tuple[str, ...]
    metadata: dict[str, Any]
    start_ns: int
    end_ns: int
    agents: int
    calls: int
    tool_calls: int
    captured_tokens: int
    trained_tokens: int
    quarantined: dict[str, int]
    policy_versions: tuple[str, ...]
    rewards: tuple[Reward, ...]
    error: str | None
    incomplete: str
    unread: dict[str, int] = {}
    input_tokens: int | None = None
    output_tokens: int | None = None


_READING = 28
"""Incremented when the same spans are read in another way, or summaries are stored in another form."""

_fields = " ".join((str(_READING), *TrajectorySummary.__struct_fields__))
SUMMARY_VERSION = f"{version('arttrace')} {zlib.crc32(_fields.encode()):08x}"
"""Summaries of another version of arttrace are made again: it may have read the spans in another way."""


_encode = msgspec.json.encode


class InferredTool(msgspec.Struct, frozen=True):
    """A tool call that no span recorded, for the view `tool_calls`."""

    trajectory_id: str
    name: str
    id: str
    arguments: str
    result: str | None
    start_ns: int
    end_ns: int


class ReadCall(msgspec.Struct, frozen=True):
    """A call whose messages do not stand on its span as such, for the views `messages` and `calls`: those of its input
    by their place among ReadMessages.texts, its answers as JSON text."""

    trajectory_id: str
    trace_id: str
    span_id: str
    messages: list[int]
    output: str | None


class ReadMessages(msgspec.Struct, frozen=True):
    """Such calls of a trajectory, with each distinct message once, as JSON text."""

    texts: list[str]
    calls: list[ReadCall]


def read_messages(trajectory: Trajectory, of: Collection[tuple[str, str]]) -> ReadMessages | None:
    """The messages of these calls of a trajectory (trace and span id), as they were read; None if there are none."""
    places: dict[str, int] = {}
    calls = []
    for one in (placed.call for placed in trajectory.calls):
        if (one.trace_id, one.span_id) in of and (one.messages or one.choices):
            texts = [_encode(message).decode() for message in one.messages]
            output = _encode([choice.message for choice in one.choices]).decode() if one.choices else None
            messages = [places.setdefault(text, len(places)) for text in texts]
            calls.append(ReadCall(trajectory.id, one.trace_id, one.span_id, messages, output))
    return ReadMessages(list(places), calls) if calls else None


def inferred_tools(trajectory: Trajectory) -> list[InferredTool]:
    """The tool calls of a trajectory that only its messages show."""
    return [
        InferredTool(trajectory.id, one.name, one.id, one.arguments, one.result, one.start_ns, one.end_ns)
        for one in trajectory.tool_calls
        if one.inferred
    ]


def summarise(trajectory: Trajectory) -> TrajectorySummary:
    """The summary of a trajectory; its entry is the entry point's name, or the root agent's where it has none."""
    _, report = sequences(trajectory)
    tokens = used(trajectory)
    return TrajectorySummary(
        id=trajectory.id,
        revision=trajectory.revision,
        entry=trajectory.entry_name or trajectory.entry or trajectory.agents[0].name,
        group=group_key(trajectory),
        tags=trajectory.tags,
        metadata=trajectory.metadata,
        start_ns=trajectory.start_ns,
        end_ns=trajectory.end_ns,
        agents=len(trajectory.agents),
        calls=len(trajectory.calls),
        tool_calls=len(trajectory.tool_calls),
        captured_tokens=report.captured_tokens,
        trained_tokens=report.trained_tokens,
        quarantined=report.reasons,
        policy_versions=trajectory.policy_versions,
        rewards=trajectory.rewards,
        error=trajectory.error,
        incomplete=trajectory.incomplete,
        unread=trajectory.unread,
        input_tokens=tokens.asked,
        output_tokens=tokens.answered,
    )


class Summarised(NamedTuple):
    """What is kept of trajectories, each by the id that their spans were given under: their summaries, none where there
    is no trajectory, the tool calls that no span recorded, and messages that stand beside their calls."""

    summaries: dict[str, list[TrajectorySummary]]
    tools: dict[str, list[InferredTool]]
    messages: dict[str, list[ReadMessages]]


def summarised(
    given: Sequence[str], trajectories: Iterable[Trajectory], to_read: Collection[tuple[str, str]]
) -> Summarised:
    """What is kept of the trajectories of what was given under these ids; `to_read` as of `read_messages`."""
    found = Summarised({id: [] for id in given}, {}, {})
    for trajectory in trajectories:
        id = next(id for id in (trajectory.id, *before_colons(trajectory.id)) if id in found.summaries)
        found.summaries[id].append(summarise(trajectory))
        if tools := inferred_tools(trajectory):
            found.tools.setdefault(id, []).extend(tools)
        if read := read_messages(trajectory, to_read):
            found.messages.setdefault(id, []).append(read)
    return found
