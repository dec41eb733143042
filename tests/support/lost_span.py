"""A run of which something is missing: a call that began, and of whose end nothing is known."""

from __future__ import annotations

import secrets

import arttrace
from arttrace.capture.export.lifecycle import recorder
from arttrace.records import semconv
from arttrace.records.span import SpanRow

WHY = "call in progress"


def lose_a_call() -> None:
    """Begin a call in the run that the caller is in."""
    run = arttrace.current_trajectory()
    assert run is not None
    attributes = {semconv.TRAJECTORY_ID: run.id, semconv.OPERATION_NAME: semconv.OPERATION_CHAT}
    ids = {"trace_id": secrets.token_hex(16), "span_id": secrets.token_hex(8), "parent_span_id": None}
    recorder().record(SpanRow(**ids, name="chat", start_ns=1, end_ns=0, attributes=attributes))
