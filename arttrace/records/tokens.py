"""Compact text for token ids and log-probabilities on a span: base64 of little-endian 32-bit numbers.

`i4:` + base64 holds int32 ids; `f4:` + base64 holds float32 log-probabilities, NaN where one is missing.
Engines compute log-probabilities in float32, so nothing is lost. Plain arrays are understood as well.
"""

from __future__ import annotations

import base64
import math
import struct
from collections.abc import Sequence
from typing import Any

_IDS, _LOGPROBS = "i4:", "f4:"


def encode_token_ids(token_ids: Sequence[int]) -> str:
    """Token ids of shape (T,) as text. Raises struct.error for an id outside 32 bits."""
    return _IDS + base64.b64encode(struct.pack(f"<{len(token_ids)}i", *token_ids)).decode("ascii")


def encode_logprobs(logprobs: Sequence[float | None]) -> str:
    """Log-probabilities of shape (T,) as text; None is kept as None."""
    values = (math.nan if value is None else value for value in logprobs)
    return _LOGPROBS + base64.b64encode(struct.pack(f"<{len(logprobs)}f", *values)).decode("ascii")


def decode_token_ids(value: Any) -> tuple[int, ...] | None:
    """Ids from an attribute: our text or a plain array. None when absent; ValueError when it is neither."""
    if value is None:
        return None
    if isinstance(value, str):
        return struct.unpack(f"<{len(raw := _payload(value, _IDS)) // 4}i", raw)
    if not isinstance(value, Sequence) or any(isinstance(v, bool) or not isinstance(v, int) for v in value):
        raise ValueError("token ids are neither 'i4:' text nor an array of integers")
    return tuple(value)


def decode_logprobs(value: Any) -> tuple[float | None, ...] | None:
    """Log-probabilities from an attribute, None for a missing one. ValueError when it is no list of numbers."""
    if value is None:
        return None
    if isinstance(value, str):
        raw = _payload(value, _LOGPROBS)
        values: tuple[float, ...] = struct.unpack(f"<{len(raw) // 4}f", raw)
        if not math.isnan(sum(values)):
            return values
        return tuple(None if math.isnan(v) else v for v in values)
    if not isinstance(value, Sequence) or any(v is not None and not isinstance(v, (int, float)) for v in value):
        raise ValueError("log-probabilities are neither 'f4:' text nor an array of numbers")
    return tuple(None if v is None or math.isnan(v) else float(v) for v in value)


def _payload(text: str, prefix: str) -> bytes:
    if not text.startswith(prefix):
        raise ValueError(f"expected text that starts with {prefix!r}")
    raw = base64.b64decode(text[len(prefix) :], validate=True)
    if len(raw) % 4:
        raise ValueError("truncated token data: its length is no multiple of 4 bytes")
    return raw
