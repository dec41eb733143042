"""One run as a tree for the terminal: agents, and under each its messages, calls and tools in order of time."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from arttrace.records.message import Message, OtherPart, Part, ReasoningPart, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.trajectory import Agent, AgentCall, HttpRequest, ToolCall, Trajectory
from arttrace.records.values.units import quantity
from arttrace.views.labels import json_text, one_line, readable_json
from arttrace.views.timeline import (
    ORDINARY,
    Answered,
    Below,
    Timeline,
    agent_note,
    answered_unseen,
    broken_off,
    ended,
    failure,
    in_order,
    left,
    shown_with_tools,
    unanswered,
)

_LEVELS = 40
_UNSEEN = "content not recorded"
_ROLE_STYLES = {"system": "dim", "developer": "dim", "user": "cyan", "assistant": "green", "tool": "yellow"}


def agent_tree(trajectory: Trajectory) -> Tree:
    """The agents of a run as a tree of messages, calls and tools."""
    return _AgentTree(trajectory).tree()


class _AgentTree:
    """Writes agents, calls and tools in order of time; a sub-agent stands under the tool call that started it."""

    def __init__(self, trajectory: Trajectory) -> None:
        self._trajectory = trajectory
        self._timeline = Timeline(trajectory)
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
        below = self._timeline.below(agent)
        others = below.others
        seen: set[str] = set()
        if agent is self._trajectory.agents[0] and (agent.inferred or agent.placeholder):
            for child in others:
                if not child.inferred:  # agents above the rest: no clock orders them
                    self._sub_agent(child, branch)
            others = [child for child in others if child.inferred]
        for event in in_order(below.calls, below.tools, others, below.requests.get(None, ())):
            if isinstance(event, AgentCall):
                self._call(event, branch, seen, below.answered)
            elif isinstance(event, ToolCall):
                self._tool(event, below, branch)
            elif isinstance(event, HttpRequest):
                branch.add(_request_label(event))
            else:
                self._sub_agent(event, branch)

    def _sub_agent(self, agent: Agent, branch: Tree) -> None:
        if self._level == _LEVELS:
            branch.add(cropped(Text(f"agents below level {_LEVELS} are left out", style="dim")))
            return
        self._level += 1
        self._agent(agent, branch.add(_agent_label(agent)))
        self._level -= 1

    def _tool(self, tool: ToolCall, around: Below, branch: Tree) -> None:
        kind = ("inferred tool ", "dim yellow") if tool.inferred else ("tool ", "yellow")
        label = Text.assemble(kind, (one_line(tool.name), "bold"), f"({one_line(readable_json(tool.arguments), 120)})")
        if tool.error is not None:
            label.append(f" failed: {one_line(tool.error)}", style="red")
        elif tool.result is not None:
            label.append(f" -> {one_line(tool.result)}")
        else:
            label.append(f" {unanswered(tool)}", style="dim")
        below = branch.add(cropped(label))
        for request in around.requests.get(id(tool), ()):
            below.add(_request_label(request))
        for child in around.started.get(id(tool), ()):
            self._sub_agent(child, below)

    def _call(self, placed: AgentCall, branch: Tree, seen: set[str], answered: Answered) -> None:
        if placed.relation not in ORDINARY and placed.confidence:
            branch.add(_relation_label(placed))
        for node in self._timeline.unseen(placed.prompt_node, seen):
            if not shown_with_tools(node.message, answered) and not node.sampled_by:
                branch.add(_message_label(node.message, " [context]" if node.message.role == "assistant" else ""))
        call = placed.call
        model = one_line(call.policy_version or call.response_model or call.request_model)
        named = f" [{model}]" if model else ""
        for choice in call.choices:
            sampled = "no token ids" if choice.token_ids is None else f"{quantity(len(choice.token_ids), 'token')}"
            which = f"choice {choice.index}" if len(call.choices) > 1 else ""
            facts = ", ".join(filter(None, [which, model, sampled, one_line(ended(call, choice))]))
            branch.add(_message_label(choice.message, f" [{facts}]"))
        if call.end_ns == 0 and not call.choices:
            branch.add(cropped(Text.assemble(("call in progress", "yellow"), (named, "dim"))))
        elif words := failure(call):
            branch.add(cropped(Text.assemble(("call failed", "red"), (named, "dim"), f": {one_line(words)}")))
        elif not call.choices:
            words = _UNSEEN if answered_unseen(call) else ended(call, None)
            branch.add(cropped(Text.assemble(("assistant", _ROLE_STYLES["assistant"]), (named, "dim"), f": {words}")))
        seen.update(placed.choice_nodes)


def _relation_label(placed: AgentCall) -> Text:
    """Why a history branches off or starts anew here; a reading of the messages says how sure it is."""
    label = Text.assemble(("branch ", "magenta"), (placed.relation.value, "bold"))
    if placed.evidence:
        label.append(f": {one_line(placed.evidence)}", style="dim")
    if 0 < placed.confidence < 1:
        label.append(f" ({placed.confidence:.0%} sure)", style="dim")
    return cropped(label)


def _agent_label(agent: Agent) -> Text:
    label = Text.assemble(("agent ", "blue"), (one_line(agent.name), "bold"))
    if note := agent_note(agent):
        label.append(f"  ({note})", style="yellow" if agent.placeholder else "dim")
    elif agent.end_ns == 0 and agent.start_ns:
        label.append("  (in progress)", style="yellow")
    return cropped(label)


def _request_label(request: HttpRequest) -> Text:
    label = Text.assemble(("http ", "blue"), one_line(f"{request.method} {request.url or request.host}"))
    if words := request.error or broken_off(request.interrupted):
        label.append(f" failed: {one_line(words)}", style="red")
    elif request.status is not None:
        label.append(f" -> {request.status}")
    sizes = [(request.request_bytes, "sent"), (request.response_bytes, "received")]
    facts = [f"{size:,} bytes {way}" for size, way in sizes if size]
    if request.end_ns:
        facts.append(f"{max(0, request.end_ns - request.start_ns) / 1e9:.2f} s")
    return cropped(label.append(f" [{', '.join(filter(None, [*facts, left(request.interrupted)]))}]", style="dim"))


def _message_label(message: Message, note: str) -> Text:
    body = "  ".join(filter(None, map(_part, message.parts))) or "(empty)"
    style = _ROLE_STYLES.get(message.role, "")
    return cropped(Text.assemble((one_line(message.role) or "message", style), (note, "dim"), f": {one_line(body)}"))


def _part(part: Part) -> str:
    match part:
        case TextPart(content):
            return content
        case ReasoningPart(content):
            return f"(thinks: {content})"
        case ToolCallPart(name, arguments):
            return f"calls {name}({readable_json(arguments)})"
        case ToolResultPart(response):
            return response if isinstance(response, str) else json_text(response)
        case OtherPart(value):
            return f"[{value.get('type', 'other')}]"


def cropped(text: Text) -> Text:
    """A text that ends at the edge of the page with an ellipsis in place of going on below."""
    text.no_wrap, text.overflow = True, "ellipsis"
    return text
