"""What a collector refused and no run is known to lack, counted in the data directory for whoever looks at the runs:
requests as a whole, and spans whose trace cannot be read."""

from __future__ import annotations

from collections.abc import Callable

from arttrace.records.values.units import quantity
from arttrace.store.unread import Unread, UnreadCount
from arttrace.system.paths import DataDir


def unread_requests_message(unread: Unread) -> str:
    """The line that `ls` prints of them."""
    what = f"{quantity(unread.count, 'request')} that it could not read"
    return _message(what, unread, "what was in them, and which runs lack it, cannot be known")


def unread_spans_message(unread: Unread) -> str:
    """The same of spans, and of log records about spans."""
    what = "1 span or log record" if unread.count == 1 else f"{unread.count} spans or log records"
    return _message(f"{what} whose trace cannot be read", unread, "which runs lack them cannot be known")


def _message(what: str, unread: Unread, unknown: str) -> str:
    return f"the collector refused {what} (the last: {unread.reason}); {unknown}: see the senders' logs"


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
