"""Pure: one HTTP exchange (request bytes, response bytes) becomes the name and attributes of one span."""

from arttrace.wire.decode import Api, api_of, decode, is_call, may_be_call, operation_of, provider_of
from arttrace.wire.exchange import Ending, Exchange
from arttrace.wire.span_attributes import Decoded

__all__ = [
    "Api",
    "Decoded",
    "Ending",
    "Exchange",
    "api_of",
    "decode",
    "is_call",
    "may_be_call",
    "operation_of",
    "provider_of",
]
