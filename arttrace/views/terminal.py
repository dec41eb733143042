"""Trajectories as text for a terminal or a pipe: a table of many, a tree of one, a table of any query's rows."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from arttrace.records.message import Message, OtherPart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.reward import Reward
from arttrace.records.sequence import TokenReport, TokenSequence
from arttrace.records.trajectory import Agent, AgentCall, MessageNode, Relation, ToolCall, Trajectory
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.trajectories.identity.membership import ADVICE_ON_COLLISIONS, has_collisions
from arttrace.views.timeline import in_order

_PIPE_WIDTH = 100
_SHORT = 400
_LEVELS = 40
_ROLE_STYLES = {"system": "dim", "developer": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def console() -> Console:
    """Standard output: as wide as the terminal, 100 columns and without colour in a pipe."""
    out = Console(highlight=False)
    if not out.is_terminal:
        out.width = _PIPE_WIDTH
    return out


def one_line(value: str, limit: int = _SHORT) -> str:
    """Text in one line, without control characters (a captured text must not steer the terminal), cut at `limit`."""
    line = " ".join(value[: 4 * limit].split())
    line = "".join(c if c.isprintable() else "·" for c in line)
    return line if len(line) <= limit and len(value) <= 4 * limit else line[: limit - 1] + "…"


def age(time_ns: int, now_ns: int | None = None) -> str:
    """How long ago a time was, in the largest unit that fits: 12s, 3m, 5h, 2d."""
    seconds = ((time.time_ns() if now_ns is None else now_ns) - time_ns) / 1e9
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= length:
            return f"{int(seconds / length)}{unit}"
    return f"{max(0, int(seconds))}s"


def short_ids(ids: Sequence[str], least: int = 8) -> dict[str, str]:
    """The shortest prefixes of one length, at least `least`, that tell these ids apart."""
    length = least
    while length < max(map(len, ids), default=0) and len({id[:length] for id in ids}) < len(set(ids)):
        length += 1
    return {id: id[:length] for id in ids}


def entry_name(entry: str) -> str:
    """An entry point for people: without the folders or packages around its module."""
    file = entry.rpartition("/")[2]
    module, colon, function = file.partition(":")
    if module.endswith(".py") or not all(part.isidentifier() for part in module.split(".")):
        return file
    return f"{module.rpartition('.')[2]}{colon}{function}"


_is_entry = re.compile(r"/\S*/|(\w+\.)+\w+:\w").match


def key_name(key: str) -> str:
    """A group's key for people: where it begins with an entry point, without the folders or packages around it."""
    entry, space, arguments = key.partition(" ")
    return f"{entry_name(entry)}{space}{arguments}" if _is_entry(entry) else key


def group_name(key: str, entry: str) -> str:
    """A group's key for people: that of an entry point with its arguments is read as those, `city=Oslo, days=3`, the
    value alone where there is one."""
    arguments = key.removeprefix(entry).strip()
    values = from_json(arguments)
    if not isinstance(values, dict):
        return "" if values is None else arguments
    shown = {name: _json(value) for name, value in values.items()}
    return next(iter(shown.values())) if len(shown) == 1 else ", ".join(f"{k}={v}" for k, v in shown.items())


LIST_COLUMNS = ("id", "entry", "group", "age", "agents", "calls", "tokens", "policy", "reward", "status")
_STATUS_STYLES = {"complete": "green", "unread": "yellow", "incomplete": "yellow", "failed": "red"}


