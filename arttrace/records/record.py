"""Record: the union of what may enter the store, one JSON document per journal entry."""

from __future__ import annotations

import msgspec

from arttrace.records.group import Grouping
from arttrace.records.policy import PolicyStep
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanRow
from arttrace.records.values.lenient_json import well_formed
from arttrace.records.values.users_text import plain

PlainRecord = Reward | Judgement | PolicyStep | Grouping
"""A record other than a span."""
Record = SpanRow | PlainRecord

_encoder = msgspec.json.Encoder(enc_hook=plain)
_plain_decoder: msgspec.json.Decoder[PlainRecord] = msgspec.json.Decoder(PlainRecord)
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """One record as JSON, its kind under the key `type`; what UTF-8 cannot encode becomes U+FFFD."""
    try:
        return _encoder.encode(record)
    except UnicodeEncodeError:  # half a surrogate pair, which a model may emit and UTF-8 cannot hold
        return _encoder.encode(msgspec.convert(well_formed(msgspec.to_builtins(record, enc_hook=plain)), Record))


def decode_record(data: bytes) -> Record:
    """The record that `data`, one JSON document, encodes. Raises msgspec.ValidationError if it is not a record."""
    return _decoder.decode(data)


def decode_plain_record(data: bytes | str) -> PlainRecord:
    """The record, of any kind but a span, that `data` encodes. Raises msgspec.ValidationError if it is not one."""
    return _plain_decoder.decode(data)
