"""Runs that an import finds stored in another reading: an earlier version of arttrace read their file, or the file
changed since. Both readings side by side would be two runs in one, or one that contradicts itself."""

from __future__ import annotations

from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.imported_files import Batch
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.store import AnyStore
from arttrace.store.bounded_parts import sized_parts, spans_at_once
from arttrace.store.sql_text import listed
from arttrace.trajectories.identity.deduplicate import deduplicate
from arttrace.trajectories.identity.stand_ins import apart


class EarlierReadings:
    """Those of one file."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        [(spans,)] = store.sql("SELECT count(*) FROM span_records")[1]
        self._is_empty = spans == 0
        self._kept = KnownIds()
        self.runs = 0
        """How many stay as they were read before."""

    def without(self, batch: Batch) -> list[Record]:
        """The records of a batch but for the spans of those runs. A run of which the file says more than the store,
        and nothing else, gets what is new."""
        if self._is_empty or not batch.translated:
            return batch.records
        among = [trace for trace in batch.translated if not self._is_kept(trace)]
        found = self._store.sql(
            f"SELECT trace_id, count(*) FROM span_records WHERE trace_id IN ({listed(among) or 'NULL'}) GROUP BY 1"  # noqa: S608
        )[1]
        for traces in sized_parts([(trace, spans) for trace, spans in found], spans_at_once(0)):
            stored, _ = apart(self._store.spans_of_traces(traces))
            here = set(traces)
            now = [one for one in batch.records if isinstance(one, SpanRow) and one.trace_id in here]
            contradictory = {
                trace for (trace, _), span in deduplicate([*stored, *now]).items() if span.collided is not None
            }
            self.runs += len(contradictory)
            for trace in contradictory:
                self._kept.keep(trace.encode(), 1)
        return [one for one in batch.records if not (isinstance(one, SpanRow) and self._is_kept(one.trace_id))]

    def _is_kept(self, trace: str) -> bool:
        return self._kept.get(trace.encode()) is not None