def trajectory_table(rows: Iterable[Sequence[str]], *, wide: bool = False) -> Table:
    """A table with LIST_COLUMNS, and tags and metadata where it is wide; tokens read trained/captured. Entry and group
    give way where it is narrow."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for name in (*LIST_COLUMNS, *(("tags", "metadata") if wide else ())):
        # Columns that may wrap are narrowed first; their cells are cropped instead.
        table.add_column(
            name,
            justify="right" if name in ("age", "agents", "calls", "tokens", "reward") else "left",
            no_wrap=name not in ("entry", "group"),
        )
    for row in rows:
        cells = [_cropped(Text(one_line(cell))) for cell in row]
        status = LIST_COLUMNS.index("status")
        cells[status].stylize(_STATUS_STYLES.get(row[status], ""))
        table.add_row(*cells)
    return table


def trajectory_view(
    trajectory: Trajectory,
    sequences: Sequence[TokenSequence],
    report: TokenReport,
    reward: float | None,
    late: Sequence[str] = (),
) -> RenderableType:
    """Everything a person wants to see of one run: its facts, then its agents as a tree of messages and tools. `late`
    are the policy versions that were trained on it before its last spans came."""
    facts = _facts(trajectory, sequences, report, reward)
    if late:
        facts.add_row("late", Text(came_late(late), style="yellow"))
    return Group(facts, Text(), _tree(trajectory))


def came_late(versions: Sequence[str]) -> str:
    """Of a run whose spans are others now than when these versions were trained on it."""
    return f"spans came after {', '.join(versions)} was trained on it; they are not trained on"


def _facts(
    trajectory: Trajectory, sequences: Sequence[TokenSequence], report: TokenReport, reward: float | None
) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")

    def fact(name: str, value: str | Text) -> None:
        table.add_row(name, Text(value) if isinstance(value, str) else value)

    fact("trajectory", f"{trajectory.id}  (revision {trajectory.revision})")
    source = trajectory.entry or trajectory.agents[0].name
    name = trajectory.entry_name or source
    fact("entry", one_line(name if name == source else f"{name} ({source})"))
    if trajectory.arguments not in (None, {}):
        fact("arguments", one_line(_json(trajectory.arguments)))
    if trajectory.result is not None:
        fact("result", one_line(_json(trajectory.result)))
    for name, value in (("scenario", trajectory.scenario), ("group", trajectory.group)):
        if value:
            fact(name, one_line(value))
    if trajectory.regrouped:
        fact("group", f"{one_line(trajectory.regrouped)} (by `arttrace group`)")
    if trajectory.tags:
        fact("tags", one_line(", ".join(trajectory.tags)))
    if trajectory.metadata:
        fact("metadata", one_line(_json(trajectory.metadata)))
    started = datetime.fromtimestamp(trajectory.start_ns / 1e9).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    fact("when", f"{started}, {(trajectory.end_ns - trajectory.start_ns) / 1e9:.2f} s")
    fact("policy", ", ".join(trajectory.policy_versions) or "no policy version recorded")
    fact("tokens", _tokens(sequences, report))
    if reward is not None:
        fact("reward", Text(f"{reward:.3f}", style="bold"))
    for given in trajectory.rewards:
        fact("", _reward(given, trajectory))
    if trajectory.error:
        fact("error", Text(one_line(trajectory.error), style="red"))
    if trajectory.conflicts:
        fact("conflicts", f"{trajectory.conflicts} set aside: other content under the id of a span")
    for line in unread_lines(trajectory.unread):
        fact("unread", Text(line, style="yellow"))
    if trajectory.incomplete:
        fact("status", Text(f"incomplete: {trajectory.incomplete}", style="yellow"))
        if has_collisions(trajectory.incomplete):
            fact("", ADVICE_ON_COLLISIONS)
    else:
        fact("status", Text("complete", style="green"))
    return table


def unread_lines(unread: Mapping[str, int]) -> list[str]:
    """Calls that yield no message, a line per kind, named by scope, operation and attributes."""
    return [
        f"{count} call{'' if count == 1 else 's'} without a message: {one_line(name)}"
        for name, count in sorted(unread.items(), key=lambda item: (-item[1], item[0]))
    ]


def _tokens(sequences: Sequence[TokenSequence], report: TokenReport) -> str:
    if not report.captured_tokens:
        return "none captured" + _reasons(report)
    return (
        f"{report.trained_tokens} of {report.captured_tokens} sampled tokens can be trained on, in {len(sequences)} "
        f"sequence{'' if len(sequences) == 1 else 's'} ({report.forks} fork{'' if report.forks == 1 else 's'})"
        + _reasons(report)
    )


def _reasons(report: TokenReport) -> str:
    if not report.reasons:
        return ""
    return "; set aside: " + ", ".join(f"{count} x {reason}" for reason, count in report.reasons.items())


def _reward(reward: Reward, trajectory: Trajectory) -> Text:
    agent = next((agent.name for agent in trajectory.agents if agent.id == reward.agent_id), reward.agent_id)
    text = Text.assemble((f"{reward.value:.3f}", "magenta"), f" {reward.name} ({reward.source})")
    if agent:
        text.append(f" for {agent}")
    if reward.explanation:
        text.append(f": {one_line(reward.explanation, 2000)}", style="dim")
    return text


def _tree(trajectory: Trajectory) -> Tree:
    return _Walk(trajectory).tree()


class _Walk:
    """Writes agents, calls and tools in order of time; a sub-agent stands under the tool call that started it."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._nodes = {node.id: node for node in trajectory.nodes}
        self._children: dict[str | None, list[Agent]] = {}
        for agent in trajectory.agents[1:]:
            self._children.setdefault(agent.parent_id, []).append(agent)
        self._tools: dict[str, list[ToolCall]] = {}
        for tool in trajectory.tool_calls:
            self._tools.setdefault(tool.agent_id, []).append(tool)
        self._calls: dict[str, list[AgentCall]] = {}
        for call in trajectory.calls:
            self._calls.setdefault(call.agent_id, []).append(call)
        self._drawn: set[str] = set()
        self._level = 0

    def tree(self) -> Tree:
        root = self._trajectory.agents[0]
        branch = Tree(_agent_label(root), guide_style="dim")
        self._agent(root, branch)
        return branch

    def _agent(self, agent: Agent, branch: Tree) -> None:
        if agent.id in self._drawn:
            return
        self._drawn.add(agent.id)
        tools = self._tools.get(agent.id, [])
        children = self._children.get(agent.id, [])
        spawned = {tool.id for tool in tools}
        seen: set[str] = set()
        answered = {tool.id for tool in tools if tool.result is not None or tool.error is not None}
        started: dict[str, list[Agent]] = {}
        for child in children:
            if child.spawned_by in spawned:
                started.setdefault(child.spawned_by or "", []).append(child)
        others = [child for child in children if child.spawned_by not in spawned]
        if agent is self._trajectory.agents[0] and (agent.inferred or agent.placeholder):
            for child in others:
                if not child.inferred:  # agents above the rest: no clock orders them
                    self._sub_agent(child, branch)
            others = [child for child in others if child.inferred]
        for event in in_order(self._calls.get(agent.id, []), tools, others):
            if isinstance(event, AgentCall):
                self._call(event, branch, seen, answered)
            elif isinstance(event, ToolCall):
                self._tool(event, started.get(event.id, []), branch)
            else:
                self._sub_agent(event, branch)

    def _sub_agent(self, agent: Agent, branch: Tree) -> None:
        if self._level == _LEVELS:
            branch.add(_cropped(Text(f"agents below level {_LEVELS} are left out", style="dim")))
            return
        self._level += 1
        self._agent(agent, branch.add(_agent_label(agent)))
        self._level -= 1

    def _tool(self, tool: ToolCall, started: Sequence[Agent], branch: Tree) -> None:
        kind = ("inferred tool ", "dim yellow") if tool.inferred else ("tool ", "yellow")
        label = Text.assemble(kind, (one_line(tool.name), "bold"), f"({one_line(tool.arguments, 120)})")
        if tool.error is not None:
            label.append(f" failed: {one_line(tool.error)}", style="red")
        elif tool.result is not None:
            label.append(f" -> {one_line(tool.result)}")
        else:
            label.append(" not answered", style="dim")
        below = branch.add(_cropped(label))
        for child in started:
            self._sub_agent(child, below)

    def _call(self, placed: AgentCall, branch: Tree, seen: set[str], answered: set[str]) -> None:
        if placed.relation not in _ORDINARY and placed.confidence:
            branch.add(_relation_label(placed))
        for node in self._unseen(placed.prompt_node, seen):
            if not _shown_with_tools(node.message, answered) and not node.sampled_by:
                branch.add(_message_label(node.message, " [context]" if node.message.role == "assistant" else ""))
        call = placed.call
        model = one_line(call.policy_version or call.response_model or call.request_model)
        for choice in call.choices:
            sampled = "no token ids" if choice.token_ids is None else f"{len(choice.token_ids)} tokens"
            which = f"choice {choice.index}" if len(call.choices) > 1 else ""
            facts = ", ".join(filter(None, [which, model, sampled, call.interrupted]))
            branch.add(_message_label(choice.message, f" [{facts}]"))
        if call.end_ns == 0 and not call.choices:
            branch.add(_cropped(Text.assemble(("call in progress", "yellow"), (f" [{model}]", "dim"))))
        elif call.error or not call.choices:
            failure = one_line(call.error or "no answer")
            branch.add(_cropped(Text.assemble(("call failed", "red"), (f" [{model}]", "dim"), f": {failure}")))
        seen.update(placed.choice_nodes)

    def _unseen(self, node_id: str | None, seen: set[str]) -> list[MessageNode]:
        fresh: list[MessageNode] = []
        while node_id is not None and node_id not in seen:
            seen.add(node_id)
            node = self._nodes[node_id]
            fresh.append(node)
            node_id = node.parent_id
        return fresh[::-1]


