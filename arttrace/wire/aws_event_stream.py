"""Amazon's event stream (application/vnd.amazon.eventstream): the payloads that Bedrock sends model events in.

A frame is: total length, length of its headers (4 bytes each, big-endian), a CRC of these, headers, payload, a CRC of
all. Source: https://docs.aws.amazon.com/lexv2/latest/dg/event-stream-encoding.html
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator

import msgspec

from arttrace.records.values.nesting import UNREADABLE

_PRELUDE = 12
_CRC = 4


class _Chunk(msgspec.Struct):
    bytes: str | None = None
    message: str | None = None


def event_payloads(body: bytes) -> Iterator[bytes]:
    """The JSON of each event in the whole frames of a body that may end anywhere; a failure is an error event."""
    place = 0
    while place + _PRELUDE <= len(body):
        size = int.from_bytes(body[place : place + 4])
        headers = int.from_bytes(body[place + 4 : place + 8])
        if size < _PRELUDE + headers + _CRC or place + size > len(body):
            return
        payload = body[place + _PRELUDE + headers : place + size - _CRC]
        place += size
        try:
            chunk = msgspec.json.decode(payload, type=_Chunk)
            if chunk.bytes is not None:
                yield base64.b64decode(chunk.bytes)
            elif chunk.message is not None:
                yield msgspec.json.encode({"type": "error", "error": {"message": chunk.message}})
        except (*UNREADABLE, binascii.Error):
            yield payload
