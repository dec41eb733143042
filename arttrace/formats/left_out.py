"""How a reader of a format reports what it leaves out, among the records that it yields."""

from __future__ import annotations

import msgspec

from arttrace.records.record import Record


class LeftOutItem(msgspec.Struct, frozen=True):
    """Something in a file that no record can represent: `what` names its kind in the plural, for the count that is
    printed."""

    what: str


Read = Record | LeftOutItem
