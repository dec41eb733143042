"""OTLP log requests: log records that are GenAI events about a span become spans right below it. Pure.

SDKs put messages into log records, which come in requests of their own, before their span or after it. Each such record
becomes a span of no length that holds it as an event, with ids that follow from it: sent twice it is one, and whatever
holds for spans (limits, validity, the journal, retention) holds for it. Records of one request about one span that have
the same time stay in their order, equal ones among them apart: a coarse clock gives all messages of a call one time.
sdks/whole_traces/messages_elsewhere.py gives the events to their spans when trajectories are built. Log records of any
other kind are not kept. What cannot be read and is, or may be, such an event leaves what stands in for it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from arttrace.formats.otlp.json_fields import array, integer, mapping, object_of, text
from arttrace.formats.otlp.protobuf_fields import BYTES, readable_fields, values_of, walk
from arttrace.formats.otlp.request import MAX_SPANS, MalformedRequest, TooManySpans
from arttrace.formats.otlp.undamaged import undamaged
from arttrace.records import semconv
from arttrace.records.message import canonical_json
from arttrace.records.span import SpanRow
from arttrace.records.values.integers import UINT64
from arttrace.records.values.nesting import UNREADABLE
from arttrace.trajectories.identity.stand_ins import stand_in

DAMAGED = "what it stands in, holds text that is no UTF-8, values nested too deep, or damaged bytes"
"""Why a record was refused that does not parse on its own."""
_PREFIX = "gen_ai."
_EVENT_NAME = "event.name"  # an attribute, before log records had a field for it
_BODY = "gen_ai.event.content"  # where span events hold what is the body of a log record
_FIXED64 = 1
_ATTRIBUTE, _EVENT = (number << 3 | BYTES for number in (6, 12))
_SAID = (*(number << 3 | _FIXED64 for number in (1, 11)), *(number << 3 | BYTES for number in (9, 10)))
"""Fields of a log record: its times, its trace and its span."""
_INVALID = (*UNREADABLE, TypeError, OverflowError)


def traces_of_protobuf(body: bytes) -> tuple[bytes, list[bytes]]:
    """The GenAI events of a log request in protobuf as a trace request, and the records that were left out because they
    do not parse. Raises MalformedRequest when it is none, TooManySpans when it holds too many."""
    request, lost = _read(body)
    found, total, places = ExportTraceServiceRequest(), 0, _Places()
    for resource_logs in request.resource_logs:
        of_resource = found.resource_spans.add(resource=resource_logs.resource, schema_url=resource_logs.schema_url)
        for scope_logs in resource_logs.scope_logs:
            spans = [_protobuf(record, name, places) for record in scope_logs.log_records if (name := _name(record))]
            total += len(spans)
            if total > MAX_SPANS:
                raise TooManySpans
            if spans:
                of_resource.scope_spans.add(scope=scope_logs.scope, schema_url=scope_logs.schema_url, spans=spans)
        if not of_resource.scope_spans:
            del found.resource_spans[-1]
    return found.SerializeToString(), lost


def _is_walked(message: bytes) -> bool:
    with contextlib.suppress(IndexError):
        return all(True for _ in walk(message))
    return False


def _read(body: bytes) -> tuple[ExportLogsServiceRequest, list[bytes]]:
    with contextlib.suppress(DecodeError):
        return ExportLogsServiceRequest.FromString(body), []
    try:
        rest, lost = undamaged(ExportLogsServiceRequest, body, MAX_SPANS)
        return ExportLogsServiceRequest.FromString(rest if lost else body), lost
    except OverflowError as error:
        raise TooManySpans from error
    except (IndexError, DecodeError) as error:
        raise MalformedRequest("the body is no OTLP log request in protobuf") from error


def _name(record: LogRecord) -> str | None:
    name = record.event_name or next(
        (pair.value.string_value for pair in record.attributes if pair.key == _EVENT_NAME), ""
    )
    return name if name.startswith(_PREFIX) else None


def _protobuf(record: LogRecord, name: str, places: _Places) -> Span:
    time_ns = record.time_unix_nano or record.observed_time_unix_nano
    written = record.SerializeToString(deterministic=True)
    id, place_ns = places.next((record.trace_id, record.span_id, time_ns), time_ns, written)
    if not record.span_id:  # it is about nothing, and refused for it
        id, place_ns = b"", time_ns
    span = Span(
        trace_id=record.trace_id,
        span_id=id,
        parent_span_id=record.span_id,
        name=f"log {name}",
        start_time_unix_nano=place_ns,
        end_time_unix_nano=place_ns,
    )
    span.attributes.add(key=semconv.LOG_RECORD).value.bool_value = True
    event = span.events.add(time_unix_nano=time_ns, name=name, attributes=record.attributes)
    if record.HasField("body"):
        event.attributes.add(key=_BODY, value=record.body)
    return span


def instead_of_damaged(record: bytes, why: str) -> SpanRow | None:
    """What stands in for a record that does not parse, from the fields of it that can be read. None where its trace is
    not known, or it is no GenAI event."""
    found = LogRecord()
    for field in readable_fields(record, _SAID):
        with contextlib.suppress(DecodeError):
            found.MergeFromString(field)
    names = list(readable_fields(record, (_EVENT,)))
    names += [one for one in readable_fields(record, (_ATTRIBUTE,)) if _EVENT_NAME.encode() in one]
    if not _is_walked(record):  # its name may have been behind
        names.append(_PREFIX.encode())
    if not any(_PREFIX.encode() in name for name in names):
        return None
    return stand_in(
        why,
        trace_id=found.trace_id.hex(),
        parent_span_id=found.span_id.hex(),
        start_ns=found.time_unix_nano or found.observed_time_unix_nano,
        attributes={semconv.LOG_RECORD: True},
        content=record,
    )


def is_log_request(body: bytes) -> bool:
    """Whether a request in protobuf, of traces or of logs, is one of logs: its first record has a time where a span has
    its trace's id, or events."""
    with contextlib.suppress(IndexError, StopIteration):
        record = next(
            record
            for of_resource in values_of(body, 1)
            for of_scope in values_of(of_resource, 2)
            for record in values_of(of_scope, 2)
        )
        return any(tag in (1 << 3 | _FIXED64, 11 << 3 | _FIXED64) for _, _, _, tag in walk(record))
    return False


