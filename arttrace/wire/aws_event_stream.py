"""Amazon's event stream (application/vnd.amazon.eventstream), in which Bedrock streams, as server-sent events.

A frame is: total length, length of its headers (4 bytes each, big-endian), a CRC of these, headers, payload, a CRC of
all. A header is the length of its name (1 byte), the name, its type (1 byte; 7 is text) and, of a text, its length (2
bytes) and itself. Source: https://docs.aws.amazon.com/lexv2/latest/dg/event-stream-encoding.html
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from collections.abc import Iterator

import msgspec

from arttrace.records.values.nesting import UNREADABLE
from arttrace.wire.compression import decompress
from arttrace.wire.exchange import Exchange

CONTENT_TYPE = "vnd.amazon.eventstream"
_PRELUDE = 12
_CRC = 4
_TEXT = 7
_SIZES = {0: 0, 1: 0, 2: 1, 3: 2, 4: 4, 5: 8, 8: 8, 9: 16}
"""The bytes of a header's value, by its type; 6, of bytes, and 7 have their length before them."""


class _Chunk(msgspec.Struct):
    bytes: str | None = None
    message: str | None = None


def as_server_sent(exchange: Exchange) -> Exchange:
    """The exchange with the whole frames of its answer as server-sent events; any other as it is."""
    if CONTENT_TYPE not in exchange.headers.get("content-type", ""):
        return exchange
    try:
        body = decompress(exchange.body, exchange.headers.get("content-encoding", ""))
    except ValueError:
        return exchange
    events = b"".join(b"data: " + data.replace(b"\n", b" ") + b"\n\n" for data in event_payloads(body))
    return dataclasses.replace(exchange, body=events, headers={"content-type": "text/event-stream"} | _others(exchange))


def _others(exchange: Exchange) -> dict[str, str]:
    return {name: value for name, value in exchange.headers.items() if not name.startswith("content-")}


def event_payloads(body: bytes) -> Iterator[bytes]:
    """The JSON of each event in the whole frames of a body that may end anywhere: that of a chunk's bytes, an object
    with the event under its name, or an error."""
    place = 0
    while place + _PRELUDE <= len(body):
        size = int.from_bytes(body[place : place + 4])
        headers = int.from_bytes(body[place + 4 : place + 8])
        if size < _PRELUDE + headers + _CRC or place + size > len(body):
            return
        said = _texts(body[place + _PRELUDE : place + _PRELUDE + headers])
        payload = body[place + _PRELUDE + headers : place + size - _CRC]
        place += size
        yield _event(said, payload)


def _event(headers: dict[bytes, str], payload: bytes) -> bytes:
    failure = headers.get(b":exception-type") or headers.get(b":error-code")
    if failure is not None:
        said = _chunk(payload).message or headers.get(b":error-message") or payload.decode(errors="replace")
        return msgspec.json.encode({"type": "error", "error": {"type": failure, "message": f"{failure}: {said}"}})
    kind = headers.get(b":event-type", "chunk")
    if kind != "chunk":
        return b"{%b:%b}" % (msgspec.json.encode(kind), payload or b"{}")
    chunk = _chunk(payload)
    if chunk.message is not None:
        return msgspec.json.encode({"type": "error", "error": {"message": chunk.message}})
    try:
        return payload if chunk.bytes is None else base64.b64decode(chunk.bytes)
    except binascii.Error:
        return payload


def _chunk(payload: bytes) -> _Chunk:
    try:
        return msgspec.json.decode(payload, type=_Chunk)
    except UNREADABLE:
        return _Chunk()


def _texts(headers: bytes) -> dict[bytes, str]:
    """The headers of a frame that are texts."""
    found: dict[bytes, str] = {}
    place = 0
    while place < len(headers):
        name = headers[place + 1 : place + 1 + headers[place]]
        place += 1 + headers[place]
        kind = int.from_bytes(headers[place : place + 1])
        place += 1
        size = _SIZES.get(kind)
        if size is None:
            size = int.from_bytes(headers[place : place + 2])
            place += 2
        if kind == _TEXT:
            found[name] = headers[place : place + size].decode(errors="replace")
        place += size
    return found
