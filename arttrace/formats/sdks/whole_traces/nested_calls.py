"""A call that two SDKs recorded, one inside the other: the outer that of a framework or of a client of clients, as
LiteLLM, the inner that of the client which sent it. The inner one counts, being nearer to what was sent. Pure.

Right below the span of the outer there is then one answer by another SDK, or in another process, of the same model, and
the two agree in their text or their tokens and differ in neither. What is captured here was told apart as it ran.
store/rows/view_parts/calls_once.py has the rule in SQL.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from arttrace.formats.sdks.tolerant import normalised
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text, whole_number
from arttrace.trajectories.decoding.operation import is_call, span_error

_Key = tuple[str, str]


def once(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans of whole traces, the outer one of two records of a call being none."""
    inside: dict[_Key, list[SpanRow]] = {}
    outer: dict[_Key, SpanRow] = {}
    for above, span in _pairs(spans):
        key = above.trace_id, above.span_id
        outer[key] = above
        inside.setdefault(key, []).append(span)
    read = {key: normalised(outer[key]) for key in inside}
    twice = {key for key, found in inside.items() if is_call(read[key]) and _is_told(read[key], found)}
    if not twice:
        return spans
    return [
        msgspec.structs.replace(
            span, attributes={**span.attributes, semconv.OPERATION_NAME: semconv.OPERATION_INSIDE_A_CALL}
        )
        if (span.trace_id, span.span_id) in twice
        else span
        for span in spans
    ]


def _pairs(spans: list[SpanRow]) -> Iterator[tuple[SpanRow, SpanRow]]:
    """Spans of another SDK's right below a span, each once."""
    foreign = {(span.trace_id, span.span_id): span for span in spans if semconv.TRAJECTORY_ID not in span.attributes}
    for span in foreign.values():
        above = foreign.get((span.trace_id, span.parent_span_id or ""))
        if above is not None and (above.scope_name, above.resource) != (span.scope_name, span.resource):
            yield above, span


def _is_told(outer: SpanRow, inside: list[SpanRow]) -> bool:
    """Whether one of these is a record of the call, and the only answer among them."""
    if not outer.end_ns or span_error(outer) is not None:
        return False
    answers = [
        read
        for span in inside
        if span.end_ns
        and span_error(span) is None
        and is_call(read := normalised(span))
        and semconv.OUTPUT_MESSAGES in read.attributes
    ]
    return len(answers) == 1 and _are_one(outer.attributes, answers[0].attributes)


def _are_one(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    same = [one == other for one, other in zip(_said(outer), _said(inner), strict=True) if one and other]
    return not _models(outer).isdisjoint(_models(inner)) and bool(same) and all(same)


def _models(attributes: dict[str, Any]) -> set[str]:
    named = (text(attributes.get(name)) for name in (semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL))
    return {name.rpartition("/")[2] for name in named if name}


def _said(attributes: dict[str, Any]) -> tuple[Any, Any]:
    """The text of the first answer, and the tokens of prompt and answer; "" and None where they are not said."""
    answers = json_objects(from_json(attributes.get(semconv.OUTPUT_MESSAGES)))
    parts = json_objects(json_object(answers[0] if answers else None).get("parts"))
    words = "".join(str(part.get("content") or "") for part in parts if part.get("type") == "text")
    counts = [whole_number(attributes.get(name)) for name in (semconv.USAGE_INPUT_TOKENS, semconv.USAGE_OUTPUT_TOKENS)]
    return words, counts if all(counts) else None