def traces_of_json(request: Any) -> tuple[dict[str, Any], list[tuple[Any, str]]]:
    """The same of a log request in JSON that was decoded already, and each record left out with the reason."""
    refused: list[tuple[Any, str]] = []
    places = _Places()
    try:
        return {
            "resourceSpans": [
                {
                    **{name: value for name, value in mapping(resource_logs).items() if name != "scopeLogs"},
                    "scopeSpans": [
                        {
                            **{name: value for name, value in mapping(scope_logs).items() if name != "logRecords"},
                            "spans": list(_json_spans(array(scope_logs, "logRecords"), refused, places)),
                        }
                        for scope_logs in array(resource_logs, "scopeLogs")
                    ],
                }
                for resource_logs in array(request, "resourceLogs")
            ]
        }, refused
    except ValueError as error:
        raise MalformedRequest(f"the body is no OTLP log request in JSON: {error}") from error


def _json_spans(records: Iterable[Any], refused: list[tuple[Any, str]], places: _Places) -> Iterator[dict[str, Any]]:
    for record in records:
        try:
            if span := _json_span(record, places):
                yield span
        except _INVALID as error:
            refused.append((record, str(error)))


def _json_span(record: Any, places: _Places) -> dict[str, Any] | None:
    named = [
        object_of(pair, "value").get("stringValue")
        for pair in array(record, "attributes")
        if text(pair, "key") == _EVENT_NAME
    ]
    name = text(record, "eventName") or next((one for one in named if isinstance(one, str)), "")
    if not name.startswith(_PREFIX):
        return None
    if not text(record, "spanId"):
        raise ValueError("it names no span")
    observed = integer(record, "observedTimeUnixNano", UINT64)
    time_ns = integer(record, "timeUnixNano", UINT64) or observed
    body = [{"key": _BODY, "value": object_of(record, "body")}] if record.get("body") is not None else []
    trace_id, about = text(record, "traceId"), text(record, "spanId")
    id, place_ns = places.next((trace_id, about, time_ns), time_ns, canonical_json(record))
    return {
        "traceId": trace_id,
        "spanId": id.hex(),
        "parentSpanId": about,
        "name": f"log {name}",
        "startTimeUnixNano": place_ns,
        "endTimeUnixNano": place_ns,
        "attributes": [{"key": semconv.LOG_RECORD, "value": {"boolValue": True}}],
        "events": [
            {"name": name, "timeUnixNano": time_ns, "attributes": [*array(record, "attributes"), *body]},
        ],
    }


def instead_of_unread(record: Any, why: str) -> SpanRow | None:
    """The same as `instead_of_damaged` of a record in JSON."""
    if not isinstance(record, dict) or not _may_be_event(record):
        return None
    start = None
    with contextlib.suppress(*_INVALID):
        observed = integer(record, "observedTimeUnixNano", UINT64)
        start = integer(record, "timeUnixNano", UINT64) or observed
    return stand_in(
        why,
        trace_id=record.get("traceId"),
        parent_span_id=record.get("spanId"),
        start_ns=start,
        attributes={semconv.LOG_RECORD: True},
        content=record,
    )


def _may_be_event(record: dict[str, Any]) -> bool:
    """Whether a record in JSON is a GenAI event, or its name cannot be read."""
    name, attributes = record.get("eventName"), record.get("attributes")
    if name or attributes is None:
        return bool(name) and (not isinstance(name, str) or name.startswith(_PREFIX))
    if not isinstance(attributes, list):
        return True
    named = [pair for pair in attributes if isinstance(pair, dict) and pair.get("key") == _EVENT_NAME]
    values = [value.get("stringValue") if isinstance(value := pair.get("value"), dict) else None for pair in named]
    return any(not isinstance(value, str) or value.startswith(_PREFIX) for value in values)


class _Places:
    """Of the records of one request: by how much later each stands than others about its span with the same time, and
    ids that distinguish equal ones."""

    def __init__(self) -> None:
        self._of_time: Counter[Hashable] = Counter()
        self._equal: Counter[bytes] = Counter()

    def next(self, about: Hashable, time_ns: int, record: bytes) -> tuple[bytes, int]:
        """The id of the span that stands for a record, and its time."""
        later, again = self._of_time[about], self._equal[first := _id(record)]
        self._of_time[about] += 1
        self._equal[first] += 1
        return _id(record + str(again).encode()) if again else first, min(time_ns + later, UINT64[-1])


def _id(record: bytes) -> bytes:
    return hashlib.blake2b(record, digest_size=8).digest()
