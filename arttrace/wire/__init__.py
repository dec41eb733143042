"""Pure: one HTTP exchange (request bytes, response bytes) becomes the attributes of one span."""

from arttrace.wire.chat import Decoded, decode_chat
from arttrace.wire.exchange import Ending, Exchange

__all__ = ["Decoded", "Ending", "Exchange", "decode_chat"]