_ORDINARY = (Relation.START, Relation.EXTENDS, Relation.SUB_AGENT)


def _relation_label(placed: AgentCall) -> Text:
    """Why a history branches off or starts anew here; a reading of the messages says how sure it is."""
    label = Text.assemble(("branch ", "magenta"), (placed.relation.value, "bold"))
    if placed.evidence:
        label.append(f": {one_line(placed.evidence)}", style="dim")
    if 0 < placed.confidence < 1:
        label.append(f" ({placed.confidence:.0%} sure)", style="dim")
    return _cropped(label)


def _sure(confidence: float) -> str:
    return "" if confidence == 1 else f", {confidence:.0%} sure"


def _agent_label(agent: Agent) -> Text:
    label = Text.assemble(("agent ", "blue"), (one_line(agent.name), "bold"))
    if agent.placeholder:
        label.append(f"  (missing: {agent.evidence})", style="yellow")
    elif agent.inferred:
        label.append(f"  (inferred: {agent.evidence}{_sure(agent.confidence)})", style="dim")
    elif agent.confidence < 1:
        label.append(f"  ({agent.evidence}{_sure(agent.confidence)})", style="dim")
    elif agent.end_ns == 0 and agent.start_ns:
        label.append("  (in progress)", style="yellow")
    return _cropped(label)


