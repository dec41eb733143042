"""A call that two SDKs recorded, one inside the other: the outer that of a framework or of a client of clients, as
LiteLLM, the inner that of the client which sent it. The inner one counts, being nearer to what was sent. Pure.

Below the span of the outer, right below or with spans between that are neither tools nor agents (steps, HTTP requests),
there is then one answer by another SDK or version, or in another process, of the same model, and the two agree in what
they answer (text and tool calls) or their tokens and differ in neither. An answer in log records is one, and is not
compared. The spans of a tracer's file do not say which SDK made them: another one did where the names differ, the
answers have one id, or all agrees. An outer one that is captured here was told apart as it ran; an inner one may be,
where both are of one run.

An outer one that says the sum of several such answers, of their tokens or their costs, is none either.
store/rows/view_parts/calls_once.py has the rule in SQL.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from arttrace.formats.sdks.tolerant import normalised
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.costs import cost_of_call
from arttrace.records.values.lenient_json import json_object, json_objects
from arttrace.trajectories.decoding.attribute_values import from_json, text, whole_number
from arttrace.trajectories.decoding.operation import is_call, operation, span_error

ANSWERS_IN_LOGS = ("log gen_ai.choice", "log gen_ai.client.inference.operation.details")
"""The names of log records, as otlp/logs.py makes spans of them, that hold an answer."""

SCOPES_OF_FILES = ("braintrust-export", "langfuse", "langsmith-export", "phoenix-export", "weave-export")
"""The scopes that spans of tracers' files have, where those do not say which SDK made them."""

_Key = tuple[str, str]


def once(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans of whole traces, the outer one of two records of a call being none."""
    inside: dict[_Key, list[SpanRow]] = {}
    outer: dict[_Key, SpanRow] = {}
    for above, span in _pairs(spans):
        key = above.trace_id, above.span_id
        outer[key] = above
        inside.setdefault(key, []).append(span)
    if not inside:
        return spans
    logged = {(span.trace_id, span.parent_span_id or "") for span in spans if span.name in ANSWERS_IN_LOGS}
    twice = {key for key, found in inside.items() if _is_told(outer[key], found, logged)}
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
    """Calls, as they are read, each with a span that lies below it, every such span once."""
    if all(semconv.TRAJECTORY_ID in span.attributes for span in spans):
        return
    by_key = {(span.trace_id, span.span_id): span for span in spans}
    parents = {key for span in by_key.values() if (key := _above(span)) in by_key}
    read = {key: normalised(by_key[key]) for key in parents}
    callers = {key for key, span in read.items() if is_call(span) and semconv.TRAJECTORY_ID not in span.attributes}
    for span in by_key.values() if callers else ():
        key, passed = _above(span), set[_Key]()
        while key in read and key not in callers and key not in passed and not operation(read[key]):
            passed.add(key)
            key = _above(read[key])
        if key in callers and _is_of_the_run(span, key, by_key):
            yield read[key], span


def _above(span: SpanRow) -> _Key:
    return span.trace_id, span.parent_span_id or ""


def _is_of_the_run(span: SpanRow, outer: _Key, by_key: Mapping[_Key, SpanRow]) -> bool:
    """Whether a span, where it names its run, is of the run in which a span above it stands that names none."""
    named = span.attributes.get(semconv.TRAJECTORY_ID)
    key, passed = outer, set[_Key]()
    while named is not None and key in by_key and key not in passed:
        passed.add(key)
        run = by_key[key].attributes.get(semconv.TRAJECTORY_ID)
        if run is not None:
            return bool(run == named)
        key = _above(by_key[key])
    return named in (None, outer[0])


def _is_told(outer: SpanRow, inside: list[SpanRow], logged: set[_Key]) -> bool:
    """Whether these say it: one of them is a record of the call, and the only answer by another SDK among them, or it
    is the sum of several."""
    if not outer.end_ns or span_error(outer) is not None:
        return False
    answers = [
        read
        for span in inside
        if span.end_ns
        and span_error(span) is None
        and is_call(read := normalised(span))
        and (semconv.OUTPUT_MESSAGES in read.attributes or (span.trace_id, span.span_id) in logged)
    ]
    others = [one for one in answers if _are_of_two(outer, one)]
    return (len(others) == 1 and _are_one(outer.attributes, others[0].attributes)) or _is_sum(
        outer.attributes, [one.attributes for one in answers]
    )


def _are_of_two(outer: SpanRow, inner: SpanRow) -> bool:
    """Whether two SDKs made these, as far as it shows."""
    if _origin(outer) != _origin(inner):
        return True
    one, other = outer.attributes, inner.attributes
    id = one.get(semconv.RESPONSE_ID)
    if id and id == other.get(semconv.RESPONSE_ID):
        return True
    said = _said(one)
    return outer.scope_name in SCOPES_OF_FILES and (outer.name != inner.name or (all(said) and said == _said(other)))


def _origin(span: SpanRow) -> tuple[Any, ...]:
    return span.scope_name, span.scope_version, span.resource, span.origin


def _is_sum(outer: dict[str, Any], inside: list[dict[str, Any]]) -> bool:
    """Whether a span says of itself what several calls say together."""
    if len(inside) < 2 or any(_models(outer).isdisjoint(_models(one)) for one in inside):
        return False
    counts, costs = [_said(one)[1] for one in inside], [cost_of_call(one) for one in inside]
    whole, cost = _said(outer)[1], cost_of_call(outer)
    if whole and all(counts) and whole == [sum(each) for each in zip(*counts, strict=True)]:
        return True
    known = [one for one in costs if one]
    return bool(cost) and len(known) == len(costs) and math.isclose(cost or 0.0, sum(known), rel_tol=1e-9)


def _are_one(outer: dict[str, Any], inner: dict[str, Any]) -> bool:
    same = [one == other for one, other in zip(_said(outer), _said(inner), strict=True) if one and other]
    return not _models(outer).isdisjoint(_models(inner)) and bool(same) and all(same)


def _models(attributes: dict[str, Any]) -> set[str]:
    named = (text(attributes.get(name)) for name in (semconv.REQUEST_MODEL, semconv.RESPONSE_MODEL))
    return {name.rpartition("/")[2] for name in named if name}


def _said(attributes: dict[str, Any]) -> tuple[Any, Any]:
    """The first answer, and the tokens of prompt and answer; "" and None where they are not said."""
    answers = json_objects(from_json(attributes.get(semconv.OUTPUT_MESSAGES)))
    parts = json_objects(json_object(answers[0] if answers else None).get("parts"))
    words = "".join(_words(part) for part in parts)
    counts = [whole_number(attributes.get(name)) for name in (semconv.USAGE_INPUT_TOKENS, semconv.USAGE_OUTPUT_TOKENS)]
    return words, counts if all(counts) else None


def _words(part: dict[str, Any]) -> str:
    """A part's text, or its tool and arguments without spaces."""
    if part.get("type") == "text":
        return str(part.get("content") or "")
    if part.get("type") != "tool_call":
        return ""
    given = part.get("arguments") or ""
    written = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return f"\n{part.get('name') or ''} " + re.sub("[ \t\r\n]", "", written)
