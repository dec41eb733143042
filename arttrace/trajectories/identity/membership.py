"""Whose span is this? Decided here and nowhere else, from everything that ties spans together.

A span belongs to the trajectory it names, else to that of its nearest ancestor which names one; an agent whose parent
is not there stands under the span that it links to. What is left hangs together as trees, each below one uppermost
span.

- A tree is *whole* when its uppermost span has no parent. It belongs to that span's trace, which conversations split
  where no run's span stands above both.
- A tree is *torn* when its uppermost span's parent, or what it links to, did not arrive. It belongs to the one run in
  that parent's trace. Where several are there it belongs to the one whose conversation it says, else stays by itself,
  and each of the others may lack it and says so, as do all runs in the traces that it has members in.

Only the set of spans counts, and a span that comes later may change the answer. The store keeps every span under its
`stored_id` as it comes, and asks `membership` when it is read for those that `may_belong_elsewhere`: asked at ingest,
each batch of a trace would need all the spans of the trace again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.operation import is_of_a_run, makes_a_run, tells_of_a_call
from arttrace.trajectories.identity.ancestors import inherited, nearest, tops, without_cycles
from arttrace.trajectories.identity.collisions import COLLIDED
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan
from arttrace.trajectories.identity.links import Links, Parents

_T = TypeVar("_T")


class Home(NamedTuple):
    """The id under which spans are stored (the one named, else a trace's), and that of their trajectory: the same,
    unless conversations split the trace."""

    stored_id: str
    id: str


class Membership(msgspec.Struct, frozen=True):
    """Of every span its home and the key of its parent, present or not, without cycles; `problems` is, by trajectory,
    why spans may be missing in it, or not be its own."""

    homes: dict[SpanKey, Home]
    parents: Parents
    problems: dict[str, tuple[str, ...]]


def stored_id(trace_id: str, named: str | None, operation: str | None) -> str | None:
    """The id under which a span is stored while the spans around it are not known: the trajectory it names, else its
    trace; None for a span that no run consists of."""
    return named or (trace_id if makes_a_run(operation) else None)


def may_belong_elsewhere(span: SpanRow, attributes: Mapping[str, object], stored: str | None, operation: str) -> bool:
    """Whether the spans around a span may give it, or what links it, another trajectory than its `stored_id`; of a span
    for which this is False, and that nothing links to, it is the answer."""
    if stored == span.trace_id and operation and (span.parent_span_id or semconv.CONVERSATION_ID in attributes):
        return True
    return operation == semconv.OPERATION_INVOKE_AGENT and bool(span.links)


def membership(spans: Mapping[SpanKey, UniqueSpan]) -> Membership:
    """The membership of every span."""
    recorded_parents = {key: (key[0], at) if (at := span.row.parent_span_id) else None for key, span in spans.items()}
    links = Links(spans, recorded_parents)
    parents, cut = without_cycles(recorded_parents | links.above())
    named = inherited(spans, parents, semconv.TRAJECTORY_ID)
    made = {id: Home(id, id) for id in named.values() if id is not None}
    homes = {key: made[id] for key, id in named.items() if id is not None}
    doubts: dict[str, Counter[str]] = {}
    if len(homes) < len(spans):
        homes.update(_Trees(spans, parents, cut, homes, links).homes(doubts))
    for key in links.broken():
        doubts.setdefault(homes[key].id, Counter())[LINK_LOST] += 1
    problems: dict[str, list[str]] = {}
    for id in _miss_parents(links.torn(), spans, recorded_parents, parents, homes, doubts):
        problems.setdefault(id, []).append(PARENT_LOST)
    for id in sorted({homes[key].id for key in cut}):
        problems.setdefault(id, []).append("parents in a cycle")
    for id, count in _collisions(spans, homes).items():
        problems.setdefault(id, []).append(COLLIDED.format(count=count))
    for id, reasons in doubts.items():
        problems.setdefault(id, []).extend(f"{reason}: {count}" for reason, count in sorted(reasons.items()))
    return Membership(homes, parents, {id: tuple(found) for id, found in problems.items()})


MAY_LACK = "may lack spans whose parent did not arrive"
LINK_LOST = "linked span missing"
PARENT_LOST = "parent missing"


def _miss_parents(
    torn: Collection[SpanKey],
    spans: Mapping[SpanKey, UniqueSpan],
    recorded_parents: Parents,
    parents: Parents,
    homes: Mapping[SpanKey, Home],
    doubts: dict[str, Counter[str]],
) -> set[str]:
    """The trajectories in which parents of `torn` are missed. They may have been a part of any other one in their trace
    as well, but of those that begin below them: `doubts` counts that."""
    if not torn:
        return set()
    within = nearest(parents, {key: key for key in torn})
    top = tops(parents)
    outside: dict[str, set[Home]] = {key[0]: set() for key in torn}
    beside: dict[SpanKey | None, set[Home]] = {}
    below: Counter[SpanKey] = Counter()
    for key, span in spans.items():
        if key[0] not in outside or not is_of_a_run(span.row):
            continue
        if (head := within[key]) is None:
            outside[key[0]].add(homes[key])
        elif head[0] == key[0]:
            below[head] += 1
        if (above := parents[top[key]]) is not None and above[0] == key[0]:
            beside.setdefault(above, set()).add(homes[key])
    for key in torn:
        for home in outside[key[0]] - beside.get(recorded_parents[key], set()) - {homes[key]}:
            doubts.setdefault(home.id, Counter())[MAY_LACK] += below[key]
    return {homes[key].id for key in torn}


def _collisions(spans: Mapping[SpanKey, UniqueSpan], homes: Mapping[SpanKey, Home]) -> Counter[str]:
    """By trajectory, how many of its spans' ids stand for other spans too. The runs of the others are not whole
    either."""
    collided = [(key, span.collided) for key, span in spans.items() if span.collided is not None]
    return Counter(id for key, others in collided for id in {homes[key].id, *others})


class _Trees:
    """The trees of spans that name no trajectory and have no ancestor that does; a tree is named by its uppermost
    span."""

    def __init__(
        self,
        spans: Mapping[SpanKey, UniqueSpan],
        parents: Parents,
        cut: Collection[SpanKey],
        named: Mapping[SpanKey, Home],
        links: Links,
    ) -> None:
        self._spans, self._parents = spans, parents
        self._top = tops(parents)
        self._members: dict[SpanKey, list[SpanKey]] = {}
        for key, top in self._top.items():
            if key not in named:
                self._members.setdefault(top, []).append(key)
        self._conversations = inherited(spans, parents, semconv.CONVERSATION_ID)
        self._of_runs = {key for key, span in spans.items() if is_of_a_run(span.row)}
        self._missable = self._of_runs | {key for key, span in spans.items() if tells_of_a_call(span.row)}
        run_trees = [top for top, members in self._members.items() if not self._missable.isdisjoint(members)]
        self._links = {top: lost for top in run_trees if (lost := links.lost(top))}
        """What the trees link to that is not there."""
        self._torn = {top for top in run_trees if parents[top] or top in cut or top in self._links}
        self._within = self._spoken_within() if self._torn and any(self._conversations.values()) else {}
        """The conversations in each trace that stand within a run which does not begin with them, as that of an agent
        which a tool started: what says such a one and lost its parent may be a part of any run."""
        self._found: dict[SpanKey, Home] = {}
        self._separate: dict[str, set[str]] = {}
        """The conversations in each trace."""
        self._runs: dict[str, set[Home]] = {}
        """The homes of the runs' spans in each trace."""
        self._others: dict[SpanKey, set[Home]] = {}
        """Homes that a torn tree cannot have, by its uppermost span or by the parent that it lost: it stands above a
        run's entry, or beside it."""
        self._note(named.items())

    def homes(self, doubts: dict[str, Counter[str]]) -> dict[SpanKey, Home]:
        """The homes of all their spans. `doubts` counts, by trajectory and reason, spans of runs that may be its own.
        The parent of what a link ties becomes what is linked to."""
        linking: dict[str, set[str]] = {}
        for top, lost in self._links.items():
            linking.setdefault(top[0], set()).update(trace for trace, _ in lost)
        self._settle([top for top in self._members if top not in self._torn], doubts)
        self._settle([top for top in self._torn if top[0] not in linking], doubts)
        reached = {trace: self._reach(trace, linking) for linked in linking.values() for trace in linked}
        self._settle(list(self._links), doubts, reached)
        self._settle([top for top in self._torn if top[0] in linking and top not in self._links], doubts)
        self._doubt_where_they_lead(doubts)
        return self._found

    def _note(self, homes: Iterable[tuple[SpanKey, Home]]) -> None:
        """What follows from the spans that have a home for trees that have none."""
        for key, home in homes:
            if key not in self._of_runs:
                continue
            self._runs.setdefault(key[0], set()).add(home)
            parent = self._parents[key]
            if parent is None:
                continue
            above = self._top.get(parent, parent)
            if semconv.ENTRY in self._spans[key].row.attributes:
                self._others.setdefault(above, set()).add(home)
            elif above in self._torn and above not in self._found:
                self._runs.setdefault(above[0], set()).add(home)

    def _settle(
        self,
        trees: Iterable[SpanKey],
        doubts: dict[str, Counter[str]],
        reached: Mapping[str, Collection[Home]] | None = None,
    ) -> None:
        """Gives homes to trees that may belong to the runs in their traces, or, with `reached`, to those of the traces
        that they link to."""
        alone: dict[str, list[SpanKey]] = {}
        candidates: dict[SpanKey, set[Home]] = {}
        by_itself: set[SpanKey] = set()
        settled: dict[SpanKey, Home] = {}
        for top in trees:
            candidates[top] = found = self._candidates(top, reached) if top in self._torn else set()
            if (home := _only(found) or self._spoken_in(top, found)) is not None:
                settled.update(dict.fromkeys(self._members[top], home))
                if reached is not None:
                    self._parents[top] = next(link for link in self._links[top] if home in self._linked(link, reached))
            else:
                alone.setdefault(top[0], []).extend(self._members[top])
                by_itself.add(top)
        for trace, members in alone.items():
            settled.update(self._split(trace, members))
        self._note(settled.items())
        self._found.update(settled)
        for top, found in candidates.items():
            lost = sum(key in self._missable for key in self._members[top])
            for home in found - {settled[top]}:
                doubts.setdefault(home.id, Counter())[MAY_LACK] += lost
            if top in self._links and top in by_itself:
                doubts.setdefault(settled[top].id, Counter())[LINK_LOST] += 1
            if top in self._torn:  # what was lost above it may have joined what conversations part
                parts = Counter(settled[key] for key in self._members[top] if key in self._missable)
                for home, own in parts.items() if len(parts) > 1 else ():
                    doubts.setdefault(home.id, Counter())[MAY_LACK] += lost - own

    def _doubt_where_they_lead(self, doubts: dict[str, Counter[str]]) -> None:
        """What was lost above torn trees may have tied them to runs in all traces that they have members in."""
        below: dict[SpanKey, list[SpanKey]] = {}
        for top in self._torn:
            below.setdefault(self._parents[top] or top, []).append(top)
        for lost, trees in below.items():
            members = [key for top in trees for key in self._members[top] if key in self._missable]
            known = {trace for top in trees for trace, _ in self._links.get(top, (lost,))}
            found = set[Home]().union(*(self._runs.get(trace, ()) for trace in {key[0] for key in members} - known))
            found -= {self._found[key] for key in members}.union(*(self._others.get(at, ()) for at in (lost, *trees)))
            for home in found:
                doubts.setdefault(home.id, Counter())[MAY_LACK] += len(members)

    def _candidates(self, top: SpanKey, reached: Mapping[str, Collection[Home]] | None) -> set[Home]:
        """The runs of which a torn tree may be a part."""
        found: set[Home] = set()
        if reached is None:
            found |= self._runs.get(top[0], set())
        else:
            found.update(*(self._linked(link, reached) for link in self._links[top]))
        found -= self._others.get(top, set())
        if (parent := self._parents[top]) is not None:
            found -= self._others.get(parent, set())
        if self._of_runs.isdisjoint(self._members[top]):  # log records: what names its trajectory counts its spans
            found = {home for home in found if home.stored_id == top[0]}
        return found

    def _linked(self, link: SpanKey, reached: Mapping[str, Collection[Home]]) -> set[Home]:
        """The runs of which a span that a torn tree links to may be a part."""
        return set(reached[link[0]]) - self._others.get(self._top.get(link, link), set())

    def _spoken_in(self, top: SpanKey, found: Collection[Home]) -> Home | None:
        """The one of these runs that is the conversation which a torn tree says."""
        said = self._conversations[top]
        if said in self._within.get(top[0], ()):
            return None
        return _only([home for home in found if home.id == f"{home.stored_id}:{said}"])

    def _spoken_within(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for key, part in self._parts(key for members in self._members.values() for key in members).items():
            if (said := self._conversations[key]) and said != self._conversations[part]:
                found.setdefault(key[0], set()).add(said)
        return found

    def _reach(self, trace: str, linking: Mapping[str, Collection[str]]) -> set[Home]:
        """The runs in a trace and in those to which torn trees in it link, and so on."""
        found: set[Home] = set()
        seen, waiting = {trace}, [trace]
        while waiting:
            at = waiting.pop()
            found |= self._runs.get(at, set())
            further = set(linking.get(at, ())) - seen
            seen |= further
            waiting += further
        return found

    def _split(self, trace: str, members: Collection[SpanKey]) -> dict[SpanKey, Home]:
        """The homes of spans in a trace's own run, or in one for each of its conversations."""
        part_of = self._parts(members)
        own: dict[SpanKey, set[str]] = {}
        for key, part in part_of.items():
            if conversation := self._conversations[key]:
                own.setdefault(part, set()).add(conversation)
        spoken = {part: self._conversations[part] or _only(own.get(part, set())) for part in part_of.values()}
        separate = self._separate.setdefault(trace, set())
        separate.update(conversation for conversation in spoken.values() if conversation)
        if len(separate) < 2:
            return dict.fromkeys(members, Home(trace, trace))
        below: dict[SpanKey, set[str]] = {}
        for part, conversation in spoken.items():
            above = self._parents[part]
            while above is not None and above in self._spans:
                if (conversation or "") in below.setdefault(above, set()):
                    break
                below[above].add(conversation or "")
                above = self._parents[above]
        found = {}
        for key in members:
            head = part_of.get(key)
            said = spoken[head] if head else _only(below.get(key, set())) or self._conversations[key]
            found[key] = Home(trace, f"{trace}:{said}" if said in separate else trace)
        return found

    def _parts(self, members: Iterable[SpanKey]) -> dict[SpanKey, SpanKey]:
        """The uppermost span of a run at or above every span that has one: what stands below it is joined by it."""
        found: dict[SpanKey, SpanKey | None] = {}
        for start in members:
            path: list[SpanKey] = []
            at: SpanKey | None = start
            while at is not None and at in self._spans and at not in found:
                path.append(at)
                at = self._parents[at]
            part = found.get(at) if at is not None else None
            for key in reversed(path):
                part = part or (key if key in self._of_runs else None)
                found[key] = part
        return {key: part for key, part in found.items() if part is not None}


def _only(items: Collection[_T]) -> _T | None:
    return next(iter(items)) if len(items) == 1 else None
