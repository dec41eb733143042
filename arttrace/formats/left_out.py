"""What a reader of a format says of what it leaves out, among the records that it gives."""

from __future__ import annotations

import msgspec

from arttrace.records.record import Record


class NotHeld(msgspec.Struct, frozen=True):
    """One thing that no record holds: `what` names its kind in the plural, as it is counted and told."""

    what: str


Read = Record | NotHeld
