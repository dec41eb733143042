"""Runs that an import finds stored in another reading: an earlier version of arttrace read their file, or the file
changed since. Both readings side by side would be two runs in one, or one that contradicts itself."""

from __future__ import annotations

import msgspec

from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.imported_files import Batch
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.span import Attributes, SpanRow
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
        and nothing else, gets what is new; it keeps the name of the file that it was imported from first."""
        if self._is_empty or not batch.translated:
            return batch.records
        records = list(batch.records)
        among = [trace for trace in batch.translated if not self._is_kept(trace)]
        found = self._store.sql(
            f"SELECT trace_id, count(*) FROM span_records WHERE trace_id IN ({listed(among) or 'NULL'}) GROUP BY 1"  # noqa: S608
        )[1]
        for traces in sized_parts([(trace, spans) for trace, spans in found], spans_at_once(0)):
            stored, _ = apart(self._store.spans_of_traces(traces))
            here, known = set(traces), {(one.trace_id, one.span_id): one for one in stored}
            now = []
            for at, one in enumerate(records):
                if isinstance(one, SpanRow) and one.trace_id in here:
                    records[at] = span = _named_as(known.get((one.trace_id, one.span_id)), one)
                    now.append(span)
            contradictory = {
                trace for (trace, _), span in deduplicate([*stored, *now]).items() if span.collided is not None
            }
            self.runs += len(contradictory)
            for trace in contradictory:
                self._kept.keep(trace.encode(), 1)
        return [one for one in records if not (isinstance(one, SpanRow) and self._is_kept(one.trace_id))]

    def _is_kept(self, trace: str) -> bool:
        return self._kept.get(trace.encode()) is not None


def _named_as(before: SpanRow | None, span: SpanRow) -> SpanRow:
    """The span under the names that it was stored under: a form that says no project has the file's name there."""
    if before is None:
        return span
    return msgspec.structs.replace(
        span,
        attributes=_kept(before.attributes, span.attributes, semconv.PROJECT),
        resource=_kept(before.resource, span.resource, semconv.SERVICE_NAME),
    )


def _kept(before: Attributes, now: Attributes, name: str) -> Attributes:
    return {**now, name: before[name]} if name in before and name in now else now
