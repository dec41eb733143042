"""Puts the parts together: spans and rewards in, trajectories out, the same for any order, batching and duplication."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from arttrace.records import semconv
from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.records.trajectory import Trajectory
from arttrace.trajectories.agents.http_requests import lost_requests
from arttrace.trajectories.agents.placing import place
from arttrace.trajectories.agents.scored_spans import with_agents
from arttrace.trajectories.agents.tree import AgentTree, agent_tree
from arttrace.trajectories.decoding.attribute_values import as_text, from_json, shallow_object, text, whole_number
from arttrace.trajectories.decoding.operation import is_call, is_of_a_run, operation, span_error
from arttrace.trajectories.decoding.unreadable_calls import unanswered, unread_of_run
from arttrace.trajectories.identity.counting_rewards import counting, latest
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan, deduplicate, distinct_ids, revision
from arttrace.trajectories.identity.membership import membership
from arttrace.trajectories.identity.refused_spans import Lacked, lacked
from arttrace.trajectories.identity.reward_membership import by_trajectory
from arttrace.trajectories.identity.stand_ins import apart

_STOPPED = ("cancelled", "closed")
"""How an agent ends that is not waited for any longer."""


def build_trajectories(
    spans: Iterable[SpanRow],
    rewards: Iterable[Reward] = (),
    *,
    ids: Collection[str] | None = None,
    rewarded: Mapping[str, SpanKey] | None = None,
) -> list[Trajectory]:
    """Every trajectory among the spans, in order of start (ties by id), each with its rewards.

    `ids` keeps only these trajectories, and with a trace's id all of its conversations. `rewarded` gives the span that
    a reward (by id) was found on, whose trajectory is then the rewarded one. A reward given to a trace that is no
    trajectory, because conversations split it or because it is a part of one, goes to the trajectory that holds its
    root. Of rewards with one id the latest counts, whichever trajectories they were given to. A trace with neither a
    trajectory id nor a GenAI operation is nobody's run and is left out.
    """
    there, stand_ins = apart(spans)
    unique = deduplicate(there)
    belonging = membership(unique)
    homes, above = belonging.homes, belonging.parents
    members: dict[str, list[UniqueSpan]] = {}
    for key, home in homes.items():
        if ids is None or home.id in ids or home.stored_id in ids:
            members.setdefault(home.id, []).append(unique[key])
    within = {
        key: None if parent in homes and homes[parent].id != homes[key].id else parent for key, parent in above.items()
    }
    given: dict[str, list[Reward]] = {}
    if rewards := latest(rewards):
        of_runs = {key: span.row for key, span in unique.items() if is_of_a_run(span.row)}
        given = by_trajectory(rewards, rewarded or {}, of_runs, above, {key: home.id for key, home in homes.items()})
    refused = lacked(stand_ins, unique, homes)
    built = [
        _build(id, found, within, belonging.problems.get(id, ()), refused.get(id, Lacked()), given.get(id, ()))
        for id, found in members.items()
        if any(is_of_a_run(s.row) for s in found)
    ]
    return sorted(built, key=lambda trajectory: (trajectory.start_ns, trajectory.id))


def _build(
    trajectory_id: str,
    members: Sequence[UniqueSpan],
    parents: Mapping[SpanKey, SpanKey | None],
    problems: Iterable[str],
    refused: Lacked,
    rewards: Iterable[Reward],
) -> Trajectory:
    spans: Mapping[SpanKey, SpanRow] = {
        span.key: span.row for span in sorted(members, key=lambda span: (span.row.start_ns, span.key))
    }
    spans, parents = distinct_ids(spans, parents)
    tree = agent_tree(trajectory_id, spans, parents)
    joined = _joined(spans, tree.tops)
    root = _agreed([top.attributes for top in tree.tops]) if tree.tops else _said_of_the_run(spans, joined, tree)
    tags, metadata = _tags_and_metadata([root, *(span.attributes for span in joined.values())])
    failed = sorted(error for top in tree.tops if (error := span_error(top)) is not None)
    collided = {span.key for span in members if span.collided is not None}
    placed = place(tree, spans, collided)
    read = {(one.call.trace_id, one.call.span_id): one.call for one in placed.calls}
    given = with_agents(latest(rewards), spans, parents, tree, placed.calls, placed.tool_calls)
    return Trajectory(
        id=trajectory_id,
        revision=refused.revision(revision(members)),
        project=text(root.get(semconv.PROJECT)) or _resource_name(spans),
        entry=text(root.get(semconv.ENTRY)) or "",
        entry_name=text(root.get(semconv.ENTRY_NAME)) or "",
        scenario=text(root.get(semconv.SCENARIO)),
        group=text(root.get(semconv.GROUP)),
        tags=tags,
        metadata=metadata,
        arguments=from_json(root.get(semconv.ENTRY_ARGUMENTS)),
        result=from_json(root.get(semconv.ENTRY_RESULT)),
        error="; ".join(failed) or None,
        start_ns=tree.root.start_ns if tree.root else min(span.start_ns for span in spans.values()),
        end_ns=(tree.root.end_ns if tree.root else 0) or max(max(s.start_ns, s.end_ns) for s in spans.values()),
        agents=placed.agents,
        calls=placed.calls,
        tool_calls=placed.tool_calls,
        http_requests=placed.http_requests,
        http_lost=lost_requests(spans.values()),
        nodes=placed.nodes,
        rewards=counting(given),
        notes=tuple(one for one in given if not one.counts and one.explanation),
        incomplete="; ".join(
            dict.fromkeys(
                (
                    *refused.reasons(),
                    *problems,
                    *tree.problems,
                    *_in_progress(spans, tree.tops),
                    *_interrupted(spans, tree.tops),
                    *_missing_spans(spans),
                    *unanswered(read.values()),
                )
            )
        ),
        conflicts=sum(span.conflicts for span in members),
        unread=unread_of_run(spans, read),
    )


def _joined(spans: Mapping[SpanKey, SpanRow], tops: Sequence[SpanRow]) -> dict[SpanKey, SpanRow]:
    """The spans on which processes that did not begin the run say tags or metadata of it, in order of start: their own
    uppermost ones, or such as are there for nothing else (capture/context/remote_update.py). The view
    `trajectories` has the rule too (store/rows/views.py)."""
    return {
        key: span
        for key, span in spans.items()
        if (semconv.TAGS in span.attributes or semconv.METADATA in span.attributes)
        and semconv.TRAJECTORY_ID in span.attributes
        and semconv.ENTRY not in span.attributes
        and not is_call(span)
        and span not in tops
    }


def _tags_and_metadata(said: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Of the root, which comes first, and the joined: every tag once in that order; of each key the root's value, else
    the last one's."""
    tags = [as_text(tag) or "" for one in said for tag in _sequence(one.get(semconv.TAGS))]
    own, *others = [shallow_object(one.get(semconv.METADATA)) for one in said]
    metadata = dict(own)
    for other in others:
        metadata |= other
    return tuple(dict.fromkeys(tags)), metadata | own


