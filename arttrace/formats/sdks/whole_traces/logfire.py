"""Logfire's second spans of one call: when a stream has ended, a log beside the span of the request says again what was
asked, and what came; and a placeholder of a span that lasts. Each call counts once. Pure.

A log belongs to the request of the same words, under the same span, whose own span had ended last when the stream began
to be read: between those two lies nothing but the program. store/rows/view_parts/calls_once.py has the rule in SQL.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import msgspec

from arttrace.records import semconv
from arttrace.records.message import MessageTexts
from arttrace.records.span import SpanRow
from arttrace.trajectories.decoding.operation import is_call, operation

_ERROR = 2

_Key = tuple[str, str]


def once(spans: list[SpanRow]) -> list[SpanRow]:
    """Spans of whole traces, each call of Logfire's once: by its log, which begins when the request did, or by the span
    of the request where there is no log."""
    typed = [span for span in spans if semconv.LOGFIRE_SPAN_TYPE in span.attributes]
    if not typed:
        return spans
    inside = set(_placeholders(typed, {_key(span) for span in spans}))
    began: dict[_Key, int] = {}
    for request, report in _streams(typed):
        inside.add(_key(request))
        began[_key(report)] = request.start_ns
    return [_read(span, inside, began) for span in spans] if inside else spans


def _read(span: SpanRow, inside: set[_Key], began: dict[_Key, int]) -> SpanRow:
    key = _key(span)
    if key in inside:
        attributes = {**span.attributes, semconv.OPERATION_NAME: semconv.OPERATION_INSIDE_A_CALL}
        return msgspec.structs.replace(span, attributes=attributes)
    return msgspec.structs.replace(span, start_ns=began[key]) if key in began else span


def _key(span: SpanRow) -> _Key:
    return span.trace_id, span.span_id


def _placeholders(spans: list[SpanRow], there: set[_Key]) -> Iterator[_Key]:
    for span in spans:
        is_one = span.attributes[semconv.LOGFIRE_SPAN_TYPE] == "pending_span" and operation(span)
        if is_one and (span.trace_id, span.parent_span_id) in there:
            yield _key(span)


def _streams(spans: list[SpanRow]) -> Iterator[tuple[SpanRow, SpanRow]]:
    """Each request and the log of its stream."""
    alike: dict[Hashable, dict[_Key, tuple[int, bool, SpanRow]]] = {}
    for span in spans:
        is_log = _is_report(span)
        if is_log or _waits_for_one(span):
            at = _read_from_ns(span) if is_log else span.end_ns
            alike.setdefault(_request(span), {})[_key(span)] = (at, is_log, span)
    for found in alike.values():
        waiting: list[SpanRow] = []
        for _, is_log, span in sorted(found.values(), key=_in_order):
            if not is_log:
                waiting.append(span)
            elif waiting:
                yield waiting.pop(), span


def _in_order(found: tuple[int, bool, SpanRow]) -> tuple[int, bool, str]:
    return found[0], found[1], found[2].span_id


def _is_report(span: SpanRow) -> bool:
    """Whether it is a log of what a stream brought."""
    kind = span.attributes.get(semconv.LOGFIRE_SPAN_TYPE)
    return kind == "log" and span.name.startswith(semconv.LOGFIRE_REPORT) and is_call(span)


def _waits_for_one(span: SpanRow) -> bool:
    said = span.attributes
    if said[semconv.LOGFIRE_SPAN_TYPE] != "span" or not is_call(span) or not span.end_ns or span.status_code == _ERROR:
        return False
    return all(said.get(name) is None for name in semconv.LOGFIRE_ANSWERED)


def _read_from_ns(report: SpanRow) -> int:
    """When the program began to read the stream."""
    took_s: Any = report.attributes.get(semconv.LOGFIRE_DURATION)
    is_number = isinstance(took_s, (int, float)) and not isinstance(took_s, bool)
    return report.start_ns - (int(took_s * 1e9) if is_number and 0 <= took_s <= semconv.LOGFIRE_LONGEST else 0)


def _request(span: SpanRow) -> Hashable:
    said = (_comparable(span.attributes.get(name)) for name in semconv.LOGFIRE_ASKED)
    return (span.trace_id, span.parent_span_id, span.scope_name, *said)


def _comparable(value: Any) -> str:
    return "\n".join(value) if isinstance(value, MessageTexts) else str(value)
