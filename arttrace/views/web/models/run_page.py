"""One run: its facts, its agents, what is wrong with it in words, and its rewards."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.records.reward import PERSON, Reward
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.store import TrajectorySummary
from arttrace.trajectories import advice
from arttrace.views.terminal import came_late, unread_lines
from arttrace.views.timeline import agent_note, agents_with_levels
from arttrace.views.web.models.content import ContentPart, shown, value_text
from arttrace.views.web.models.transcript import TranscriptEntry, first_error

MOST_AGENTS = 400


class RunProblem(msgspec.Struct, frozen=True):
    """What is wrong with a run: a tone (bad or warn), a headline, the words, what can be done, and the entry of the
    transcript where it shows ("" for none)."""

    tone: str
    title: str
    text: str
    hint: str = ""
    anchor: str = ""
    where: str = ""


class AgentRow(msgspec.Struct, frozen=True):
    """An agent in the tree."""

    id: str
    name: str
    level: int
    calls: int
    tools: int
    duration_ns: int
    note: str
    certainty: str
    """recorded, inferred or missing"""


class RewardRow(msgspec.Struct, frozen=True):
    """A reward as it is shown; `undo` is the id of one that a person gave here."""

    value: float
    name: str
    source: str
    agent: str
    words: ContentPart
    undo: str


def problems(
    run: Trajectory, entries: Sequence[TranscriptEntry], late: Sequence[str], *, silent: bool
) -> tuple[RunProblem, ...]:
    """What is wrong, the worst first; empty when nothing is. `silent`: that it is without a call is all that is."""
    found: list[RunProblem] = []
    broken = first_error(entries)
    if run.error:
        at, where = (broken.anchor, f"{broken.kind} {broken.title}") if broken else ("", "")
        found.append(RunProblem("bad", "This run failed", run.error, anchor=at, where=where))
    elif broken is not None:
        count = sum(bool(entry.error) for entry in entries)
        title = "A step failed" if count == 1 else f"{count} steps failed"
        text = f"{broken.title}: {broken.error}. The run went on."
        found.append(RunProblem("warn", title, text, anchor=broken.anchor, where=f"{broken.kind} {broken.title}"))
    for reason in filter(None, run.incomplete.split("; ")):
        hint = " ".join(advice.on_incomplete(reason))
        found.append(RunProblem("warn", "Incomplete", f"{reason}. It is not trained on.", hint))
    for name, count in run.unread.items():
        [text], hint = unread_lines({name: count}), " ".join(advice.on_unread([name]))
        found.append(RunProblem("warn", "Unread calls", f"{text}.", hint))
    if run.conflicts:
        text = f"{quantity(run.conflicts, 'span')} set aside: other content under an id that is taken."
        found.append(RunProblem("warn", "Conflicts", text))
    if run.http_lost:
        text = f"{quantity(run.http_lost, 'HTTP request')} begun that did not arrive. The run trains all the same."
        found.append(RunProblem("warn", "Requests missing", text))
    if silent:
        text = "No answer of a model was captured in this run: there is nothing to train on."
        found.append(RunProblem("warn", "No model call", text, advice.ON_NO_CALL))
    if late:
        found.append(RunProblem("warn", "Late spans", came_late(late)))
    return tuple(found)


def agent_rows(run: Trajectory) -> tuple[AgentRow, ...]:
    """The agent tree in order, at most MOST_AGENTS of it."""
    calls = Counter(placed.agent_id for placed in run.calls)
    tools = Counter(tool.agent_id for tool in run.tool_calls)
    rows: list[AgentRow] = []
    for agent, level in itertools.islice(agents_with_levels(run), MOST_AGENTS):
        root = agent is run.agents[0]
        start, end = (run.start_ns, run.end_ns) if root else (agent.start_ns, agent.end_ns)
        certainty = "missing" if agent.placeholder else "inferred" if agent.inferred else "recorded"
        rows.append(
            AgentRow(
                agent.id,
                agent.name,
                min(level, 12),
                calls[agent.id],
                tools[agent.id],
                max(0, end - start) if start and end and not is_undated(start) else -1,
                agent_note(agent),
                certainty,
            )
        )
    return tuple(rows)


def reward_rows(run: Trajectory) -> tuple[RewardRow, ...]:
    """The rewards, the latest first."""
    names = {agent.id: agent.name for agent in run.agents}
    return tuple(_reward_row(one, names) for one in sorted(run.rewards, key=lambda one: -one.time_ns))


def note_rows(run: Trajectory) -> tuple[RewardRow, ...]:
    """What people noted, the latest first."""
    names = {agent.id: agent.name for agent in run.agents}
    return tuple(_reward_row(one, names) for one in sorted(run.notes, key=lambda one: -one.time_ns))


def _reward_row(one: Reward, names: dict[str, str]) -> RewardRow:
    agent = names.get(one.agent_id or "", one.agent_id or "")
    undo = one.id if one.source == PERSON else ""
    return RewardRow(one.value, one.name, one.source, agent, shown("text", one.explanation), undo)


def input_and_result(run: Trajectory) -> tuple[ContentPart | None, ContentPart | None]:
    """What the entry point was given and gave back."""
    given = None if run.arguments in (None, {}) else shown("other", value_text(run.arguments))
    return given, None if run.result is None else shown("other", value_text(run.result))


def token_words(summary: TrajectorySummary) -> str:
    """What became of the sampled tokens, in one sentence."""
    if not summary.captured_tokens:
        return "no sampled token was captured"
    return f"{summary.trained_tokens} of {summary.captured_tokens} sampled tokens can be trained on"
