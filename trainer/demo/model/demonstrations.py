"""Pure: captured trajectories become demonstrations for supervised training, call by call, in OpenAI's message form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from arttrace.records.message import Message, ToolResultPart
from arttrace.records.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Demonstration:
    """One model call in OpenAI's form: prompt messages, tool definitions, and the assistant message that answered."""

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    reply: Mapping[str, Any]


def demonstrations(trajectories: Iterable[Trajectory]) -> list[Demonstration]:
    """One demonstration per answered call, in order of trajectory and time."""
    return [
        Demonstration(
            messages=[openai_message(message) for message in placed.call.messages],
            tools=list(placed.call.tools),
            reply=openai_message(placed.call.choices[0].message),
        )
        for trajectory in trajectories
        for placed in trajectory.calls
        if placed.call.choices and not placed.call.error
    ]


def openai_message(message: Message) -> dict[str, Any]:
    """A message as the chat completions API takes it. Text, tool calls and tool results are all there is here."""
    made: dict[str, Any] = {"role": message.role, "content": message.text or None}
    if message.tool_calls:
        made["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    for part in message.parts:
        if isinstance(part, ToolResultPart):
            made |= {"tool_call_id": part.id, "content": part.response}
    return made
