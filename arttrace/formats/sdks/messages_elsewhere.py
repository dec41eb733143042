"""Messages that a sender recorded beside the span of their call: in log records about it, or on a span inside it.
Pure."""

from __future__ import annotations

from arttrace.formats.otlp.logs import joined
from arttrace.formats.sdks.google_adk import gathered
from arttrace.records.span import SpanRow


def with_messages(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans of whole traces, with what was said of them elsewhere."""
    return gathered(joined(spans))
