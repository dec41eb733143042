"""Runs that an import finds stored in another reading: an earlier version of arttrace read their file, or the file
changed since. Both readings side by side would be two runs in one, or one that contradicts itself. A session that went
on, of which the file says all that is stored and more behind it, is none of them: it gets what is new. A run that the
store has as it was captured, and the file as a data set says it that was written of it, is one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import msgspec

from arttrace.formats.content_ids import id_of_own
from arttrace.formats.files.known_ids import KnownIds
from arttrace.formats.imported_files import Batch
from arttrace.formats.systems import art, atif
from arttrace.records import semconv
from arttrace.records.record import Record
from arttrace.records.reward import Reward
from arttrace.records.span import Attributes, SpanRow
from arttrace.store import AnyStore
from arttrace.store.bounded_parts import sized_parts, spans_at_once
from arttrace.store.sql_text import listed
from arttrace.trajectories.identity.deduplicate import SpanKey, UniqueSpan, deduplicate
from arttrace.trajectories.identity.session_readings import goes_on, read_until, spans_read
from arttrace.trajectories.identity.stand_ins import apart

_SAY_WHOSE = (art.KIND, atif.KIND)
"""The forms of data sets in which a run that is written keeps its id."""


class EarlierReadings:
    """Those of one file."""

    def __init__(self, store: AnyStore) -> None:
        self._store = store
        [(spans,)] = store.sql("SELECT count(*) FROM span_records")[1]
        self._is_empty = spans == 0
        self._kept, self._written = KnownIds(), KnownIds()
        self._unchanged = Counter[str]()
        self.runs = 0
        """How many stay as they were read before."""

    def without(self, batch: Batch) -> list[Record]:
        """The records of a batch but for the spans of those runs. A run of which the file says more than the store,
        and nothing else, gets what is new; it keeps the name of the file that it was imported from first."""
        if self._is_empty or not (batch.translated or self._written.count):
            return batch.records
        self._keep_what_was_written_of_stored_runs(batch)
        records: list[Record | None] = list(batch.records)
        among = [trace for trace in batch.translated if not self._is_kept(trace)]
        found = self._store.sql(
            f"SELECT trace_id, count(*) FROM span_records WHERE trace_id IN ({listed(among) or 'NULL'}) GROUP BY 1"  # noqa: S608
        )[1]
        for traces in sized_parts([(trace, spans) for trace, spans in found], spans_at_once(0)):
            stored, _ = apart(self._store.spans_of_traces(traces))
            here, known = set(traces), {(one.trace_id, one.span_id): one for one in sorted(stored, key=_how_far)}
            now: dict[int, SpanRow] = {}
            for at, one in enumerate(records):
                if isinstance(one, SpanRow) and one.trace_id in here:
                    records[at] = span = _named_as(known.get((one.trace_id, one.span_id)), one)
                    now[at] = span
            unique = deduplicate([*stored, *now.values()])
            contradictory = {trace for (trace, _), span in unique.items() if span.collided is not None}
            contradictory |= self._no_continuations(known, now, unique)
            for at, span in now.items():
                before = known.get((span.trace_id, span.span_id))
                if before is not None and goes_on(before, span):
                    records[at] = None  # of an older copy of the file
            self.runs += len(contradictory)
            self._kept.add(trace.encode() for trace in contradictory)
        return [one for one in records if one is not None and not self._is_of_a_kept_run(one)]

    def _keep_what_was_written_of_stored_runs(self, batch: Batch) -> None:
        named = {
            id: one.trace_id
            for one in batch.records
            if isinstance(one, SpanRow) and one.trace_id in batch.translated and not self._is_kept(one.trace_id)
            if isinstance(id := one.attributes.get(semconv.TRAJECTORY_ID), str) and id != one.trace_id
            if one.trace_id in (id_of_own(kind, id) for kind in _SAY_WHOSE)
        }
        query = f"SELECT DISTINCT trajectory_id, trace_id FROM span_records WHERE trajectory_id IN ({listed(named)})"  # noqa: S608
        stored = self._store.sql(query)[1] if named else []
        for id in sorted({id for id, trace in stored if trace != named[id]}):
            self.runs += 1
            self._written.add([id.encode()])
            self._kept.add([named[id].encode()])

    def _is_of_a_kept_run(self, record: Record) -> bool:
        if isinstance(record, Reward):  # of a run that was read otherwise they have the ids that they had
            return record.trajectory_id.encode() in self._written
        return isinstance(record, SpanRow) and self._is_kept(record.trace_id)

    def _no_continuations(
        self, known: Mapping[SpanKey, SpanRow], now: Mapping[int, SpanRow], unique: Mapping[SpanKey, UniqueSpan]
    ) -> set[str]:
        """The traces of sessions of which one reading, the stored one or that of the file now, goes on from the other
        but does not say all that it said. What was said is counted over the batches of the file: a run's own span comes
        behind it."""
        sessions = {trace for (trace, _), one in known.items() if read_until(one)}
        found = set[str]()
        for span in now.values():
            key = span.trace_id, span.span_id
            before = known.get(key)
            if span.trace_id not in sessions or before is None:
                continue
            if not read_until(span):
                self._unchanged[span.trace_id] += unique[key].conflicts == 0
            elif goes_on(span, before) or goes_on(before, span):
                earlier = min(span, before, key=read_until)
                if self._unchanged[span.trace_id] < spans_read(earlier):
                    found.add(span.trace_id)
        return found

    def _is_kept(self, trace: str) -> bool:
        return trace.encode() in self._kept


def _how_far(span: SpanRow) -> tuple[int, int, int]:
    """The order of readings of one span, the one that holds last."""
    return read_until(span), span.end_ns, span.characters


_NAMED_BY_PROJECT = (semconv.AGENT_NAME, semconv.SCENARIO, semconv.GROUP)


def _named_as(before: SpanRow | None, span: SpanRow) -> SpanRow:
    """The span under the names that it was stored under: a form that says no project has the file's name there, and in
    the names of what it has no other name for."""
    if before is None:
        return span
    attributes = _kept(before.attributes, span.attributes, semconv.PROJECT)
    was, is_now = (str(one.attributes.get(semconv.PROJECT) or "") for one in (before, span))
    if is_now and was != is_now:
        for name in _NAMED_BY_PROJECT:
            said, says = before.attributes.get(name), attributes.get(name)
            if isinstance(says, str) and says.startswith(is_now) and said == was + says.removeprefix(is_now):
                attributes = {**attributes, name: said}
    is_agent = attributes.get(semconv.AGENT_NAME) != span.attributes.get(semconv.AGENT_NAME)
    return msgspec.structs.replace(
        span,
        name=before.name if is_agent else span.name,
        attributes=attributes,
        resource=_kept(before.resource, span.resource, semconv.SERVICE_NAME),
    )


def _kept(before: Attributes, now: Attributes, name: str) -> Attributes:
    return {**now, name: before[name]} if name in before and name in now else now
