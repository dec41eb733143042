"""The waterfall: agents, calls, tools and HTTP requests of a run as bars in time, each below what it belongs to."""

from __future__ import annotations

import msgspec

from arttrace.formats.imported_run import is_undated
from arttrace.records.trajectory import Trajectory
from arttrace.views.timeline import agents_with_levels, broken_off, failure

WIDTH = 1000
"""Of the drawing, in its own units; `x` and `width` of a bar count in them."""


class Bar(msgspec.Struct, frozen=True):
    """One row. `kind` is agent, call, tool or request; `duration_ns` is -1 where it is not known."""

    kind: str
    name: str
    level: int
    start_ns: int
    duration_ns: int
    x: float
    width: float
    error: str
    span_id: str
    bound: bool
    """Whether its times are bounds only, as of a tool call that was read from messages."""


def waterfall(run: Trajectory) -> tuple[Bar, ...]:
    """The rows, in order of start within each agent."""
    whole = max(run.end_ns - run.start_ns, 1)
    end_ns = max(run.end_ns, run.start_ns + 1)
    own: dict[str, list[tuple[int, int, str, str, str, str, bool]]] = {}
    for placed in run.calls:
        call = placed.call
        name = call.policy_version or call.response_model or call.request_model or "call"
        row = (call.start_ns, call.end_ns, "call", name, failure(call), call.span_id, False)
        own.setdefault(placed.agent_id, []).append(row)
    for tool in run.tool_calls:
        row = (tool.start_ns, tool.end_ns, "tool", tool.name, tool.error or "", tool.span_id, tool.inferred)
        own.setdefault(tool.agent_id, []).append(row)
    for one in run.http_requests:
        name, failed = f"{one.method} {one.url or one.host}", one.error or broken_off(one.interrupted)
        own.setdefault(one.agent_id, []).append((one.start_ns, one.end_ns, "request", name, failed, one.span_id, False))

    bars: list[Bar] = []

    def bar(kind: str, name: str, level: int, start: int, end: int, error: str, span_id: str, bound: bool) -> None:
        duration = -1 if is_undated(start) or not (start and end) else max(0, end - start)
        end = end or end_ns
        start = start or run.start_ns
        x = min(max(WIDTH * (start - run.start_ns) / whole, 0), WIDTH - 1)
        width = min(max(WIDTH * (end - start) / whole, 2), WIDTH - x)
        bars.append(Bar(kind, name, level, start - run.start_ns, duration, x, width, error, span_id, bound))

    for agent, level in agents_with_levels(run):
        root = agent is run.agents[0]
        start, end = (run.start_ns, run.end_ns) if root else (agent.start_ns, agent.end_ns)
        error = (run.error or "") if root else ""
        bar("agent", agent.name, level, start, end, error, "" if agent.inferred else agent.id, False)
        for start, end, kind, name, error, span_id, bound in sorted(own.get(agent.id, ()), key=lambda row: row[:2]):
            bar(kind, name, level + 1, start, end, error, span_id, bound)
    return tuple(bars)
