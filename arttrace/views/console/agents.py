"""One agent of a run, with all below it, as if it were the run."""

from __future__ import annotations

from msgspec.structs import replace

from arttrace.records.trajectory import Agent, Trajectory


def agents_named(run: Trajectory, name: str) -> list[Agent]:
    """The agents with a name, or with an id, in order of start."""
    return [agent for agent in run.agents if name in (agent.name, agent.id)]


def part_below(run: Trajectory, agent: Agent) -> Trajectory:
    """The run with nothing but what an agent and those below it did: the agent is the first, as a root is."""
    kept = {agent.id}
    while more := {one.id for one in run.agents if one.parent_id in kept} - kept:
        kept |= more
    return replace(
        run,
        agents=(agent, *(one for one in run.agents if one.id in kept and one is not agent)),
        calls=tuple(call for call in run.calls if call.agent_id in kept),
        tool_calls=tuple(tool for tool in run.tool_calls if tool.agent_id in kept),
        http_requests=tuple(request for request in run.http_requests if request.agent_id in kept),
        nodes=tuple(node for node in run.nodes if node.agent_id in kept),
    )
