"""Rows of verl's Parquet files: MultiTurnSFTDataset (`messages`, `tools`) and RLHFDataset (`prompt`, ...). Pure.

A Parquet column has one type for all rows, and a struct every field in every row. So messages have the fields below
and the arguments of tool calls are JSON text; for tool definitions there is no such type: whoever writes the file
leaves out those that do not come back from it as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from arttrace.formats.datasets.chat import with_ids, without_context_answers
from arttrace.formats.datasets.forms import Form, Row, Unsuitable
from arttrace.records.message import Message
from arttrace.records.sequence import NotTrained
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories.conversations import Conversation, chat_message, opening, unsupported

GROUND_TRUTH = "ground_truth"
"""Under this name the metadata of a run has what verl's reward functions compare an answer with."""

MESSAGE_FIELDS = ("role", "content", "reasoning_content", "tool_calls", "tool_call_id", "name")


def sft_row(conversation: Conversation, reward: float | None) -> Row:
    """One conversation, every answer of which is trained on."""
    if (why := unsupported(conversation)) is not None:
        raise Unsuitable(why)
    without_context_answers(Form.VERL_SFT, conversation)
    return {
        "messages": [_message(message) for message in with_ids(conversation).messages],
        "tools": list(conversation.tools) or None,
        "extra_info": {
            "trajectory_id": conversation.trajectory_id,
            "agent_id": conversation.agent_id,
            "reward": reward,
        },
    }


def rl_row(key: str, runs: Sequence[Trajectory], rewards: Sequence[float]) -> Row:
    """One task: what its runs begin with. `rewards` are those of them that can be compared.

    Raises Unsuitable where they begin differently, or with no message.
    """
    prompts = [prompt for run in runs if (prompt := _prompt(run)) is not None]
    if not prompts:
        raise Unsuitable("groups without an answer")
    first, first_prompt = prompts[0]
    if not first_prompt:
        raise Unsuitable("groups whose runs begin with an answer")
    if any(
        _message(one) != _message(other) for _, others in prompts[1:] for one, other in _paired(first_prompt, others)
    ):
        raise Unsuitable(NotTrained.CONTEXTS_DIFFER)
    if (why := unsupported(first)) is not None:
        raise Unsuitable(why)
    head = runs[0]
    truth = next((run.metadata[GROUND_TRUTH] for run in runs if GROUND_TRUTH in run.metadata), "")
    return {
        "data_source": head.project or head.entry_name or head.entry or "arttrace",
        "prompt": [_message(message) for message in first_prompt],
        "ability": head.entry_name or head.entry,
        "reward_model": {"style": "rule", "ground_truth": truth if isinstance(truth, str) else _json(truth)},
        "extra_info": {
            "index": key,
            "scenario": head.scenario,
            "arguments": None if head.arguments is None else _json(head.arguments),
            "runs": len(runs),
            "mean_reward": sum(rewards) / len(rewards) if rewards else None,
        },
    }


def _prompt(run: Trajectory) -> tuple[Conversation, Sequence[Message]] | None:
    """The root agent's first conversation, and its messages before the first answer, whole or cut off."""
    found = opening(run)
    return None if found is None else (found, with_ids(found).messages[: found.targets[0]])


def _paired(one: Sequence[Message], other: Sequence[Message]) -> list[tuple[Message, Message]]:
    if len(one) != len(other):
        raise Unsuitable(NotTrained.CONTEXTS_DIFFER)
    return list(zip(one, other, strict=True))


def _message(message: Message) -> Row:
    chat = chat_message(message)
    calls = [
        {"id": call.id or "", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
        for call in message.tool_calls
    ]
    found = {name: chat.get(name) for name in MESSAGE_FIELDS}
    return {**found, "tool_calls": calls or None}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
