"""Whose a score of one span is: that of the agent which the span is or is of, or the run's where it is the uppermost.
An agent is also that where no span of the run stands above it, but an HTTP server's, say.

The view `rewards` has the rules too (store/rows/view_parts/scored_spans.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import AgentCall, ToolCall
from arttrace.trajectories.agents.tree import AgentTree
from arttrace.trajectories.decoding.operation import is_of_a_run
from arttrace.trajectories.identity.deduplicate import SpanKey


def with_agents(
    rewards: Sequence[Reward],
    spans: Mapping[SpanKey, SpanRow],
    parents: Mapping[SpanKey, SpanKey | None],
    tree: AgentTree,
    calls: Sequence[AgentCall],
    tools: Sequence[ToolCall],
) -> tuple[Reward, ...]:
    """The rewards of a run, those of a span as its agent's. One of a span that is not there keeps the span's id."""
    scored = {one.agent_id for one in rewards if one.of_span}
    if not scored:
        return tuple(rewards)
    agent_of: dict[str, str | None] = {key[1]: agent for key, agent in tree.agent_of.items()}
    agent_of |= {placed.call.span_id: placed.agent_id for placed in calls}
    agent_of |= {tool.span_id: tool.agent_id for tool in tools if tool.span_id}
    agent_of |= {id: id for id in tree.spans_of}
    for key, span in spans.items():
        if key[1] in scored and (
            span.parent_span_id is None or (key[1] in tree.spans_of and _is_uppermost(key, spans, parents))
        ):
            agent_of[key[1]] = None
    return tuple(
        replace(one, agent_id=agent_of[one.agent_id], of_span=False)
        if one.of_span and one.agent_id in agent_of
        else one
        for one in rewards
    )


def _is_uppermost(key: SpanKey, spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None]) -> bool:
    """That of an entry, whose parent did not come, is somebody else's span; any other's may have been of the run."""
    at, above = key, parents[key]
    while above is not None and spans[at].parent_span_id:  # else it stands where it links to
        if above not in spans:
            return semconv.ENTRY in spans[key].attributes
        if is_of_a_run(spans[above]):
            return False
        at, above = above, parents[above]
    return True
