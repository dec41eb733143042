"""Conversations: the branches of a run's agents as chat messages, and which of their messages may be imitated. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from arttrace.records.call import Call
from arttrace.records.message import Message, OtherPart, ReasoningPart, TextPart, ToolResultPart, joined_text
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import MessageNode, Trajectory
from arttrace.records.values.finish_reasons import BROKEN, CUT_SHORT
from arttrace.trajectories.decoding.attribute_values import from_json
from arttrace.trajectories.decoding.messages import has_unnamed_calls

ChatMessage = dict[str, Any]
"""One message as chat templates take it: role, content, and tool_calls, tool_call_id, name, reasoning_content."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """One branch of one agent. `targets` are the positions of messages that a model of this run produced.

    A message that the caller put into an assistant's mouth is never a target; one that several branches share is a
    target in the first of them only. `unended` are the targets that something else than the model ended (the token
    limit, a filter): what a template puts behind them is not the model's. `fault` is why the targets are not to be
    imitated: a call does not hold all that was asked or answered, its answer goes on from what the program began or is
    to one of several prompts, or the only target was cut off.
    """

    trajectory_id: str
    agent_id: str
    messages: tuple[Message, ...]
    targets: tuple[int, ...]
    tools: tuple[dict[str, Any], ...] = ()
    fault: NotTrained | None = None
    unended: tuple[int, ...] = ()

    def chat(self) -> list[ChatMessage]:
        """The messages for a chat template."""
        return [chat_message(message) for message in self.messages]


@dataclass(frozen=True, slots=True)
class Branch:
    """A Conversation with the nodes that its messages stand in; `is_target` says of each whether it is a target."""

    agent_id: str
    nodes: tuple[MessageNode, ...]
    is_target: tuple[bool, ...]
    tools: tuple[dict[str, Any], ...] = ()
    fault: NotTrained | None = None


def conversations(trajectory: Trajectory) -> list[Conversation]:
    """Every branch that holds a message not seen before, agents and branches in order of time. An answer that was cut
    off is a conversation of its own, with the fault, behind that of the answers before it; so is one cut short that
    holds tool calls, since it is not known how much of their text is the model's."""
    cut, unended = ends = without_end(trajectory)
    found = []
    for branch in branches(trajectory, ends):
        targets = tuple(at for at, is_target in enumerate(branch.is_target) if is_target)
        open_ones = tuple(at for at in targets if branch.nodes[at].id in unended)
        faults = {at: NotTrained.CUT_CALL for at in open_ones if branch.nodes[at].message.tool_calls}
        if branch.nodes[-1].id in cut:
            faults[targets[-1]] = NotTrained.CUT_OFF
        messages = tuple(node.message for node in branch.nodes)
        whole = Conversation(
            trajectory.id, branch.agent_id, messages, targets, branch.tools, branch.fault, unended=open_ones
        )
        found += _apart(whole, faults)
    return found


def with_ends(conversation: Conversation) -> list[Conversation]:
    """The conversation for a form whose reader puts an end behind every answer: those without one are apart, with the
    fault."""
    return _apart(conversation, dict.fromkeys(conversation.unended, NotTrained.CUT_SHORT))


def _apart(conversation: Conversation, faults: Mapping[int, NotTrained]) -> list[Conversation]:
    """The conversation with these targets as mere context, and each of them as one of its own, with the fault; that
    which ends last is the last."""
    whole = tuple(at for at in conversation.targets if at not in faults)
    parts = [(whole, conversation.fault)] if whole else []
    parts += [((at,), conversation.fault or fault) for at, fault in faults.items()]
    return [
        replace(
            conversation,
            messages=conversation.messages[: own[-1] + 1],
            targets=own,
            fault=fault,
            unended=tuple(at for at in conversation.unended if at in own),
        )
        for own, fault in sorted(parts, key=lambda part: part[0][-1])
    ]


def branches(trajectory: Trajectory, ends: tuple[set[str], set[str]] | None = None) -> list[Branch]:
    """The branches of `conversations`, each up to its last target. Answers that several share are targets in one that
    ends with a whole answer, where there is one. `ends` are those of `without_end`, from who has them."""
    cut, _ = ends or without_end(trajectory)
    nodes = {node.id: node for node in trajectory.nodes}
    parents = {node.parent_id for node in trajectory.nodes}
    tools: dict[str, tuple[dict[str, Any], ...]] = {}
    faults: dict[str, NotTrained | None] = {}
    for placed in trajectory.calls:
        for node_id in placed.choice_nodes:
            tools.setdefault(node_id, placed.call.tools)
            faults[node_id] = _fault(placed.call) if faults.get(node_id, True) else None
    taken: set[str] = set()
    found: dict[int, Branch] = {}
    leaves = [node for node in trajectory.nodes if node.id not in parents]
    for number in sorted(range(len(leaves)), key=lambda number: leaves[number].id in cut):
        leaf = leaves[number]
        branch = _branch(leaf, nodes)
        targets: list[int] = []
        for position, node in enumerate(branch):
            if node.sampled_by and node.id not in taken:
                taken.add(node.id)
                targets.append(position)
        if targets:
            offered = next((tools[branch[at].id] for at in reversed(targets) if branch[at].id in tools), ())
            shown = branch[: targets[-1] + 1]
            wanted = set(targets)
            fault = next(filter(None, (faults.get(branch[at].id) for at in targets)), None)
            is_target = tuple(at in wanted for at in range(len(shown)))
            found[number] = Branch(leaf.agent_id, tuple(shown), is_target, offered, fault)
    return [found[number] for number in sorted(found)]


