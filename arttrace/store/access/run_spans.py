"""The spans of runs, each once in its fullest version, and the span that a run began with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.store.access.any_store import AnyStore
from arttrace.store.sql_text import listed
from arttrace.trajectories.identity.reward_membership import before_colons

_Key = tuple[str, str]


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
