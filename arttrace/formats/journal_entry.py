"""The content of one journal entry: records as JSON lines, or an OTLP request as received.

JSON never begins with the byte that marks a request. What cannot be decoded as a whole, after a change of version or a
fault of the disk, is read as far as it can be: its spans, and stand-ins for those of which no more than ids is read.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import Final, NamedTuple

import msgspec

from arttrace.formats.otlp.request import MalformedRequest, TooManySpans
from arttrace.records.record import Record
from arttrace.records.span import SpanRow
from arttrace.system.processes import signals_after_imports
from arttrace.trajectories.identity.stand_ins import apart, stand_in

_OTLP_PROTOBUF = b"\x01"
_IDS: Final = (
    re.compile(
        rb'"type":"span","trace_id":"([0-9a-f]{32})","span_id":"([0-9a-f]{16})"(?:,"parent_span_id":"([0-9a-f]{16})")?'
    ),
    re.compile(
        rb"(?<!j[\x1c-\x7f])\x0a\x10(.{16})\x12\x08(.{8})(?:\x1a[\x01-\x7f][ -~]*)?(?:\x22\x08(.{8}))?", re.DOTALL
    ),
)
"""How the ids of a span, and of its parent, stand in JSON and in protobuf, there not as a link's."""

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_records(records: Iterable[Record]) -> bytes:
    """Records as one payload."""
    return _encoder.encode_lines(records)


def encode_otlp(request: bytes) -> bytes:
    """A checked ExportTraceServiceRequest in protobuf as one payload."""
    return _OTLP_PROTOBUF + request


def decode_payload(payload: bytes) -> list[Record]:
    """The records in a payload. Raises msgspec.DecodeError or UnicodeDecodeError when it is none."""
    if payload.startswith(_OTLP_PROTOBUF):
        protobuf_spans, decode_error = _protobuf()
        try:
            return list(protobuf_spans(payload[1:]))
        except decode_error as error:
            raise msgspec.DecodeError(f"no OTLP trace request in protobuf: {error}") from error
    return _decoder.decode_lines(payload)


@cache
def _protobuf() -> tuple[Callable[[bytes], list[SpanRow]], type[Exception]]:
    """`protobuf_spans` and the error that it raises: loaded with the first request, as most journals hold none."""
    with signals_after_imports(takes_long=False):
        from google.protobuf.message import DecodeError

        from arttrace.formats.otlp.decode_protobuf import protobuf_spans
    return protobuf_spans, DecodeError


class Salvaged(NamedTuple):
    """The records that were read of a payload which cannot be decoded, and what stands in for spans of it; `whole`
    where that is all that was in it."""

    records: Sequence[Record]
    stand_ins: Sequence[SpanRow]
    whole: bool


def salvaged(payload: bytes, why: str) -> Salvaged:
    """What can be read of a payload that `decode_payload` raises for. `why` is what the stand-ins say."""
    if payload.startswith(_OTLP_PROTOBUF):
        from arttrace.formats.otlp.check_protobuf import check_protobuf  # here, as below: seldom is anything damaged

        protobuf_spans, decode_error = _protobuf()
        try:
            checked = check_protobuf(payload[1:])
            return Salvaged(*apart(protobuf_spans(checked.body)), whole=True)
        except (MalformedRequest, TooManySpans, decode_error):
            return Salvaged([], stand_ins_in(payload, why), whole=False)
    from arttrace.formats.systems.refused_items import instead_of

    records: list[Record] = []
    stand_ins: list[SpanRow] = []
    whole = True
    for line in payload.splitlines():
        try:
            records += _decoder.decode_lines(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            instead = instead_of(line.decode(errors="replace"), why)
            whole = whole and instead is not None
            stand_ins += stand_ins_in(line, why) if instead is None else [instead]
    return Salvaged(records, stand_ins, whole)


def stand_ins_in(content: bytes, why: str) -> list[SpanRow]:
    """What stands in for the spans whose ids stand in bytes that are no payload, as far as can be seen."""
    stand_ins: list[SpanRow] = []
    for form in _IDS:
        for found in form.finditer(content):
            trace, own, parent = (
                one.decode() if one and form is _IDS[0] else (one or b"").hex() for one in found.groups()
            )
            instead = stand_in(why, trace_id=trace, span_id=own, parent_span_id=parent)
            if instead is not None:
                stand_ins.append(instead)
    return stand_ins
