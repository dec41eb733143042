"""One of the runs that a step was trained on, as a table for a tracker: who said what, and how it was rewarded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec

from arttrace.records.message import Message
from arttrace.records.policy import PolicyStep, answered
from arttrace.records.trajectory import Trajectory
from arttrace.rewards.combine import trajectory_reward
from arttrace.store import AnyStore
from arttrace.system.errors import StoreError
from arttrace.trajectories.conversations import branches, chat_message

COLUMNS: Final = ("trajectory", "reward", "agent", "agent reward", "role", "content")
_MAX_ROWS = 100
_MAX_CONTENT = 4000
_TRIED = 20
"""How many runs are looked at for one that is stored, and that the policy answered in."""


class ExampleTable(msgspec.Struct, frozen=True):
    """A row for each message, in the order in which its agent saw them."""

    rows: tuple[tuple[str, float | None, str, float | None, str, str], ...]

    def cells(self) -> list[list[str | float | None]]:
        """The rows as trackers take them, under COLUMNS."""
        return [list(row) for row in self.rows]

    def markdown(self) -> str:
        """The same for one that shows text."""
        lines = [" | ".join(COLUMNS), " | ".join("---" for _ in COLUMNS)]
        lines += [" | ".join(_cell(value) for value in row) for row in self.rows]
        return "\n".join(f"| {line} |" for line in lines)


def example_of(store: AnyStore, done: PolicyStep) -> ExampleTable | None:
    """One run of those that a version was trained on, from another place in their list for each version; by GRPO or
    a distillation one that the policy answered in. Raises StoreError where they are stored no more."""
    if not (trained := done.trained):
        return None
    first = done.step % len(trained)
    ids = [one.trajectory_id for one in (*trained[first:], *trained[:first])][:_TRIED]
    stored = False
    for id in ids:
        for found in store.trajectories(ids=[id]):
            stored = True
            if done.made_by not in ("grpo", "distill") or answered(found.policy_versions, done.policy):
                return example(found)
    if not stored:
        raise StoreError(f"the run {ids[0]} is not stored any more")
    return None


def example(trajectory: Trajectory) -> ExampleTable:
    """A run as a table; long contents and long runs are cut."""
    reward = trajectory_reward(trajectory)
    names = {agent.id: agent.name for agent in trajectory.agents}
    own: dict[str, float] = {}
    for given in trajectory.rewards:
        if given.agent_id is not None:
            own[given.agent_id] = own.get(given.agent_id, 0.0) + given.value
    rows = [
        (trajectory.id, reward, names.get(agent, agent), own.get(agent), message.role, _content(message))
        for agent, message in _messages(trajectory)
    ]
    return ExampleTable(tuple(rows[:_MAX_ROWS]))


def _messages(trajectory: Trajectory) -> Iterator[tuple[str, Message]]:
    seen: set[str] = set()
    for branch in branches(trajectory):
        for node in branch.nodes:
            if node.id not in seen:
                seen.add(node.id)
                yield branch.agent_id, node.message


def _content(message: Message) -> str:
    content = chat_message(message)["content"]
    said = [content] if content else []
    said += [f"{call.name}({call.arguments})" for call in message.tool_calls]
    text = "\n".join(said)
    return text if len(text) <= _MAX_CONTENT else f"{text[: _MAX_CONTENT - 1]}…"


def _cell(value: str | float | None) -> str:
    if value is None:
        return ""
    return f"{value:.3f}" if isinstance(value, float) else value.replace("|", "\\|").replace("\n", "<br>")
