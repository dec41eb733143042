"""Which trajectory a reward belongs to: no reward is lost because its trace is, by now, no trajectory of its own.

A reward found on a span goes with the span, one of another span, which its trace and id say, with that. One given to a
trajectory's id goes there. One given to a trace, which conversations split or which is a part of a longer run, goes to
the trajectory that holds the trace's root: the run's uppermost span in it, of several the one that started first (ties:
span id).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from arttrace.records.reward import Reward
from arttrace.records.span import SpanRow
from arttrace.trajectories.identity.deduplicate import SpanKey


def by_trajectory(
    rewards: Iterable[Reward],
    found_on: Mapping[str, SpanKey],
    of_runs: Mapping[SpanKey, SpanRow],
    parents: Mapping[SpanKey, SpanKey | None],
    id_of: Mapping[SpanKey, str],
) -> dict[str, list[Reward]]:
    """Rewards by trajectory. `found_on` has the spans of those (by id) that were found on one; `of_runs` are the spans
    that belong to runs, `id_of` their trajectories."""
    given: dict[str, list[Reward]] = {}
    known: set[str] | None = None
    roots: dict[str, str] = {}
    for reward in rewards:
        if known is None:
            known = {id_of[key] for key in of_runs}
            roots = trace_roots(of_runs, parents, id_of)
        of = (reward.trajectory_id, reward.agent_id) if reward.of_span and reward.agent_id else _NOWHERE
        id = id_of.get(found_on.get(reward.id, of), reward.trajectory_id)
        if id not in known:
            id = next((roots[part] for part in (id, *before_colons(id)) if part in roots), id)
        given.setdefault(id, []).append(reward)
    return given


def trace_roots(
    of_runs: Mapping[SpanKey, SpanRow], parents: Mapping[SpanKey, SpanKey | None], id_of: Mapping[SpanKey, str]
) -> dict[str, str]:
    """For every trace the trajectory that holds its root."""

    def height(key: SpanKey) -> tuple[bool, bool, int, str]:
        parent = parents[key]
        above = parent is not None and parent[0] == key[0] and parent in id_of
        return above, above and parent in of_runs, of_runs[key].start_ns, key[1]

    roots: dict[str, SpanKey] = {}
    for key in of_runs:
        topmost = roots.get(key[0])
        if topmost is None or height(key) < height(topmost):
            roots[key[0]] = key
    return {trace: id_of[key] for trace, key in roots.items()}


def before_colons(id: str) -> list[str]:
    """The ids under which spans may be stored that belong to a trajectory: that of a conversation is `trace:...`."""
    return [id[:at] for at, character in enumerate(id[:_LONGEST_TRACE]) if character == ":"]


_NOWHERE: SpanKey = ("", "")
_LONGEST_TRACE = 64  # 32 digits in OpenTelemetry; a reward may name a trajectory by megabytes of colons
