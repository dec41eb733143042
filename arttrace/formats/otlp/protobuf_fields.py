"""Protobuf's wire format, field by field: for where its library is not installed, or cannot read a damaged message.

A message is a row of fields: a tag, then a varint, 8 bytes, a length and its bytes, or 4 bytes.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator

BYTES = 2
"""The kind of a field that holds a length and its bytes: text, bytes and messages."""


def encode_varint(number: int) -> bytes:
    """A number that is not negative, in protobuf's variable length."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def encode_bytes(message: bytes, *numbers: int) -> bytes:
    """A message as a field of an otherwise empty one, which is a field of the next, and so on outwards."""
    for number in numbers:
        message = encode_varint(number << 3 | BYTES) + encode_varint(len(message)) + message
    return message


def read_varint(message: bytes, at: int) -> tuple[int, int]:
    """The varint at an offset, and where it ends. Raises IndexError where there is none."""
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError(at)


def walk(message: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Each field as (start of its tag, start of its value, end, tag). Raises IndexError where there is none."""
    at, size = 0, len(message)
    while at < size:
        start = at
        tag, at = read_varint(message, at)
        match tag & 7:
            case 0:
                value, (_, at) = at, read_varint(message, at)
            case 1:
                value, at = at, at + 8
            case 2:
                length, value = read_varint(message, at)
                at = value + length
            case 5:
                value, at = at, at + 4
            case _:
                raise IndexError(at)
        if at > size or tag < 8:
            raise IndexError(at)
        yield start, value, at, tag


def values_of(message: bytes, number: int) -> Iterator[bytes]:
    """The values of a field that holds bytes, each time it occurs. Raises IndexError as `walk`."""
    return (message[value:end] for _, value, end, tag in walk(message) if tag == number << 3 | BYTES)


def readable_fields(message: bytes, tags: Collection[int]) -> Iterator[bytes]:
    """The fields with these tags, each as a message of its own, up to where a damaged message cannot be walked."""
    with contextlib.suppress(IndexError):
        for start, _, end, tag in walk(message):
            if tag in tags:
                yield message[start:end]
