"""Trajectories made by hand: a planner with one tool and a sub-agent, in the shape that reconstruction gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from arttrace.records.call import Call, Choice
from arttrace.records.group import Group
from arttrace.records.message import Message, TextPart, ToolCallPart, ToolResultPart
from arttrace.records.reward import Reward
from arttrace.records.trajectory import Agent, AgentCall, MessageNode, Trajectory

PRICE_TOOL = {
    "type": "function",
    "function": {"name": "price", "description": "The price of a fruit.", "parameters": {"type": "object"}},
}


def text(role: str, content: str) -> Message:
    return Message(role, (TextPart(content),))


def history_of(call_id: str, answer: str) -> list[Message]:
    return [
        text("system", "You plan purchases."),
        text("user", "What do two pears cost?"),
        Message("assistant", (ToolCallPart("price", '{"fruit": "pear"}', call_id),)),
        Message("tool", (ToolResultPart("3", call_id),)),
        text("assistant", answer),
    ]


def chain(agent_id: str, messages: list[Message], *, first_sampled: int, span: str) -> list[MessageNode]:
    nodes: list[MessageNode] = []
    for position, message in enumerate(messages):
        nodes.append(
            MessageNode(
                id=f"{agent_id}-{span}-{position}",
                agent_id=agent_id,
                parent_id=nodes[-1].id if nodes else None,
                message=message,
                sampled_by=((f"{span}-{position}", 0),)
                if message.role == "assistant" and position >= first_sampled
                else (),
            )
        )
    return nodes


def placed(agent_id: str, node: MessageNode, tools: tuple[dict[str, Any], ...], start: int) -> AgentCall:
    span = node.sampled_by[0][0]
    call = Call(
        span_id=span,
        trace_id="t",
        parent_span_id=None,
        start_ns=start,
        end_ns=start + 1,
        request_model="secret-model",
        policy_version="secret-policy@7",
        tools=tools,
        choices=(Choice(0, node.message),),
    )
    return AgentCall(call, agent_id, node.parent_id, (node.id,))


@pytest.fixture
def make_run() -> Callable[..., Trajectory]:
    """A run of the planner: `answer` is its last message, `advice` what its sub-agent said."""

    def make(id: str, answer: str = "6", advice: str = "Two pears cost 6.", **given: Any) -> Trajectory:
        call_id = f"call-{id}"
        root = chain(f"root-{id}", history_of(call_id, answer), first_sampled=2, span=f"{id}-r")
        sub = chain(
            f"sub-{id}",
            [text("system", "You add numbers."), text("user", "3 + 3"), text("assistant", advice)],
            first_sampled=2,
            span=f"{id}-s",
        )
        return Trajectory(
            **{
                "id": id,
                "revision": f"revision-{id}",
                "scenario": "secret-scenario",
                "group": "secret-group",
                "tags": ("secret-tag",),
                "metadata": {"expected": "secret-truth"},
                "arguments": {"question": "secret-argument"},
                "result": answer,
                "agents": (
                    Agent(f"root-{id}", "planner"),
                    Agent(f"sub-{id}", "adder", f"root-{id}", start_ns=5, inferred=True, evidence="secret-evidence"),
                ),
                "calls": (
                    placed(f"root-{id}", root[2], (PRICE_TOOL,), 1),
                    placed(f"sub-{id}", sub[2], (), 5),
                    placed(f"root-{id}", root[4], (PRICE_TOOL,), 9),
                ),
                "nodes": tuple(root + sub),
                "rewards": (Reward(f"r-{id}", id, 0.123456, name="secret-reward"),),
                **given,
            }
        )

    return make


@pytest.fixture
def group(make_run: Callable[..., Trajectory]) -> Group:
    return Group("pears", (make_run("run-a", "6"), make_run("run-b", "9"), make_run("run-c", "12")))
