"""Record: the union of what may enter the store, one JSON document per journal entry."""

from __future__ import annotations

import msgspec

from arttrace.records.grouping import Grouping
from arttrace.records.policy import PolicyStep
from arttrace.records.reward import Judgement, Reward
from arttrace.records.span import SpanRow

Record = SpanRow | Reward | Judgement | PolicyStep | Grouping

_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)


def encode_record(record: Record) -> bytes:
    """One record as JSON, its kind under the key `type`."""
    return _encoder.encode(record)


def decode_record(data: bytes) -> Record:
    """The record in one JSON document. Raises msgspec.ValidationError when it is none."""
    return _decoder.decode(data)
