"""Spans for Langfuse one by one, as they end: what a shipper sends. Environment and release are the process's own."""

from __future__ import annotations

import os

from arttrace.formats.sdks.conventions import normalise
from arttrace.formats.sdks.langfuse.writing import as_it_says, observation
from arttrace.records.span import SpanRow


def formed(span: SpanRow) -> SpanRow:
    """The span as Langfuse shows it best."""
    environ = os.environ
    run = as_it_says(span, environ.get("LANGFUSE_TRACING_ENVIRONMENT"), environ.get("LANGFUSE_RELEASE"))
    return observation(span, run, read=normalise(span))
