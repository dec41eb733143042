"""Sessions that go on: a file of one is imported again when it has grown, and its run's own span then says another end,
another count and another result. Two such readings are no contradiction, and the later holds, whichever came first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.attribute_values import text, whole_number

CLAUDE_CODE: Final = "claude-code"
CODEX: Final = "codex"
SOURCES: Final = (CLAUDE_CODE, CODEX)
"""The projects of runs that were read of such files."""
_GROWS = {semconv.TRAJECTORY_SPAN_COUNT, semconv.ENTRY_RESULT, semconv.INTERRUPTED}


def read_until(span: SpanRow) -> int:
    """The end of what was read of a session, where this is its run's own span, in nanoseconds since 1970; else 0. What
    is captured live has an entry. `LAST_READING` (store/rows/columns.py) has the rule too."""
    said = span.attributes
    is_reading = (
        span.parent_span_id is None
        and text(said.get(semconv.PROJECT)) in SOURCES
        and text(said.get(semconv.OPERATION_NAME)) == semconv.OPERATION_INVOKE_AGENT
        and not (text(said.get(semconv.ENTRY_NAME)) or text(said.get(semconv.ENTRY)))
    )
    return max(0, span.end_ns) if is_reading else 0


def spans_read(span: SpanRow) -> int:
    """How many spans the reading has beside this one; 0 where it does not say."""
    return whole_number(span.attributes.get(semconv.TRAJECTORY_SPAN_COUNT)) or 0


def goes_on(later: SpanRow, earlier: SpanRow) -> bool:
    """Whether one reading's span says what the other's says of the session, only of more of it."""
    return (
        read_until(later) > read_until(earlier) > 0
        and spans_read(later) >= spans_read(earlier)
        and _stays(later) == _stays(earlier)
    )


def _stays(span: SpanRow) -> tuple[str, int, str, Mapping[str, Any]]:
    said = {name: value for name, value in span.attributes.items() if name not in _GROWS}
    return span.name, span.start_ns, span.scope_name, said
