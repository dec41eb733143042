"""Int64: an integer that a column of the store holds."""

from __future__ import annotations

from typing import Annotated

import msgspec

INT64 = range(-(1 << 63), 1 << 63)
"""As a time in nanoseconds it ends in the year 2262."""

Int64 = Annotated[int, msgspec.Meta(ge=INT64.start, le=INT64.stop - 1)]
"""msgspec refuses a record with another one when it reads it."""
