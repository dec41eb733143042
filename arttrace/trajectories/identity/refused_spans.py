"""Which runs lack spans that were refused, and what each says of them.

Where it is not known whose a refused span was, every run with a part in its trace may lack it. What such runs have in
common is put together once, so that many of both take time by their number.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from heapq import nsmallest

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.attribute_values import text
from arttrace.trajectories.decoding.operation import is_of_a_run
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan, deduplicate
from arttrace.trajectories.identity.membership import Home

_REASONS = 3


@dataclass(frozen=True, slots=True)
class Lacked:
    """What a run lacks: its number, how often each of its first kinds and reasons occurs, and a sum of its content. Of
    parts that have nothing in common the whole is the sum."""

    count: int = 0
    first: tuple[tuple[tuple[str, str], int], ...] = ()
    content: int = 0

    @classmethod
    def of(cls, stand_ins: Collection[UniqueSpan]) -> Lacked:
        """These."""
        counts = Counter((_what(one.row), one.row.status_message) for one in stand_ins)
        return cls(len(stand_ins), _first(counts), sum(map(_content, stand_ins)))

    def __add__(self, other: Lacked) -> Lacked:
        counts = Counter(dict(self.first)) + Counter(dict(other.first))
        return Lacked(self.count + other.count, _first(counts), self.content + other.content)

    def reasons(self) -> list[str]:
        """Why a trajectory that lacks these is not complete."""
        said = [
            f"{f'a {what} was' if count == 1 else f'{count} {what}s were'} refused: {why or 'no reason is known'}"
            for (what, why), count in self.first
        ]
        others = self.count - sum(count for _, count in self.first)
        return [*said, f"spans refused for other reasons: {others}"] if others else said

    def revision(self, of_spans: str) -> str:
        """The revision of a run that lacks these, from that of the spans which it has: 16 hex digits."""
        if not self.count:
            return of_spans
        return hashlib.blake2b(f"{of_spans}{self.content:x}".encode(), digest_size=8).hexdigest()


def _first(counts: Mapping[tuple[str, str], int]) -> tuple[tuple[tuple[str, str], int], ...]:
    return tuple(nsmallest(_REASONS, counts.items()))


def _what(row: SpanRow) -> str:
    return "log record" if semconv.LOG_RECORD in row.attributes else "span"


def _content(one: UniqueSpan) -> int:
    of_it = "/".join((*one.key, one.content_hash))
    return int.from_bytes(hashlib.blake2b(of_it.encode(), digest_size=16).digest())


def lacked(
    stand_ins: Iterable[SpanRow], spans: Mapping[SpanKey, UniqueSpan], homes: Mapping[SpanKey, Home]
) -> dict[str, Lacked]:
    """By trajectory, what of it did not come but was refused. It is the trajectory that the refused span named, else
    that of its parent. Where neither is known it may be the one that it, or what was refused above it, links to, and
    each that has a part in its trace."""
    unique = deduplicate(stand_ins)
    if not unique:
        return {}
    runs = {homes[key].id for key, span in spans.items() if is_of_a_run(span.row)}
    known: dict[SpanKey, _Lacking] = {}
    of_runs: dict[str, list[UniqueSpan]] = {}
    of_traces: dict[str, list[UniqueSpan]] = {}
    for key, one in unique.items():
        if key in spans and spans[key].row.end_ns > 0:
            continue
        path, lacking = _upwards(key, unique, homes, runs, known)
        for at in reversed(path):
            lacking = known[at] = _below(lacking, unique[at].row, homes, runs)
        for run in known[key].runs:
            of_runs.setdefault(run, []).append(one)
        for trace in known[key].traces:
            of_traces.setdefault(trace, []).append(one)
    parts: dict[str, set[str]] = {run: set() for run in of_runs}
    for (trace, _), home in homes.items():
        if trace in of_traces and home.id in runs:
            parts.setdefault(home.id, set()).add(trace)
    in_common = _InCommon(of_traces, known)
    found: dict[str, Lacked] = {}
    for run, traces in parts.items():
        own = [one for one in of_runs.get(run, ()) if known[one.key].traces.isdisjoint(traces)]
        found[run] = in_common.of(frozenset(traces)) + Lacked.of(own)
    return found


@dataclass(frozen=True, slots=True)
class _Lacking:
    """The runs that may lack what was refused: these, and those with a part in these traces; `tied` where more than its
    trace says so."""

    runs: Set[str]
    traces: Set[str]
    tied: bool


class _InCommon:
    """What runs with parts in the same traces lack."""

    def __init__(self, of_traces: Mapping[str, Sequence[UniqueSpan]], known: Mapping[SpanKey, _Lacking]) -> None:
        self._of_traces = of_traces
        self._known = known
        self._found: dict[frozenset[str], Lacked] = {frozenset(): Lacked()}

    def of(self, traces: frozenset[str]) -> Lacked:
        """What was refused that may be of any run in these. Of the trace with the most it is there already."""
        if (found := self._found.get(traces)) is not None:
            return found
        largest, *others = sorted(traces, key=lambda trace: (-len(self._of_traces[trace]), trace))
        if not others:
            found = Lacked.of(self._of_traces[largest])
        else:
            further = {one.key: one for trace in others for one in self._of_traces[trace]}
            only = [one for key, one in further.items() if largest not in self._known[key].traces]
            found = self.of(frozenset({largest})) + Lacked.of(only)
        self._found[traces] = found
        return found


def _upwards(
    key: SpanKey,
    stand_ins: Mapping[SpanKey, UniqueSpan],
    homes: Mapping[SpanKey, Home],
    runs: Set[str],
    known: Mapping[SpanKey, _Lacking],
) -> tuple[list[SpanKey], _Lacking | None]:
    """What was refused from this one upwards of which it is not known yet who lacks it, and who lacks what stands above
    that. Of a ring that with links counts as its top."""
    path: dict[SpanKey, None] = {}
    while key in stand_ins and key not in known and key not in path:
        path[key] = None
        if named := text(stand_ins[key].row.attributes.get(semconv.TRAJECTORY_ID)):
            return list(path), _Lacking({named}, set(), tied=True)
        key = key[0], stand_ins[key].row.parent_span_id or ""
    home = homes.get(key)
    if key not in stand_ins and home is not None and home.id in runs:
        return list(path), _Lacking({home.id}, set(), tied=True)
    if key not in path:
        return list(path), known.get(key)
    below = list(path)[: list(path).index(key)]
    ring = sorted(set(path).difference(below), key=lambda one: (not stand_ins[one].row.links, one))
    return [*below, *reversed(ring)], None


def _below(above: _Lacking | None, row: SpanRow, homes: Mapping[SpanKey, Home], runs: Set[str]) -> _Lacking:
    """Who lacks what was refused below something that these lack."""
    if above is not None and (above.tied or not row.links):
        return above
    lacking, traces = set[str](), {row.trace_id}
    for link in row.links:
        tied = homes.get((link.trace_id, link.span_id))
        if tied is None:
            traces.add(link.trace_id)
        elif tied.id in runs:
            lacking.add(tied.id)
    return _Lacking(lacking, traces, tied=bool(row.links))
