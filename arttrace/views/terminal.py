"""Trajectories as text for a terminal or a pipe: a table of many, a tree of one, a table of any query's rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from arttrace.formats.imported_run import is_undated
from arttrace.records.reward import Reward
from arttrace.records.sequence import TokenReport, TokenSequence
from arttrace.records.trajectory import Trajectory
from arttrace.records.values.units import quantity
from arttrace.trajectories import advice
from arttrace.trajectories.usage import Used, used
from arttrace.views import run_filter
from arttrace.views.agent_tree import agent_tree, cropped
from arttrace.views.labels import json_text, one_line, printable

_PIPE_WIDTH = 100
_LONGEST = 10_000  # columns, of a line in a pipe
_BESIDE_IDS = 72  # columns of a terminal, the least in which a list can be read


def console() -> Console:
    """Standard output: as wide as the terminal, 100 columns and without colour in a pipe."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
    return out


def print_whole(shown: RenderableType) -> None:
    """Prints it on standard output; in a pipe nothing of it is cut, and no line of it wraps."""
    out = console()
    if not out.is_terminal:
        out.width = max(1, Measurement.get(out, out.options.update(max_width=_LONGEST), shown).maximum)
    out.print(shown)


LIST_COLUMNS = ("id", "entry", "group", "age", "agents", "calls", "tokens", "policy", "reward", "status")
_STATUS_STYLES = {"complete": "green", "unread": "yellow", "incomplete": "yellow", "failed": "red"}


def trajectory_table(rows: Iterable[Sequence[str]], *, wide: bool = False) -> Table:
    """A table with LIST_COLUMNS, and what was used, tags and metadata where it is wide; tokens read trained/captured.
    Entry and group give way where it is narrow; ids are never cut."""
    listed = list(rows)
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in (*LIST_COLUMNS, *(("used", "tags", "metadata") if wide else ())):
        # Columns that may wrap are narrowed first; their cells are cropped instead.
        table.add_column(
            name,
            justify="right" if name in ("age", "agents", "calls", "tokens", "reward", "used") else "left",
            no_wrap=name not in ("entry", "group"),
            min_width=widest(id for id, *_ in listed) if name == "id" else None,
        )
    for id, *row in listed:
        cells = [cropped(Text(id)), *(cropped(Text(cell_line(cell, wide))) for cell in row)]
        status = LIST_COLUMNS.index("status")
        cells[status].stylize(_STATUS_STYLES.get(row[status - 1], ""))
        table.add_row(*cells)
    return table


def cell_line(text: str, wide: bool) -> str:
    """A cell of a list in one line; where it is wide, nothing of it is cut."""
    return one_line(text, len(text) + 1) if wide else one_line(text)


def widest(texts: Iterable[str]) -> int:
    """How many columns of a terminal the widest of these texts takes."""
    return max(map(cell_len, texts), default=0)


def make_room(out: Console, ids: Iterable[str]) -> None:
    """Makes the page wider where ids leave too little of it to the other columns of a list."""
    out.width = max(out.width, widest(ids) + _BESIDE_IDS)


def trajectory_view(
    trajectory: Trajectory,
    sequences: Sequence[TokenSequence],
    report: TokenReport,
    reward: float | None,
    late: Sequence[str] = (),
    links: Sequence[str] = (),
    below: Sequence[RenderableType] = (),
    cost: str = "",
) -> RenderableType:
    """Everything a person wants to see of one run: its facts, then its agents as a tree of messages and tools, or what
    is given as `below`. `late` are the policy versions that took it before its last spans came;
    `cost` is what it cost, in words."""
    facts = _facts(trajectory, sequences, report, reward, cost)
    if late:
        facts.add_row("late", Text(came_late(late), style="yellow"))
    for link in links:
        facts.add_row("langfuse", Text(link, style=f"link {link}"))
    return Group(facts, Text(), *(below or (agent_tree(trajectory),)))


def came_late(versions: Sequence[str]) -> str:
    """Of a run whose spans are others now than when these versions took it: trained on it, or set it aside."""
    return f"spans came after {printable(', '.join(versions))} took it; they are not trained on"


