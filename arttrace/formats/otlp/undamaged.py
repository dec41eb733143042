"""What of a damaged OTLP request can be read, found by protobuf's library and by its wire format."""

from __future__ import annotations

from google.protobuf.message import DecodeError, Message

from arttrace.formats.otlp.protobuf_fields import BYTES, encode_bytes, walk

_RESOURCES, _SCOPES, _RECORDS = 1, 2, 2  # alike in requests of traces and of logs


def parses(kind: type[Message], request: bytes) -> bool:
    """Whether these bytes are such a message."""
    try:
        kind.FromString(request)
    except DecodeError:
        return False
    return True


def undamaged(kind: type[Message], request: bytes, bound: int) -> tuple[bytes, list[bytes]]:
    """An OTLP request of traces or of logs without the spans or records that do not parse, each alone in a request of
    its own; and those. What stands in a resource or scope that does not parse is left out with it. Raises IndexError
    where this is no wire format, OverflowError where it holds more than `bound` of them."""
    total = 0
    kept: list[bytes] = []
    lost: list[bytes] = []
    _, batches = _split(request, _RESOURCES)
    for batch in batches:
        resource, scoped = _split(batch, _SCOPES)
        resource_parses = parses(kind, encode_bytes(resource, _RESOURCES))
        good_scoped: list[bytes] = []
        for one in scoped:
            scope, records = _split(one, _RECORDS)
            total += len(records)
            if total > bound:
                raise OverflowError(total)
            good: list[bytes] = []
            stands = resource_parses and parses(kind, encode_bytes(scope, _SCOPES, _RESOURCES))
            for record in records:
                whole = stands and parses(kind, encode_bytes(record, _RECORDS, _SCOPES, _RESOURCES))
                (good if whole else lost).append(record)
            good_scoped.append(encode_bytes(scope + b"".join(encode_bytes(each, _RECORDS) for each in good), _SCOPES))
        if resource_parses:
            kept.append(encode_bytes(resource + b"".join(good_scoped), _RESOURCES))
    return b"".join(kept), lost


def _split(message: bytes, number: int) -> tuple[bytes, list[bytes]]:
    """A message without one of its submessage fields, and the occurrences of that field."""
    found: list[bytes] = []
    rest: list[bytes] = []
    for start, value, end, field in walk(message):
        if field == number << 3 | BYTES:
            found.append(message[value:end])
        else:
            rest.append(message[start:end])
    return b"".join(rest), found
