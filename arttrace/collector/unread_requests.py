"""Requests that a collector refused as a whole, counted in the data directory for whoever looks at the runs."""

from __future__ import annotations

from collections.abc import Callable

from arttrace.records.values.units import quantity
from arttrace.store.unread import Unread, UnreadCount
from arttrace.system.paths import DataDir


def told_of_requests(unread: Unread) -> str:
    """What a person is told of them."""
    return (
        f"the collector refused {quantity(unread.count, 'request')} that it could not read (the last:"
        f" {unread.reason}); what they held, and which runs lack it, cannot be known: see the senders' logs"
    )


class UnreadRequests:
    """Counts them. `say` gets the first."""

    def __init__(self, data: DataDir, say: Callable[[str], None] = lambda line: None) -> None:
        self._count = UnreadCount(data.unread_requests)
        self._say = say

    @property
    def counted(self) -> int:
        """Those of this process."""
        return self._count.counted

    def add(self, reason: str) -> None:
        """One more."""
        first = not self.counted
        shown = self._count.add(reason)
        if first:
            self._say(f"a request is refused that cannot be read ({shown}): `arttrace ls` counts them")

    def close(self) -> None:
        """Makes the file say all."""
        self._count.close()
