"""Spans become the recorded agent tree: who stands under whom, by span parents and links only, never by time.

Every `invoke_agent` span is an agent. A parent that never arrived becomes a placeholder agent, so that what stands
under it is kept; the reasons why the tree is not whole are in `problems`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Agent
from arttrace.trajectories.decoding.attribute_values import text
from arttrace.trajectories.decoding.operation import is_call, operation
from arttrace.trajectories.identity.deduplicate import SpanKey
from arttrace.trajectories.identity.membership import PARENT_LOST


class AgentTree(msgspec.Struct, frozen=True):
    """`agents[0]` is the root. `agent_of` gives the agent of every span (an agent's own span: its parent agent, the
    root for itself); `tool_of` the nearest `execute_tool` span above it within that agent, or None. `root` is the span
    of the root, None where no agent stands above all else; `tops` are the spans of those that stand above the rest."""

    agents: tuple[Agent, ...]
    agent_of: dict[SpanKey, str]
    tool_of: dict[SpanKey, SpanKey | None]
    spans_of: dict[str, SpanRow]
    root: SpanRow | None
    tops: tuple[SpanRow, ...]
    problems: tuple[str, ...]


def agent_tree(
    trajectory_id: str, spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None]
) -> AgentTree:
    """The agent tree of one trajectory's spans, without the agents that only the calls reveal (see subagents.py).

    `parents` has every span's parent, without cycles (see identity/ancestors.py)."""
    heads = {key: span for key, span in spans.items() if operation(span) == semconv.OPERATION_INVOKE_AGENT}
    above = _nearest(spans, parents, heads)
    problems: list[str] = []
    tops = _tops(heads, parents, above)
    missing = _missing_parents(spans, parents, above, tops)
    placeholders = sorted(missing)

    root: SpanKey | None = None
    if len(tops) == 1 and (semconv.ENTRY in heads[tops[0]].attributes or not _beside(spans, above, tops[0])):
        root = tops[0]
        root_id, agents = root[1], [_agent(heads[root], None)]
    elif tops:
        root_id, agents = f"root:{trajectory_id}", [_implicit_root(trajectory_id, spans, "no agent stands above all")]
    elif len(placeholders) == 1:
        problems.append("root missing")
        root_id = placeholders.pop()[1]
        agents = [_placeholder(root_id, None, "root")]
    elif placeholders:
        problems.append("root missing")
        root_id = f"root:{trajectory_id}"
        agents = [_placeholder(root_id, None, "root")]
    else:
        root_id = f"root:{trajectory_id}"
        agents = [_implicit_root(trajectory_id, spans, "the trace has no invoke_agent span")]
        if any(semconv.EXECUTION_ID in span.attributes for span in spans.values()):  # not somebody else's SDK
            problems.append("no root: called outside any trajectory")
    if placeholders:
        problems.append(PARENT_LOST)
    agents += [_placeholder(key[1], root_id, "unknown") for key in placeholders]

    ids = {key: key[1] for key in (*heads, *missing)}
    agent_of = {key: ids.get(top, root_id) if top else root_id for key, (top, _) in above.items()}
    agents += [_agent(span, agent_of[key]) for key, span in heads.items() if key != root]
    return AgentTree(
        agents=(agents[0], *by_start(agents[1:], root_id if root is None else None)),
        agent_of=agent_of,
        tool_of={key: tool for key, (_, tool) in above.items()},
        spans_of={key[1]: span for key, span in heads.items()},
        root=heads[root] if root else None,
        tops=tuple(heads[top] for top in tops),
        problems=tuple(problems),
    )


def by_start(agents: Iterable[Agent], abreast: str | None) -> list[Agent]:
    """Agents in order of start (ties by id); first, by id, the recorded ones right under the agent `abreast`: nobody
    started them one after the other, and the clocks they ran by may differ."""

    def order(agent: Agent) -> tuple[bool, int, str]:
        is_top = abreast is not None and agent.parent_id == abreast and not agent.inferred
        return not is_top, 0 if is_top else agent.start_ns, agent.id

    return sorted(agents, key=order)


def _nearest(
    spans: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None], heads: Collection[SpanKey]
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
            if parent is None or parent in heads or parent not in spans:
                known[path.pop()] = (parent, None)
            else:
                key = parent
        for key in reversed(path):
            above = parents[key]
            top, tool = known[above] if above else (None, None)
            is_tool = above is not None and operation(spans[above]) == semconv.OPERATION_EXECUTE_TOOL
            known[key] = (top, above if is_tool else tool)
    return known


def _tops(
    heads: Mapping[SpanKey, SpanRow],
    parents: Mapping[SpanKey, SpanKey | None],
    above: Mapping[SpanKey, tuple[SpanKey | None, object]],
) -> list[SpanKey]:
    """The agents above all others, by key: the decorated entry, else agents without a parent, else those that stand
    under no agent (but, say, under a server's span). Of several none is above another: only clocks would decide."""
    uppermost = sorted(key for key in heads if above[key][0] not in heads)
    entries = [key for key in uppermost if semconv.ENTRY in heads[key].attributes]
    return (
        [key for key in entries if parents[key] is None]
        or entries
        or [key for key in uppermost if parents[key] is None]
        or [key for key in uppermost if above[key][0] is None]
    )


def _beside(
    spans: Mapping[SpanKey, SpanRow], above: Mapping[SpanKey, tuple[SpanKey | None, object]], top: SpanKey
) -> bool:
    """Whether calls or tools stand beside the uppermost agent, a router's or a guardrail's, say."""
    return any(
        above[key][0] is None and key != top and (is_call(span) or operation(span) == semconv.OPERATION_EXECUTE_TOOL)
        for key, span in spans.items()
    )


def _missing_parents(
    spans: Mapping[SpanKey, SpanRow],
    parents: Mapping[SpanKey, SpanKey | None],
    above: Mapping[SpanKey, tuple[SpanKey | None, object]],
    tops: Collection[SpanKey],
) -> set[SpanKey]:
    """Parents that did not arrive. That of an entry, or of what stands above all, is somebody else's span."""
    outer = {above[top][0] for top in tops}
    return {
        parent
        for key, span in spans.items()
        if (parent := parents[key]) is not None
        and parent not in spans
        and parent not in outer
        and semconv.ENTRY not in span.attributes
    }


def _agent(span: SpanRow, parent_id: str | None) -> Agent:
    attributes = span.attributes
    name = text(attributes.get(semconv.AGENT_NAME)) or span.name.removeprefix(semconv.OPERATION_INVOKE_AGENT).strip()
    return Agent(id=span.span_id, name=name or "agent", parent_id=parent_id, start_ns=span.start_ns, end_ns=span.end_ns)


def _placeholder(id: str, parent_id: str | None, name: str) -> Agent:
    return Agent(id=id, name=name, parent_id=parent_id, placeholder=True, evidence="its span did not arrive")


def _implicit_root(trajectory_id: str, spans: Mapping[SpanKey, SpanRow], evidence: str) -> Agent:
    """For a trace of somebody else's SDK in which no agent stands above all: named after a span that does, if one."""
    above = [span for span in spans.values() if span.parent_span_id is None and not operation(span)]
    return Agent(
        id=f"root:{trajectory_id}",
        name=above[0].name if len(above) == 1 else "agent",
        start_ns=min(span.start_ns for span in spans.values()),
        end_ns=max(span.end_ns for span in spans.values()),
        inferred=True,
        evidence=evidence,
    )
