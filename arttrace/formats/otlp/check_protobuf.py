"""The valid part of a protobuf request of traces or logs, which is all that the ack needs to know. Pure.

A request that is good as a whole, as nearly every one is, is parsed once in C and kept byte for byte. One that does
not parse is walked field by field, so that a single span with a broken string or too deep a value is refused alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import msgspec
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from arttrace.formats.otlp.encode_protobuf import encode_protobuf
from arttrace.formats.otlp.logs import DAMAGED, instead_of_damaged, traces_of_protobuf
from arttrace.formats.otlp.protobuf_fields import BYTES, encode_bytes, readable_fields, values_of
from arttrace.formats.otlp.request import MAX_ATTRIBUTES, MAX_SPAN_BYTES, MAX_SPANS, MalformedRequest, TooManySpans
from arttrace.formats.otlp.undamaged import parses, undamaged
from arttrace.records import semconv
from arttrace.records.span import SpanRow
from arttrace.records.values.integers import INT64
from arttrace.trajectories.identity.stand_ins import SAID, stand_in

_COUNTED_FROM = 1 << 20  # an empty span takes 2 bytes on the wire and 100 times that in memory: count before parsing
_LATEST_NS = INT64.stop - 1
_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)
_RESOURCE_SPANS, _SCOPE_SPANS, _SPANS = 1, 2, 2
_FIXED64 = 1
_FIELDS = (*(number << 3 | BYTES for number in (1, 2, 4, 5, 9)), 7 << 3 | _FIXED64)
"""Fields of a span: its trace, itself, its parent, its name, its start and its attributes."""
_LINK, _IDS = 13 << 3 | BYTES, (1 << 3 | BYTES, 2 << 3 | BYTES)
"""The field of a span's link, and in one those of what it links to."""
_IT_IS_DAMAGED, _SPAN_IS_DAMAGED = (f"{what}, or {DAMAGED}" for what in ("it", "a span"))


class Checked(msgspec.Struct, frozen=True):
    """The request with stand-ins for what was refused, as far as its trace is known (`body` is empty when nothing is
    left), the number of its other spans, and the reason of the first; `untraced` are those refused whose trace is not
    known."""

    body: bytes
    spans: int
    refused: int = 0
    reason: str = ""
    untraced: int = 0


def check_protobuf(body: bytes) -> Checked:
    """Checks a request. Raises MalformedRequest when it is none, TooManySpans when it holds too many."""
    if len(body) > _COUNTED_FROM and _count(body) > MAX_SPANS:
        raise TooManySpans
    try:
        request = ExportTraceServiceRequest.FromString(body)
    except DecodeError:
        return _salvage(body)
    total = bad = 0
    large = len(body) > MAX_SPAN_BYTES
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            spans = scope_spans.spans
            total += len(spans)
            for span in spans:
                if not _good(span) or (large and span.ByteSize() > MAX_SPAN_BYTES):
                    bad += 1
    if total > MAX_SPANS:
        raise TooManySpans
    return Checked(body, total) if not bad else _without_bad(request, total)


def check_protobuf_logs(body: bytes) -> Checked:
    """The same of a request of logs: its GenAI events, as a request of traces."""
    traces, lost = traces_of_protobuf(body)
    checked, why = check_protobuf(traces), f"a log record, or {DAMAGED}"
    if checked.reason == _SPAN_IS_DAMAGED:
        checked = msgspec.structs.replace(checked, reason=why)
    checked = _also_refused(checked, len(lost), why)
    return _and_stand_ins(checked, (instead_of_damaged(record, _IT_IS_DAMAGED) for record in lost))


def one_by_one(body: bytes) -> list[bytes]:
    """A request of any size as requests of one resource each; as it is when it cannot be taken apart."""
    try:
        return [encode_bytes(of_resource, _RESOURCE_SPANS) for of_resource in values_of(body, _RESOURCE_SPANS)]
    except IndexError:
        return [body]


def _good(span: Span) -> bool:
    trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
    return (
        len(trace_id) == 16
        and trace_id != _NO_TRACE
        and len(span_id) == 8
        and span_id != _NO_SPAN
        and (not parent or len(parent) == 8)
        and 0 < span.start_time_unix_nano <= _LATEST_NS
        and span.end_time_unix_nano <= _LATEST_NS
        and len(span.attributes) <= MAX_ATTRIBUTES
    )


