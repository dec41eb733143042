"""An `update` for which this process has no open span: a span of its own, below the other process's.

It names its trajectory and has no operation, so it is no agent, tool or call. As this process's own uppermost one it
says how many spans ended before it, which is none: it hides no span that is missing, and is not missed by another one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from opentelemetry.trace import SpanContext, SpanKind

from arttrace.capture.export.lifecycle import recorder
from arttrace.capture.export.open_span import OpenSpan
from arttrace.records import semconv
from arttrace.wire.content import ContentMode, Hidden

_NAME = "update"
_last_ns = 0


class Update:
    """One call of `update`, as the recorder ends it."""

    def __init__(self, above: SpanContext, capture_content: ContentMode) -> None:
        self.capture_content = capture_content
        self.hidden = Hidden()
        self.span = OpenSpan(_NAME, SpanKind.INTERNAL, above, _next_ns())

    def so_far(self) -> Mapping[str, Any]:
        """Nothing: it has ended when it begins."""
        return {}


def record(
    above: SpanContext, capture_content: ContentMode, trajectory_id: str, tags_and_metadata: Mapping[str, Any]
) -> None:
    """Spool tags and metadata (as attributes) of a trajectory whose span `above` is of another process."""
    to = recorder()
    if to.settings.disabled:
        return
    update = Update(above, capture_content)
    attributes = {semconv.TRAJECTORY_ID: trajectory_id, semconv.TRAJECTORY_SPAN_COUNT: 0, **tags_and_metadata}
    weight = len(tags_and_metadata.get(semconv.METADATA, ""))
    to.submit(lambda: to.ended(update, attributes, update.span.start_ns, None), weight)


def _next_ns() -> int:
    """Now, and later than the one before: of one process's updates the later one counts, however coarse its clock."""
    global _last_ns
    _last_ns = max(time.time_ns(), _last_ns + 1)
    return _last_ns
