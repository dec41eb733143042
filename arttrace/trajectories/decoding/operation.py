"""What kind of span it is by the GenAI conventions, and whether it failed: from its attributes alone."""

from __future__ import annotations

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.attribute_values import text


def operation(span: SpanRow) -> str:
    """The GenAI operation of a span, "" when it is none."""
    value = span.attributes.get(semconv.OPERATION_NAME)
    return value if isinstance(value, str) else ""


def makes_a_run(operation: str | None) -> bool:
    """Whether a run consists of spans of an operation; an agent that is made has not run yet."""
    return bool(operation) and operation != semconv.OPERATION_CREATE_AGENT


def is_of_a_run(span: SpanRow) -> bool:
    """Whether a trajectory consists of this span and others; spans without are only between those."""
    return makes_a_run(operation(span)) or semconv.TRAJECTORY_ID in span.attributes


def is_call(span: SpanRow) -> bool:
    """Whether a span is a model call that a trajectory consists of."""
    return operation(span) in semconv.CALL_OPERATIONS


def span_error(span: SpanRow) -> str | None:
    """Why a span failed, its `error.type` before its status message; None when it did not fail."""
    if span.status_code != 2:
        return None
    kind, message = text(span.attributes.get(semconv.ERROR_TYPE)), span.status_message
    if kind and message and not message.startswith(kind):
        return f"{kind}: {message}"
    return message or kind or "error"


def tells_of_a_call(span: SpanRow) -> bool:
    """Whether a span stands for a log record about the one above it: where that did not arrive, a run lacks it."""
    return semconv.LOG_RECORD in span.attributes and span.parent_span_id is not None
