"""Spans become the recorded agent tree: who stands under whom, by span parents and links only, never by time.

Every `invoke_agent` span is an agent. A parent that never arrived becomes a placeholder agent, so that what stands
under it is kept; the reasons why the tree is not whole are in `problems`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from arttrace import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Agent
from arttrace.trajectories.spans import SpanKey
from arttrace.trajectories.values import text


class AgentTree(msgspec.Struct, frozen=True):
    """`agents[0]` is the root. `agent_of` gives the agent of every span (an agent's own span: its parent agent, the
    root for itself); `tool_of` the nearest `execute_tool` span above it within that agent, or None."""

    agents: tuple[Agent, ...]
    agent_of: dict[SpanKey, str]
    tool_of: dict[SpanKey, SpanKey | None]
    spans_of: dict[str, SpanRow]
    root: SpanRow | None
    problems: tuple[str, ...]


def operation(span: SpanRow) -> str:
    """The GenAI operation of a span, "" when it is none."""
    value = span.attributes.get(semconv.OPERATION_NAME)
    return value if isinstance(value, str) else ""


def is_call(span: SpanRow) -> bool:
    """Whether a span is a model call that a trajectory consists of."""
    return operation(span) in semconv.CALL_OPERATIONS


def agent_tree(
    trajectory_id: str, spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None]
) -> AgentTree:
    """The agent tree of one trajectory's spans, without the agents that only the calls reveal (see subagents.py).

    `parents` has every span's parent, without cycles (see spans.py)."""
    above = _nearest(spans, parents)
    problems: list[str] = []
    heads = {key: span for key, span in spans.items() if operation(span) == semconv.OPERATION_INVOKE_AGENT}
    root = _root(heads, parents, above)
    missing = _missing_parents(spans, parents, above, root)
    placeholders = [key for key, _ in sorted(missing.items(), key=lambda item: (item[1].start_ns, item[0]))]

    if root is not None:
        root_id, agents = root[1], [_agent(heads[root], None)]
    elif placeholders:
        problems.append("root missing")
        root_id = placeholders.pop(0)[1]
        agents = [_placeholder(root_id, None, "root")]
    else:
        root_id, agents = f"root:{trajectory_id}", [_implicit_root(trajectory_id, spans)]
        if any(semconv.EXECUTION_ID in span.attributes for span in spans.values()):  # not somebody else's SDK
            problems.append("no root: called outside any trajectory")
    if placeholders:
        problems.append("parent missing")
    agents += [_placeholder(key[1], root_id, "unknown") for key in placeholders]

    ids = {key: key[1] for key in (*heads, *missing)}
    agent_of = {key: ids.get(top, root_id) if top else root_id for key, (top, _) in above.items()}
    agents += [_agent(span, agent_of[key]) for key, span in heads.items() if key != root]
    return AgentTree(
        agents=(agents[0], *sorted(agents[1:], key=lambda agent: (agent.start_ns, agent.id))),
        agent_of=agent_of,
        tool_of={key: tool for key, (_, tool) in above.items()},
        spans_of={key[1]: span for key, span in heads.items()},
        root=heads[root] if root else None,
        problems=tuple(problems),
    )


def _nearest(
    spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None]
) -> dict[SpanKey, tuple[SpanKey | None, SpanKey | None]]:
    """For every span the key of its nearest agent (or of the missing parent at the end of its chain, or None at a
    true root) and of its nearest tool span below that agent."""
    known: dict[SpanKey, tuple[SpanKey | None, SpanKey | None]] = {}
    for start in spans:
        path: list[SpanKey] = []
        key = start
        while key not in known:
            path.append(key)
            parent = parents[key]
            if parent is None or parent not in spans or operation(spans[parent]) == semconv.OPERATION_INVOKE_AGENT:
                known[path.pop()] = (parent, None)
            else:
                key = parent
        for key in reversed(path):
            above = parents[key]
            top, tool = known[above] if above else (None, None)
            is_tool = above is not None and operation(spans[above]) == semconv.OPERATION_EXECUTE_TOOL
            known[key] = (top, above if is_tool else tool)
    return known


def _root(
    heads: Mapping[SpanKey, SpanRow],
    parents: Mapping[SpanKey, SpanKey | None],
    above: Mapping[SpanKey, tuple[SpanKey | None, object]],
) -> SpanKey | None:
    """The decorated entry, else the agent span without a parent, the earliest of several; else the only one that
    stands under no agent (but, say, under a server's span)."""

    def rank(key: SpanKey) -> tuple[bool, int, SpanKey]:
        return (semconv.ENTRY not in heads[key].attributes, heads[key].start_ns, key)

    tops = [key for key in heads if above[key][0] not in heads]
    candidates = [key for key in tops if semconv.ENTRY in heads[key].attributes or parents[key] is None]
    if not candidates:
        candidates = [key for key in tops if above[key][0] is None]
        candidates = candidates if len(candidates) == 1 else []
    return min(candidates, key=rank, default=None)


def _missing_parents(
    spans: Mapping[SpanKey, SpanRow],
    parents: Mapping[SpanKey, SpanKey | None],
    above: Mapping[SpanKey, tuple[SpanKey | None, object]],
    root: SpanKey | None,
) -> dict[SpanKey, SpanRow]:
    """Parents that did not arrive, each with its earliest child. That of the root is somebody else's span."""
    missing: dict[SpanKey, SpanRow] = {}
    outer = above[root][0] if root else None
    for key, span in spans.items():
        parent = parents[key]
        if parent is None or parent in spans or parent == outer:
            continue
        if semconv.ENTRY in span.attributes and key != root:
            continue  # an entry in another process, joined by trajectory id: it stands under the root
        held = missing.get(parent)
        if held is None or (span.start_ns, span.span_id) < (held.start_ns, held.span_id):
            missing[parent] = span
    return missing


def _agent(span: SpanRow, parent_id: str | None) -> Agent:
    attributes = span.attributes
    name = text(attributes.get(semconv.AGENT_NAME)) or span.name.removeprefix(semconv.OPERATION_INVOKE_AGENT).strip()
    return Agent(id=span.span_id, name=name or "agent", parent_id=parent_id, start_ns=span.start_ns, end_ns=span.end_ns)


def _placeholder(id: str, parent_id: str | None, name: str) -> Agent:
    return Agent(id=id, name=name, parent_id=parent_id, placeholder=True, evidence="its span did not arrive")


def _implicit_root(trajectory_id: str, spans: Mapping[SpanKey, SpanRow]) -> Agent:
    """For a trace of somebody else's SDK that has calls but no agent span."""
    first = min(spans.values(), key=lambda span: (span.parent_span_id is not None, span.start_ns, span.span_id))
    return Agent(
        id=f"root:{trajectory_id}",
        name="agent" if is_call(first) else first.name,
        start_ns=min(span.start_ns for span in spans.values()),
        end_ns=max(span.end_ns for span in spans.values()),
        inferred=True,
        evidence="the trace has no invoke_agent span",
    )