def _said_of_the_run(
    spans: Mapping[SpanKey, SpanRow], joined: Collection[SpanKey], tree: AgentTree
) -> Mapping[str, Any]:
    """Of a run without a root, what its first call that says its task, group or metadata says of them, and the tags of
    the first that has some where the run has no agent at all."""
    about = (semconv.SCENARIO, semconv.GROUP, semconv.METADATA)
    calls = [span.attributes for key, span in spans.items() if key not in joined]
    first = next((said for said in calls if not said.keys().isdisjoint(about)), {})
    tagged = [] if tree.spans_of else calls
    tags = next((said[semconv.TAGS] for said in tagged if _sequence(said.get(semconv.TAGS))), ())
    return {semconv.TAGS: tags, **{name: first[name] for name in about if name in first}}


def _agreed(said: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the agents above the rest say of the run: all that one says, of several what none contradicts."""
    if len(said) == 1:
        return said[0]
    found: dict[str, Any] = {}
    for name in {name for one in said for name in one}:
        values = [one[name] for one in said if name in one]
        if all(value == values[0] for value in values):
            found[name] = values[0]
    return found


def _in_progress(spans: Mapping[SpanKey, SpanRow], tops: Collection[SpanRow]) -> list[str]:
    """Reasons for spans that were begun, and of whose end nothing is known: a run's own, or its agents' below."""
    open = Counter(_kind(span, tops) for span in spans.values() if span.end_ns == 0)
    return [f"{kind} in progress" if n == 1 else f"{n} {kind}s in progress" for kind, n in sorted(open.items())]


def _kind(span: SpanRow, tops: Collection[SpanRow]) -> str:
    if is_call(span):
        return "call"
    if operation(span) != semconv.OPERATION_INVOKE_AGENT:
        return "step"
    return "run" if span in tops else "agent"


def _missing_spans(spans: Mapping[SpanKey, SpanRow]) -> list[str]:
    """Reasons found on the entries themselves: more spans ended than arrived.

    Every process that took part counts the spans it ended on its own uppermost one, wherever that stands in the tree.
    A count that cannot be read could have been of spans that are missing. Where such a one names no trajectory, as in
    an export of another system, no span need name it. Another system's count may have other runs' spans in it, which
    those that stand for them take off.
    """
    expected, are_named, problems = 0, True, []
    trees = [
        whole_number(one) for span in spans.values() if (one := span.attributes.get(semconv.TREE_COUNT)) is not None
    ]
    if None in trees:
        problems.append("the number of its spans is unreadable")
    if (below := sum(one or 0 for one in trees)) > len(spans):
        problems.append(f"{below - len(spans)} of {below} spans missing")
    for span in spans.values():
        if semconv.TRAJECTORY_SPAN_COUNT in span.attributes:
            count = whole_number(span.attributes[semconv.TRAJECTORY_SPAN_COUNT])
            if count is None or count < 0:
                problems.append("the number of its spans is unreadable")
            else:
                expected += count + 1
                are_named = are_named and semconv.TRAJECTORY_ID in span.attributes
    seen = len([1 for span in spans.values() if not are_named or semconv.TRAJECTORY_ID in span.attributes])
    if expected > seen:
        problems.append(f"{expected - seen} of {expected} spans missing")
    return list(dict.fromkeys(problems))


def _interrupted(spans: Mapping[SpanKey, SpanRow], tops: Collection[SpanRow]) -> list[str]:
    """Why the run, or the record of an agent in it, broke off. A sub-agent that was stopped while the run went on, as
    the slower of two is, is a part of what the run did."""
    return [
        f"interrupted: {as_text(span.attributes[semconv.INTERRUPTED])}"
        for span in spans.values()
        if semconv.INTERRUPTED in span.attributes
        and operation(span) == semconv.OPERATION_INVOKE_AGENT
        and (span.attributes[semconv.INTERRUPTED] not in _STOPPED or span in tops)
    ]


def _resource_name(spans: Mapping[SpanKey, SpanRow]) -> str:
    return next((name for span in spans.values() if (name := text(span.resource.get(semconv.SERVICE_NAME)))), "")


def _sequence(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (list, tuple)) else ()
