"""Calls that are several of a model: Mastra's exporter for OpenTelemetry, before it had spans of inferences, makes one
`chat` span of a whole loop of tool calls, with what was asked first and what was answered last. Pure.

Its steps are spans without messages below it, one for each request. Of more than one the turns between are missing.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.operation import is_call

_TYPE, _STEP = "mastra.span.type", "model_step"


def marked(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans of whole traces, those calls marked as lacking some of their answer."""
    steps = Counter((span.trace_id, span.parent_span_id) for span in spans if span.attributes.get(_TYPE) == _STEP)
    loops = {key for key, count in steps.items() if count > 1}
    if not loops:
        return spans
    lacks = {semconv.TRUNCATED: [semconv.OUTPUT_MESSAGES]}
    return [
        msgspec.structs.replace(span, attributes={**span.attributes, **lacks})
        if (span.trace_id, span.span_id) in loops and is_call(span)
        else span
        for span in spans
    ]
