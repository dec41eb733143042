"""The spans of runs: each once in its fullest version, or all as they came, some at a time; and the span that a run
began with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store.access.any_store import AnyStore
from arttrace.store.bounded_parts import sized_parts
from arttrace.store.sql_text import listed
from arttrace.trajectories.identity.reward_membership import before_colons

_Key = tuple[str, str]

BYTES_AT_ONCE = 64 << 20
"""As JSON; in memory it is about as much."""


def spans_of_runs(store: AnyStore, ids: Sequence[str]) -> dict[str, list[SpanRow]]:
    """The ended spans of runs by their ids, in order of start. Only their traces are scanned. Raises StoreError."""
    parts = [part for id in ids for part in before_colons(id)]
    named, given = listed(ids), listed([*ids, *parts])
    query = f"""SELECT DISTINCT trace_id FROM span_records WHERE trajectory_id IN ({given})
        UNION SELECT trace_id FROM placed_spans WHERE trajectory_id IN ({named})"""  # noqa: S608
    traces = sorted(trace for (trace,) in store.sql(query)[1]) if ids else []
    if not traces:
        return {}
    query = f"""SELECT trajectory_id, trace_id, span_id FROM spans
        WHERE trace_id IN ({listed(traces)}) AND trajectory_id IN ({named}) AND end_ns > 0"""  # noqa: S608
    run_of: dict[_Key, str] = {(trace, span): run for run, trace, span in store.sql(query)[1]}
    best: dict[_Key, SpanRow] = {}
    for span in store.spans_of_traces(sorted({trace for trace, _ in run_of})):
        key = (span.trace_id, span.span_id)
        if key in run_of and span.end_ns > 0 and (key not in best or _length(span) > _length(best[key])):
            best[key] = span
    found: defaultdict[str, list[SpanRow]] = defaultdict(list)
    for key, span in sorted(best.items(), key=lambda item: (item[1].start_ns, item[0])):
        found[run_of[key]].append(span)
    return dict(found)


def traces_of_run(store: AnyStore, id: str) -> list[str]:
    """The traces whose spans `AnyStore.spans` gives."""
    named = "SELECT DISTINCT trace_id FROM span_records WHERE trajectory_id IN ({0}) OR trace_id IN ({0})"
    found: set[str] = set()
    new: set[str] = set()
    for ids in ([id], before_colons(id)):
        if not new and ids:
            new = {trace for (trace,) in store.sql(named.format(listed(ids)))[1]}
    while new:
        found |= new
        linking = store.sql(f"SELECT trace_id FROM links WHERE linked_trace_id IN ({listed(new)})")[1]  # noqa: S608
        new = {trace for (trace,) in linking} - found
    return sorted(found)


def spans_in_parts(store: AnyStore, traces: Sequence[str]) -> Iterator[list[SpanRow]]:
    """All spans of these traces as they came, one trace after the other; of a large one in order of start, as many at a
    time as have so many bytes. Each call of a long run has its whole prompt in it. What was stored of a span before its
    end is left out where its end has come."""
    for part in _all_in_parts(store, traces):
        ended = {(span.trace_id, span.span_id) for span in part if span.end_ns}
        yield [span for span in part if span.end_ns or (span.trace_id, span.span_id) not in ended]


def _all_in_parts(store: AnyStore, traces: Sequence[str]) -> Iterator[list[SpanRow]]:
    if not traces:
        return
    query = f"""SELECT trace_id, start_ns, sum(bytes)::BIGINT FROM span_records
        WHERE trace_id IN ({listed(traces)}) GROUP BY ALL ORDER BY start_ns"""  # noqa: S608
    starts: dict[str, list[tuple[int, int]]] = {trace: [] for trace in traces}
    for trace, start_ns, size in store.sql(query)[1]:
        starts[trace].append((start_ns, size))
    sizes = {trace: sum(size for _, size in found) for trace, found in starts.items()}
    together: list[str] = []
    for trace in traces:
        if together and sum(map(sizes.__getitem__, together)) + sizes[trace] > BYTES_AT_ONCE:
            yield from _by_trace(store, together)
            together = []
        if sizes[trace] <= BYTES_AT_ONCE:
            together.append(trace)
        else:
            for part in sized_parts(starts[trace], BYTES_AT_ONCE):
                yield store.spans_of_traces([trace], first_ns=part[0], last_ns=part[-1])
    if together:
        yield from _by_trace(store, together)


def _by_trace(store: AnyStore, traces: Sequence[str]) -> Iterator[list[SpanRow]]:
    of_trace: dict[str, list[SpanRow]] = {trace: [] for trace in traces}
    for span in store.spans_of_traces(traces):
        of_trace[span.trace_id].append(span)
    for trace in traces:
        yield of_trace.pop(trace)


def root_of(spans: Sequence[SpanRow]) -> SpanRow:
    """The span of the run's entry point; if there is none, the first without a parent among them."""
    ids = {(span.trace_id, span.span_id) for span in spans}
    tops = [span for span in spans if (span.trace_id, span.parent_span_id) not in ids]
    entries = [
        span for span in tops or spans if semconv.ENTRY_NAME in span.attributes or semconv.ENTRY in span.attributes
    ]
    return (entries or tops or list(spans))[0]


def is_whole_trace(run_id: str, root: SpanRow) -> bool:
    """Whether a run with this root is the whole trace: then a reward of the run is a reward of the trace."""
    return root.parent_span_id is None and ":" not in run_id


def _length(span: SpanRow) -> int:
    return len(msgspec.json.encode(span))
