"""Runs that sampling left out although they are in the store: other processes wrote parts of them before their end.

A span of the process that began such a run says so (capture/export/sampling.py). It does not count where a reward of
the run is stored, whoever gave it, one of its entries failed, or it has more entries than were left out (an id may be
used again), so that the order of what comes does not matter. What was left out is shown nowhere, and goes when the
store is written anew (file/prune.py).
"""

from __future__ import annotations

from typing import Final

from arttrace.records import semconv
from arttrace.records.span import SpanRow

_SAYS_SO = f"operation IS NOT DISTINCT FROM '{semconv.OPERATION_LEFT_OUT}'"
IS_STAND_IN: Final = f"operation IS NOT DISTINCT FROM '{semconv.OPERATION_REFUSED}'"
"""A row of `span_records` stands in for a span that was refused (trajectories/identity/stand_ins.py)."""
IS_MARK: Final = f"operation IN ('{semconv.OPERATION_LEFT_OUT}', '{semconv.OPERATION_REFUSED}') IS TRUE"
"""A row of `span_records` is a span of either kind, and no part of a run."""

LEFT_OUT: Final = f"""SELECT trajectory_id FROM span_records m WHERE {_SAYS_SO} AND trajectory_id IS NOT NULL
    AND trajectory_id NOT IN (SELECT trajectory_id FROM reward_records)
    AND NOT EXISTS (SELECT 1 FROM span_records s WHERE s.trajectory_id = m.trajectory_id
        AND (s.entry IS NOT NULL AND s.error IS NOT NULL
            OR s.trace_id IN (SELECT trajectory_id FROM reward_records)))
    AND (SELECT count(DISTINCT s.trace_id || s.span_id) FILTER (s.entry IS NOT NULL)
        <= count(DISTINCT s.trace_id || s.span_id) FILTER (s.{_SAYS_SO})
        FROM span_records s WHERE s.trajectory_id = m.trajectory_id AND (s.entry IS NOT NULL OR s.{_SAYS_SO}))"""  # noqa: S608
"""The ids of the runs."""


def is_mark(span: SpanRow) -> bool:
    """Whether a span says that its run was left out."""
    return span.attributes.get(semconv.OPERATION_NAME) == semconv.OPERATION_LEFT_OUT
