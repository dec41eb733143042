"""Spans under the names of the conventions, or as they came where that fails: one span that some SDK wrote in a way
nobody thought of keeps neither a store from being written nor the others from being read."""

from __future__ import annotations

import logging

from arttrace.formats.sdks import conventions
from arttrace.records.span import Attributes, SpanRow

_log = logging.getLogger("arttrace")
_failed: set[str] = set()


def normalised(span: SpanRow) -> SpanRow:
    """`conventions.normalise`; never raises."""
    try:
        return conventions.normalise(span)
    except Exception as error:  # noqa: BLE001
        _tell(span, error)
        return span


def added_by_conventions(span: SpanRow) -> Attributes:
    """`conventions.added_by_conventions`; never raises."""
    try:
        return conventions.added_by_conventions(span)
    except Exception as error:  # noqa: BLE001
        _tell(span, error)
        return {}


def _tell(span: SpanRow, error: Exception) -> None:
    """Once for every kind of failure, without the content."""
    kind = type(error).__name__
    if kind not in _failed:
        _failed.add(kind)
        _log.warning(
            "span %s/%s cannot be read under the names of the conventions (%s): it counts as it came",
            span.trace_id,
            span.span_id,
            kind,
        )