def _shown_with_tools(message: Message, answered: set[str]) -> bool:
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    return bool(results) and len(results) == len(message.parts) and all(part.id in answered for part in results)


def _message_label(message: Message, note: str) -> Text:
    body = "  ".join(filter(None, map(_part, message.parts))) or "(empty)"
    style = _ROLE_STYLES.get(message.role, "")
    return _cropped(Text.assemble((one_line(message.role) or "message", style), (note, "dim"), f": {one_line(body)}"))


def _part(part: Part) -> str:
    match part:
        case TextPart(content):
            return content
        case ReasoningPart(content):
            return f"(thinks: {content})"
        case ToolCallPart(name, arguments):
            return f"calls {name}({arguments})"
        case ToolResultPart(response):
            return response if isinstance(response, str) else _json(response)
        case OtherPart(value):
            return f"[{value.get('type', 'other')}]"


def _cropped(text: Text) -> Text:
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _json(value: Any) -> str:
    try:
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()
    except RecursionError:
        return "(nested too deep to be shown)"


def print_rows(out: Console, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """The rows of any query as a table; where that is wider than the page, each row as lines of name and value."""
    table = Table(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1), header_style="bold")
    for index, name in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) or row[index] is None for row in rows)
        table.add_column(one_line(str(name)), justify="right" if rows and numbers else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    if Measurement.get(out, out.options.update(max_width=10_000), table).maximum <= out.width:
        out.print(table)
        return
    for number, row in enumerate(rows, start=1):
        record = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
        record.add_column(style="bold", no_wrap=True)
        record.add_column(overflow="fold")
        for name, value in zip(columns, row, strict=True):
            record.add_row(Text(one_line(str(name))), Text(_cell(value)))
        out.print(Text(f"row {number}", style="dim"))
        out.print(record)


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case float():
            return f"{value:.6g}"
        case datetime():
            return value.strftime("%Y-%m-%d %H:%M:%S")
        case list() | tuple():
            return ", ".join(map(_cell, value))
        case dict():
            return ", ".join(f"{_cell(key)}={_cell(item)}" for key, item in value.items())
    return one_line(str(value))