def _why(span: Span) -> str:
    trace_id, span_id, parent = span.trace_id, span.span_id, span.parent_span_id
    is_log_record = _is_log_record(span)
    name = f"log record {span.name[4:104]!r}" if is_log_record else f"span {span.name[:100]!r}"
    if len(trace_id) != 16 or trace_id == _NO_TRACE:
        return f"{name}: the trace id is not 16 bytes, or all zero"
    if is_log_record and not parent:
        return f"{name}: it names no span"
    if len(span_id) != 8 or span_id == _NO_SPAN:
        return f"{name}: the span id is not 8 bytes, or all zero"
    if parent and len(parent) != 8:
        return f"{name}: the parent span id is not 8 bytes"
    if len(span.attributes) > MAX_ATTRIBUTES:
        return f"{name}: it has more than {MAX_ATTRIBUTES} attributes"
    if span.ByteSize() > MAX_SPAN_BYTES:
        return f"{name}: it is over {MAX_SPAN_BYTES} bytes"
    return f"{name}: its times are not nanoseconds since 1970"


def _without_bad(request: ExportTraceServiceRequest, total: int) -> Checked:
    reasons: list[str] = []
    stand_ins: list[SpanRow | None] = []
    for resource_spans in request.resource_spans:
        for scope_spans in resource_spans.scope_spans:
            keep = []
            for span in scope_spans.spans:
                if _good(span) and span.ByteSize() <= MAX_SPAN_BYTES:
                    keep.append(span.SerializeToString())
                else:
                    reasons.append(_why(span))
                    stand_ins.append(_instead(span, reasons[-1]))
            if len(keep) < len(scope_spans.spans):
                del scope_spans.spans[:]
                scope_spans.spans.extend(Span.FromString(span) for span in keep)
    left = total - len(reasons)
    checked = Checked(request.SerializeToString() if left else b"", left, len(reasons), reasons[0])
    return _and_stand_ins(checked, stand_ins)


def _is_log_record(span: Span) -> bool:
    return any(pair.key == semconv.LOG_RECORD for pair in span.attributes)


def _instead(span: Span, why: str, content: bytes | None = None) -> SpanRow | None:
    return stand_in(
        why,
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_span_id=span.parent_span_id.hex(),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        attributes={
            pair.key: pair.value.string_value or pair.value.bool_value for pair in span.attributes if pair.key in SAID
        },
        links=((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        content=content or span.SerializeToString(deterministic=True),
    )


def _instead_of_damaged(span: bytes) -> SpanRow | None:
    """The same from the fields that can be read of a span which does not parse."""
    found = Span()
    for field in readable_fields(span, _FIELDS):
        with contextlib.suppress(DecodeError):
            found.MergeFromString(field)
    for link in readable_fields(span, (_LINK,)):
        ids = found.links.add()
        for field in readable_fields(next(values_of(link, _LINK >> 3)), _IDS):
            with contextlib.suppress(DecodeError):
                ids.MergeFromString(field)
    return _instead(found, _IT_IS_DAMAGED, span)


def _salvage(body: bytes) -> Checked:
    """Keeps the spans that parse on their own, unless what they stand in does not."""
    try:
        rest, lost = undamaged(ExportTraceServiceRequest, body, MAX_SPANS)
    except IndexError as error:
        raise MalformedRequest("the body is no OTLP trace request in protobuf") from error
    except OverflowError as error:
        raise TooManySpans from error
    if not lost or not parses(ExportTraceServiceRequest, rest):
        raise MalformedRequest("the body is no OTLP trace request in protobuf")
    checked = _also_refused(check_protobuf(rest), len(lost), _SPAN_IS_DAMAGED)
    return _and_stand_ins(checked, map(_instead_of_damaged, lost))


def _and_stand_ins(checked: Checked, stand_ins: Iterable[SpanRow | None]) -> Checked:
    """Two requests one after the other are one."""
    made = list(stand_ins)
    known = [one for one in made if one is not None]
    return msgspec.structs.replace(
        checked, body=checked.body + encode_protobuf(known), untraced=checked.untraced + len(made) - len(known)
    )


def _also_refused(checked: Checked, lost: int, reason: str) -> Checked:
    if not lost:
        return checked
    return msgspec.structs.replace(
        checked,
        body=checked.body if checked.spans or checked.refused else b"",
        refused=checked.refused + lost,
        reason=reason,
    )


def _count(body: bytes) -> int:
    """How many spans a large request holds, stopping above the bound, without parsing it."""
    total = 0
    # A field that cannot be walked stops the parser at the same place.
    with contextlib.suppress(IndexError):
        for batch in values_of(body, _RESOURCE_SPANS):
            for scoped in values_of(batch, _SCOPE_SPANS):
                for _ in values_of(scoped, _SPANS):
                    total += 1
                    if total > MAX_SPANS:
                        return total
    return total