def _facts(
    trajectory: Trajectory, sequences: Sequence[TokenSequence], report: TokenReport, reward: float | None, cost: str
) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def fact(name: str, value: str | Text) -> None:
        table.add_row(name, Text(printable(value)) if isinstance(value, str) else value)

    fact("trajectory", f"{trajectory.id}  (revision {trajectory.revision})")
    source = trajectory.entry or trajectory.agents[0].name
    name = trajectory.entry_name or source
    fact("entry", one_line(name if name == source else f"{name} ({source})"))
    if trajectory.arguments not in (None, {}):
        fact("arguments", one_line(json_text(trajectory.arguments)))
    if trajectory.result is not None:
        fact("result", one_line(json_text(trajectory.result)))
    for name, value in (("scenario", trajectory.scenario), ("group", trajectory.group)):
        if value:
            fact(name, one_line(value))
    if trajectory.regrouped:
        fact("group", f"{one_line(trajectory.regrouped)} (by `arttrace group`)")
    if trajectory.tags:
        fact("tags", one_line(", ".join(trajectory.tags)))
    if trajectory.metadata:
        fact("metadata", one_line(json_text(trajectory.metadata)))
    started = datetime.fromtimestamp(trajectory.start_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    took = f"{started}, {(trajectory.end_ns - trajectory.start_ns) / 1e9:.2f} s"
    fact("when", "not known (imported without times)" if is_undated(trajectory.start_ns) else took)
    fact("policy", ", ".join(trajectory.policy_versions) or "no policy version recorded")
    fact("tokens", _tokens(sequences, report))
    if words := used_words(used(trajectory)):
        fact("used", words)
    if cost:
        fact("cost", one_line(cost))
    if reward is not None:
        fact("reward", Text(f"{reward:.3f}", style="bold"))
    for given in trajectory.rewards:
        fact("", _reward(given, trajectory))
    if trajectory.error:
        fact("error", Text(one_line(trajectory.error), style="red"))
    if trajectory.conflicts:
        fact("conflicts", f"{trajectory.conflicts} set aside: other content under the id of a span")
    if trajectory.http_lost:
        fact("http", Text(f"{trajectory.http_lost} HTTP requests were begun and are not in the store", style="yellow"))
    for line in unread_lines(trajectory.unread):
        fact("unread", Text(line, style="yellow"))
    for words in advice.on_unread(trajectory.unread):
        fact("", words)
    if run_filter.without_call(trajectory):
        fact("calls", Text("none: no answer of a model was captured, there is nothing to train on", style="yellow"))
        fact("", advice.ON_NO_CALL)
    word = run_filter.status(trajectory)
    said = f"{word}: {trajectory.incomplete}" if trajectory.incomplete else word
    fact("status", Text(printable(said), style=_STATUS_STYLES[word]))
    for words in advice.on_incomplete(trajectory.incomplete):
        fact("", words)
    return table


def unread_lines(unread: Mapping[str, int]) -> list[str]:
    """Calls that yield no message, or not all of theirs, a line per kind, named by scope, operation and attributes."""
    return [
        f"{quantity(count, 'call')} not read: {one_line(name)}"
        for name, count in sorted(unread.items(), key=lambda item: (-item[1], item[0]))
    ]


def used_words(tokens: Used) -> str:
    """The tokens of all prompts and all answers of a run; "" where nobody counted them."""
    if not tokens.is_counted:
        return ""
    asked, answered = ("?" if side is None else f"{side:,}" for side in tokens[:2])
    beside = f" ({quantity(tokens.uncounted, 'call')} not counted)" if tokens.uncounted else ""
    return f"{asked} -> {answered} tokens{beside}"


def _tokens(sequences: Sequence[TokenSequence], report: TokenReport) -> str:
    if not report.captured_tokens:
        return "none captured" + _reasons(report)
    return (
        f"{report.trained_tokens} of {report.captured_tokens} sampled tokens can be trained on, in "
        f"{quantity(len(sequences), 'sequence')} ({quantity(report.forks, 'fork')})" + _reasons(report)
    )


def _reasons(report: TokenReport) -> str:
    if not report.reasons:
        return ""
    return "; set aside: " + ", ".join(f"{count} x {reason}" for reason, count in report.reasons.items())


def _reward(reward: Reward, trajectory: Trajectory) -> Text:
    agent = next((agent.name for agent in trajectory.agents if agent.id == reward.agent_id), reward.agent_id)
    text = Text.assemble((f"{reward.value:.3f}", "magenta"), f" {one_line(reward.name)} ({one_line(reward.source)})")
    if agent:
        text.append(f" for {one_line(agent)}")
    if reward.explanation:
        text.append(f": {one_line(reward.explanation, 2000)}", style="dim")
    return text
