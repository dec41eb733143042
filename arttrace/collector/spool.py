"""Where collected spans go: the spool, durable before the answer.

The collector writes to the spool as every captured process does, so that whoever owns the store takes its spans in.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from arttrace.collector.group_commit import GroupCommit
from arttrace.collector.unread_requests import UnreadRequests
from arttrace.store.unread import UnreadCount
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir

MAX_SPOOL_BYTES = 16 << 30
_TRIED_BYTES = 1 << 20


class Spool:
    """Takes payloads. `acknowledged` and `refused` count spans, `unread` whole requests, `trouble` says why nothing can
    be written now, `last` is the monotonic time of the last ack."""

    def __init__(
        self,
        data: DataDir,
        *,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.data = data
        self.acknowledged = 0
        self.refused = 0
        self.unread = UnreadRequests(data, say)
        self._untraced = UnreadCount(data.unread_spans)
        self.trouble = ""
        self._refused_bytes = 0
        self.last = 0.0
        self._journal = GroupCommit(JournalWriter(data.spool, fsync_interval_s=None, max_total_bytes=max_spool_bytes))
        self._count = threading.Lock()

    def take(self, payload: bytes, spans: int) -> Future[None]:
        """A future that is done when the payload is on the disk; it raises OSError when the disk refuses."""
        done = self._journal.append(payload)

        def count(done: Future[None]) -> None:
            error = done.exception()
            with self._count:
                self._refused_bytes = 0 if error is None else len(payload)
                self.trouble = "" if error is None else f"the journal cannot be written: {error}"
                if error is None:
                    self.acknowledged += spans
                    self.last = time.monotonic()

        done.add_done_callback(count)
        return done

    def try_again(self) -> Future[None]:
        """A future that is done when it is known whether the disk takes again what it refused, though nobody sends: as
        many bytes, which hold no record, are written to it. It raises OSError when it does not."""
        return self.take(b"\n" * min(self._refused_bytes, _TRIED_BYTES), 0)

    def refuse(self, spans: int, untraced: int = 0, reason: str = "") -> None:
        """Count spans that were not taken; of those whose trace is not known, no run says that it lacks them."""
        with self._count:
            self.refused += spans
        if untraced:
            self._untraced.add(reason, untraced)

    def close(self) -> None:
        """Makes everything durable. The second time does nothing."""
        self._journal.close()
        self.unread.close()
        self._untraced.close()
