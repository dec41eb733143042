"""Pure: recorded runs become scenarios to be run again, and those that cannot be are refused with the reason.

A scenario is one recorded input. Its runs join the group of the recorded run: runs of one input are compared, whenever
and however they were made.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import msgspec

from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.rollout import PROGRAM, Command, RecordedTool, RolloutJob, ToolRecord
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.selection import is_held_out
from arttrace.system.errors import RolloutError
from arttrace.trajectories.groups import REPLAY_OF, group_key, replayed
from arttrace.wire.span_attributes import MAX_ERROR_TEXT

COMMAND_INPUT = "rollout_input"
"""The key in a run's metadata under which the fields stand that its command was started with."""
OnMissing = Literal["live", "error"]

_MODEL_CALLS = semconv.CALL_OPERATIONS


@dataclass(frozen=True, slots=True)
class RecordedInput:
    """One recorded input. `group` is the key that its runs share, None for the one that they have by themselves."""

    entry: str
    arguments: dict[str, Any]
    group: str | None = None
    scenario: str | None = None
    replay_of: str | None = None
    tools: ToolRecord | None = None
    held_out: bool = False
    command: Command | None = None

    def job(self, trajectory_id: str) -> RolloutJob:
        """One run of it."""
        return RolloutJob(
            self.arguments,
            scenario=self.scenario,
            group=self.group,
            metadata=self._metadata(),
            tags=(semconv.HELD_OUT_TAG,) if self.held_out else (),
            trajectory_id=trajectory_id,
            as_recorded=True,
            tools=self.tools,
            command=self.command,
        )

    def _metadata(self) -> dict[str, Any]:
        if self.command is not None:
            return {COMMAND_INPUT: self.arguments}
        return {REPLAY_OF: self.replay_of} if self.replay_of else {}


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """What is to be run. `refused` counts recorded runs by why they cannot be; `same` are those whose input is that of
    another one that was taken."""

    scenarios: tuple[RecordedInput, ...] = ()
    refused: dict[str, int] = field(default_factory=dict)
    same: int = 0

    @property
    def entry(self) -> str:
        """The one entry point of all scenarios. Raises RolloutError when they have several, or there is no scenario."""
        entries = sorted({scenario.entry for scenario in self.scenarios})
        if len(entries) == 1:
            return entries[0]
        if entries:
            raise RolloutError(
                f"the chosen runs have {len(entries)} entry points: {', '.join(entries)}",
                "Choose one with --entry, or runs of one with --trajectory, --group or --scenario.",
            )
        reasons = "; ".join(f"{count} x {reason}" for reason, count in sorted(self.refused.items()))
        raise RolloutError(
            f"none of the chosen runs can be run again: {reasons}" if reasons else "no recorded run was chosen",
            "A run can be replayed when its function was recorded with arguments that are JSON, whole and unmasked."
            if reasons
            else "`arttrace ls` lists what there is.",
        )


def plan_replay(
    recorded: Iterable[tuple[Trajectory, Sequence[SpanRow]]],
    *,
    entry: str | None = None,
    limit: int | None = None,
    tools: OnMissing | None = None,
    held_out: bool = False,
) -> ReplayPlan:
    """Scenarios of recorded runs (each with its spans), in their order, at most `limit`.

    `entry` takes the place of the recorded entry points; one function that was recorded under several spellings is run
    by the first. With `tools` the tools are answered from the record, and a call beyond it is run ("live") or fails
    ("error"). Runs of a held-out run are held out; with `held_out` all are.
    """
    scenarios: list[RecordedInput] = []
    refused: Counter[str] = Counter()
    seen: set[tuple[str, bytes]] = set()
    sources: dict[str, str] = {}
    same = 0
    for trajectory, spans in recorded:
        if limit is not None and len(scenarios) >= limit:
            break
        root = _root(trajectory, spans)
        reason = _why_not(trajectory, root, entry)
        if reason:
            refused[reason] += 1
            continue
        key = group_key(trajectory)
        input_ = (key, canonical_json(trajectory.arguments))
        if input_ in seen:
            same += 1
            continue
        seen.add(input_)
        scenarios.append(
            RecordedInput(
                entry=entry or sources.setdefault(trajectory.entry_name or trajectory.entry, _entry(trajectory)),
                arguments=trajectory.arguments,
                group=key,
                scenario=trajectory.scenario,
                replay_of=replayed(trajectory.metadata) or trajectory.id,
                tools=None if tools is None else _tool_record(trajectory.id, spans, tools),
                held_out=held_out or is_held_out(trajectory),
            )
        )
    return ReplayPlan(tuple(scenarios), dict(refused), same)


def same_entry(one: str, other: str) -> bool:
    """Whether two spellings may mean one function: `agent.py:run`, `/home/me/agent.py:run` and `app.agent:run` do."""
    return _plain(one) == _plain(other)


