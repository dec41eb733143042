"""Whose a score of one span is: that of the agent which the span is or is of, or the run's where it is the uppermost.

The view `rewards` has the rule for the uppermost one too (store/rows/columns.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import AgentCall, ToolCall
from arttrace.trajectories.agents.tree import AgentTree
from arttrace.trajectories.identity.deduplicate import SpanKey


def with_agents(
    rewards: Sequence[Reward],
    spans: Mapping[SpanKey, SpanRow],
    tree: AgentTree,
    calls: Sequence[AgentCall],
    tools: Sequence[ToolCall],
) -> tuple[Reward, ...]:
    """The rewards of a run, those of a span as its agent's. One of a span that is not there keeps the span's id."""
    if not any(one.of_span for one in rewards):
        return tuple(rewards)
    agent_of: dict[str, str | None] = {key[1]: agent for key, agent in tree.agent_of.items()}
    agent_of |= {placed.call.span_id: placed.agent_id for placed in calls}
    agent_of |= {tool.span_id: tool.agent_id for tool in tools if tool.span_id}
    agent_of |= {id: id for id in tree.spans_of}
    agent_of |= {key[1]: None for key, span in spans.items() if span.parent_span_id is None}
    return tuple(
        replace(one, agent_id=agent_of[one.agent_id], of_span=False)
        if one.of_span and one.agent_id in agent_of
        else one
        for one in rewards
    )
