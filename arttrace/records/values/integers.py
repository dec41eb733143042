"""Int64: an integer that fits a column of the store; and the ranges of protobuf's numbers."""

from __future__ import annotations

from typing import Annotated

import msgspec

INT64 = range(-(1 << 63), 1 << 63)
"""The largest, as a time in nanoseconds, is in the year 2262."""
INT32, UINT32, UINT64 = range(-(1 << 31), 1 << 31), range(1 << 32), range(1 << 64)

Int64 = Annotated[int, msgspec.Meta(ge=INT64.start, le=INT64.stop - 1)]
"""msgspec refuses to decode a record with an integer beyond it."""