def _plain(entry: str) -> tuple[str, str]:
    source, _, function = entry.rpartition(":")
    return source.rpartition("/")[2].removesuffix(".py").rpartition(".")[2], function


def _root(trajectory: Trajectory, spans: Sequence[SpanRow]) -> SpanRow | None:
    roots = [
        span
        for span in spans
        if semconv.ENTRY in span.attributes and span.attributes.get(semconv.TRAJECTORY_ID) == trajectory.id
    ]
    return max(roots, key=lambda span: span.end_ns, default=None)


def _is_program(trajectory: Trajectory) -> bool:
    return ":" not in trajectory.entry.rpartition("/")[2] and trajectory.arguments.keys() == {"argv"}


def _entry(trajectory: Trajectory) -> str:
    return PROGRAM + trajectory.entry if _is_program(trajectory) else trajectory.entry


def _why_not(trajectory: Trajectory, root: SpanRow | None, entry: str | None) -> str:
    """Why a recorded run cannot be run again, "" when it can."""
    if COMMAND_INPUT in trajectory.metadata:
        return "of a command, whose fields --input gives"
    if root is None:
        return "not the run of an entry point (its spans came from elsewhere)"
    if reason := _not_whole(root, semconv.ENTRY_ARGUMENTS):
        return f"its arguments {reason}"
    if not isinstance(trajectory.arguments, dict):
        return "no arguments were recorded"
    if entry is None and not _is_program(trajectory):
        if ":" not in trajectory.entry:
            return "recorded in a `with` block, which is no function to call: name one with --entry"
        if "<locals>" in trajectory.entry:
            return "its entry point is defined inside another function: name one with --entry"
    return ""


_LOSSES = {
    semconv.TRUNCATED: "were cut to a bound",
    semconv.MASKED: "were masked or redacted",
    semconv.DESCRIBED: "hold values that are no JSON",
}


def _not_whole(span: SpanRow, attribute: str) -> str:
    for marker, reason in _LOSSES.items():
        if attribute in (span.attributes.get(marker) or ()):
            return reason
    return ""


def _tool_record(trajectory_id: str, spans: Sequence[SpanRow], on_missing: OnMissing) -> ToolRecord:
    agents = _agents(spans)
    found = [tool for tool in _recorded_tools(trajectory_id, spans) if tool.name not in agents]
    return ToolRecord(tuple(found), on_missing, tuple(sorted(agents)))


def _agents(spans: Sequence[SpanRow]) -> set[str]:
    """The names of the tools in which a model was called."""
    by_id = {span.span_id: span for span in spans}
    names: set[str] = set()
    seen: set[str] = set()
    for call in spans:
        above = call.parent_span_id if call.attributes.get(semconv.OPERATION_NAME) in _MODEL_CALLS else None
        while above is not None and above not in seen and (span := by_id.get(above)) is not None:
            seen.add(above)
            if span.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_EXECUTE_TOOL:
                names.add(str(span.attributes.get(semconv.TOOL_NAME)))
            above = span.parent_span_id
    return names


def _recorded_tools(trajectory_id: str, spans: Sequence[SpanRow]) -> Iterator[RecordedTool]:
    """The executions of a run that can be replayed: arguments and outcome whole."""
    for span in sorted(spans, key=lambda span: (span.start_ns, span.span_id)):
        attributes = span.attributes
        arguments = attributes.get(semconv.TOOL_CALL_ARGUMENTS)
        if (
            attributes.get(semconv.OPERATION_NAME) != semconv.OPERATION_EXECUTE_TOOL
            or attributes.get(semconv.TRAJECTORY_ID) != trajectory_id
            or not isinstance(arguments, str)
            or _not_whole(span, semconv.TOOL_CALL_ARGUMENTS)
            or _not_whole(span, semconv.TOOL_CALL_RESULT)
            or _not_whole(span, semconv.TOOL_RESULT)
        ):
            continue
        name, given = str(attributes.get(semconv.TOOL_NAME)), msgspec.json.decode(arguments)
        error, result = attributes.get(semconv.ERROR_TYPE), attributes.get(semconv.TOOL_CALL_RESULT)
        if isinstance(result, str):
            whole = attributes.get(semconv.TOOL_RESULT)
            yield RecordedTool(
                name,
                given,
                msgspec.json.decode(result),
                failed=error is not None,
                whole=msgspec.json.decode(whole) if isinstance(whole, str) else None,
            )
        elif isinstance(error, str) and _is_builtin_error(error) and len(span.status_message) < MAX_ERROR_TEXT:
            yield RecordedTool(name, given, error=error, message=span.status_message)


def _is_builtin_error(kind: str) -> bool:
    """Whether it can be raised again from its message."""
    found = getattr(builtins, kind, None)
    made_otherwise = (UnicodeError, BaseExceptionGroup)
    return isinstance(found, type) and issubclass(found, Exception) and not issubclass(found, made_otherwise)
