"""Spans of other SDKs under the names of the conventions. Pure."""

from __future__ import annotations

from arttrace.records.span import SpanRow


def normalise(span: SpanRow) -> SpanRow:
    """The span with the attributes that trajectories are built from; the same object when there is nothing to do."""
    return span
