"""Messages that a sender recorded beside the span of their call: in log records about it (otlp/logs.py makes spans of
those), or on a span inside it; and calls that their client recorded beside, without messages. Pure."""

from __future__ import annotations

import msgspec

from arttrace.formats.sdks.frameworks.google_adk import gathered
from arttrace.formats.sdks.tolerant import normalised
from arttrace.formats.sdks.whole_traces import logfire, nested_calls, steps
from arttrace.records import semconv
from arttrace.records.span import SpanEvent, SpanRow
from arttrace.trajectories.decoding.attribute_values import text
from arttrace.trajectories.decoding.operation import is_call

_ORDER = ("gen_ai.system.message", "gen_ai.user.message")


def with_messages(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans of whole traces, with what was said of them elsewhere."""
    return gathered(logfire.once(_once(_joined(nested_calls.once(steps.marked(spans))))))


OF_A_CLIENT = "com.anthropic.sdk."
"""How the scopes begin in which Anthropic's clients from version 2 on make spans of their own, without content."""


def _once(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans, those of a client's own inside the calls that another SDK recorded of the same requests, by the span above
    or by the answer's id. One whose call nobody else recorded stays a call."""
    doubted = {id(span) for span in spans if span.scope_name.startswith(OF_A_CLIENT) and is_call(span)}
    if not doubted:
        return spans
    others = [read for span in spans if id(span) not in doubted and is_call(read := normalised(span))]
    above = {(span.trace_id, span.span_id) for span in others}
    answers = {(span.trace_id, answer) for span in others if (answer := text(span.attributes.get(semconv.RESPONSE_ID)))}
    return [
        msgspec.structs.replace(
            span, attributes={**span.attributes, semconv.OPERATION_NAME: semconv.OPERATION_INSIDE_A_CALL}
        )
        if id(span) in doubted
        and (
            (span.trace_id, span.parent_span_id) in above
            or (span.trace_id, text(span.attributes.get(semconv.RESPONSE_ID))) in answers
        )
        else span
        for span in spans
    ]


def _is_log_record(span: SpanRow) -> bool:
    """Whether a span stands for a log record about the span above it."""
    return semconv.LOG_RECORD in span.attributes and len(span.events) == 1


def _joined(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans with the events of their log records, which are left out then. One whose span is not there stays: its
    parent is missing. So does an evaluation, which is a reward wherever it stands."""
    events: dict[tuple[str, str], list[SpanRow]] = {}
    for span in spans:
        if _is_log_record(span) and span.parent_span_id and span.events[0].name != semconv.EVALUATION_EVENT:
            events.setdefault((span.trace_id, span.parent_span_id), []).append(span)
    if not events:
        return spans
    there = {(span.trace_id, span.span_id) for span in spans}
    found = []
    for span in spans:
        if _is_log_record(span) and (span.trace_id, span.parent_span_id) in there & events.keys():
            if span.events[0].name == semconv.EVALUATION_EVENT:
                found.append(span)
            continue
        about = events.get((span.trace_id, span.span_id))
        if about is not None:
            new = sorted({each.span_id: each for each in about}.values(), key=_in_order)
            span = msgspec.structs.replace(span, events=[*span.events, *(each.events[0] for each in new)])
        found.append(span)
    return found


def _in_order(span: SpanRow) -> tuple[int, int, int, int, str]:
    """By time; of one time the system's message comes first and the answer last, the others as their request had
    them."""
    event: SpanEvent = span.events[0]
    rank = _ORDER.index(event.name) if event.name in _ORDER else 2
    is_answer = event.name == "gen_ai.choice"
    return (event.time_ns, is_answer - (rank == 0), span.start_ns, rank, span.span_id)