def main_conversation(trajectory: Trajectory) -> Conversation | None:
    """The root agent's branch that ended last: from its first message to its final answer."""
    root = trajectory.agents[0].id if trajectory.agents else None
    own = [one for one in conversations(trajectory) if one.agent_id == root]
    return own[-1] if own else None


def why_silent(trajectory: Trajectory) -> NotTrained:
    """Why a run has no conversation."""
    return NotTrained.EMPTY_ANSWERS if any(one.call.choices for one in trajectory.calls) else NotTrained.NO_ANSWER


def why_no_main(trajectory: Trajectory) -> NotTrained:
    """Why a run has no `main_conversation`."""
    root = trajectory.agents[0].id if trajectory.agents else None
    if any(one.agent_id != root and one.call.choices for one in trajectory.calls) and not any(
        one.agent_id == root for one in trajectory.calls
    ):
        return NotTrained.ROOT_CALLED_NONE
    return why_silent(trajectory)


def opening(trajectory: Trajectory) -> Conversation | None:
    """The root agent's first branch up to its first answer, which may have been cut off."""
    root = trajectory.agents[0].id if trajectory.agents else None
    branch = next((one for one in branches(trajectory) if one.agent_id == root), None)
    if branch is None:
        return None
    first = next(at for at, node in enumerate(branch.nodes) if node.sampled_by)
    messages = tuple(node.message for node in branch.nodes[: first + 1])
    return Conversation(trajectory.id, branch.agent_id, messages, (first,), branch.tools, branch.fault)


def without_end(trajectory: Trajectory) -> tuple[set[str], set[str]]:
    """The nodes of answers that were cut off, and those of answers that are used though the model did not end them.

    Cut off is what was all broken off before its end and nobody went on from: what a program goes on from it took for
    an answer. One whose stream it closed itself, and went on from, ends where the program had it end.
    """
    parents = {node.parent_id for node in trajectory.nodes}
    broken, stopped = set(), set()
    for placed in trajectory.calls:
        for choice in placed.call.choices:
            key = (placed.call.span_id, choice.index)
            is_broken = choice.end in BROKEN or (placed.call.interrupted and choice.end is None)
            if is_broken:
                broken.add(key)
            if choice.end in CUT_SHORT or (is_broken and placed.call.interrupted != "closed"):
                stopped.add(key)
    sampled = [node for node in trajectory.nodes if node.sampled_by]
    cut = {node.id for node in sampled if node.id not in parents and broken.issuperset(node.sampled_by)}
    return cut, {node.id for node in sampled if stopped.issuperset(node.sampled_by)} - cut


def _fault(call: Call) -> NotTrained | None:
    """Why what the call holds is not all that was asked or answered, or no answer of its own to it; None where it
    is."""
    if call.truncated:
        return NotTrained.TRUNCATED
    if call.error and not call.interrupted:  # as in `sequences`: some chunks could not be read, say
        return NotTrained.ERROR
    return NotTrained.UNREADABLE if call.unreadable else _FORMS.get(call.prompt_form)


_FORMS: Mapping[str | None, NotTrained] = {"begun": NotTrained.BEGUN_ANSWER, "several": NotTrained.SEVERAL_PROMPTS}


def _branch(leaf: MessageNode, nodes: dict[str, MessageNode]) -> list[MessageNode]:
    branch = [leaf]
    while (parent := branch[-1].parent_id) is not None and parent in nodes:
        branch.append(nodes[parent])
    return branch[::-1]


def chat_message(message: Message) -> ChatMessage:
    """One message as chat templates take it; a tool call's arguments as an object where they are one,
    and as text where they are `null`, which readers take for none."""
    chat: ChatMessage = {"role": message.role, "content": message.text}
    if message.name:
        chat["name"] = message.name
    reasoning = "".join(part.content for part in message.parts if isinstance(part, ReasoningPart))
    if reasoning:
        chat["reasoning_content"] = reasoning
    if message.tool_calls:
        chat["tool_calls"] = [
            {
                "type": "function",
                "id": call.id or "",
                "function": {"name": call.name, "arguments": _object(call.arguments)},
            }
            for call in message.tool_calls
        ]
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            chat["tool_call_id"] = part.id or ""
            chat["content"] = _shown(part.response)
    return chat


def _shown(response: Any) -> str:
    """What a tool returned, as a model was shown it: of parts of text their text."""
    text = response if isinstance(response, str) else joined_text(response)
    return json.dumps(response, ensure_ascii=False) if text is None else text


def _object(arguments: str) -> Any:
    found = from_json(arguments or "{}")
    return arguments if found is None else found


def unsupported(conversation: Conversation, *, text_only: bool = True) -> NotTrained | None:
    """Why a model cannot read this conversation, None when it can; one that reads more than text if not
    `text_only`."""
    if conversation.fault is not None:
        return conversation.fault
    kinds = {type(part) for message in conversation.messages for part in message.parts}
    if text_only and OtherPart in kinds:
        return NotTrained.NOT_TEXT
    if any(map(has_unnamed_calls, conversation.messages)):
        return NotTrained.UNREADABLE
    if not any(_says_something(conversation.messages[at]) for at in conversation.targets):
        return NotTrained.EMPTY_ANSWERS
    return None


def _says_something(message: Message) -> bool:
    return bool(message.text.strip() or message.tool_calls)


def said(message: Message) -> Iterator[str]:
    """Pieces of text that any rendering of this assistant message must hold."""
    for part in message.parts:
        if isinstance(part, TextPart) and part.content.strip():
            yield part.content.strip()
    for call in message.tool_calls:
        yield call.name
