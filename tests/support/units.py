"""Trajectories that are less than a trace or more than one, and whether SQL and the listing agree on those stored."""

from __future__ import annotations

import msgspec
from simulated_agent import Run, message

from arttrace.records.span import SpanLink, SpanRow
from arttrace.store import Store


def sessions(*conversations: str, trace: str = "served") -> list[SpanRow]:
    """A trace of somebody else's SDK: an agent per conversation under one server span."""
    run = Run(trace)
    for number, conversation in enumerate(conversations):
        at = 10 + 10 * number
        agent = run.agent(conversation, at=at, until=at + 9, CONVERSATION_ID=conversation, TRAJECTORY_ID=None)
        said = message("assistant", "x")
        run.chat(f"c{number}", [message("user", "u")], said, at=at + 1, parent=agent, flow=None, TRAJECTORY_ID=None)
    return [*run.spans, SpanRow(run.trace_id, run.root_id, "POST /chat", run.spans[0].start_ns, run.spans[0].end_ns)]


def linked(trace: str, to: tuple[str, str]) -> list[SpanRow]:
    """An agent in a trace of its own that links to a span (trace id, span id)."""
    run = Run(trace)
    run.chat("c", [message("user", "asked")], message("assistant", "said"), at=20, flow=None, TRAJECTORY_ID=None)
    unknown = dict.fromkeys(("TRAJECTORY_ID", "TRAJECTORY_SPAN_COUNT", "ENTRY", "EXECUTION_ID"))
    run.end(at=30, AGENT_NAME=trace, **unknown)
    run.spans[-1] = msgspec.structs.replace(run.spans[-1], links=[SpanLink(*to)])
    return run.spans


def caller(id: str = "main") -> tuple[list[SpanRow], tuple[str, str]]:
    """A run with a tool that somebody links to."""
    run = Run(id)
    tool = run.tool("t", "ask", at=10, until=40)
    run.chat("m", [message("user", "u")], message("assistant", "x"), at=1)
    return run.end(), (run.trace_id, tool)


def agree(store: Store) -> None:
    """SQL says of every trajectory what `arttrace ls` says."""
    _, rows = store.sql("SELECT id, calls, coalesce(map_values(rewards), []) FROM trajectories")
    _, given = store.sql("SELECT trajectory_id, count(*) FROM rewards GROUP BY ALL")
    found = {id: (calls, [round(sum(values), 6)] if values else []) for id, calls, values in rows}
    listed = {
        one.id: (one.calls, [round(sum(r.value for r in one.rewards), 6)] if one.rewards else [])
        for one in store.summaries()
    }
    assert found == listed
    assert dict(given) == {one.id: len(one.rewards) for one in store.summaries() if one.rewards}
