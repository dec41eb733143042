"""The content of one journal entry: records as JSON lines, or an OTLP request as received.

JSON never begins with the byte that marks a request.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from google.protobuf.message import DecodeError

from arttrace.formats.otlp.decode_protobuf import protobuf_spans
from arttrace.records.record import Record

_OTLP_PROTOBUF = b"\x01"

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
        try:
            return list(protobuf_spans(payload[1:]))
        except DecodeError as error:
            raise msgspec.DecodeError(f"no OTLP trace request in protobuf: {error}") from error
    return _decoder.decode_lines(payload)
