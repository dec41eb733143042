"""Where collected spans go: the spool first, durable before the answer; the store behind it, in a thread of its own.

The collector writes to the spool as every captured process does, so that whoever owns the store takes its spans in.
That is the collector itself, unless another process came first: then it goes on collecting, and takes the store over
when it is free.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from arttrace.collector.journal import GroupCommit
from arttrace.errors import StoreError, StoreInUse
from arttrace.journal import JournalWriter
from arttrace.paths import DataDir
from arttrace.store import Store

_log = logging.getLogger("arttrace")

MAX_SPOOL_BYTES = 16 << 30
_LOAD_INTERVAL_S = 0.25
_RETRY_S = 1.0


class Sink:
    """Takes payloads; a thread loads them into the store and owns it.

    `acknowledged` and `refused` count spans. `on_owner` is called in that thread with the store when this process
    begins to own it, and with None before it lets it go.
    """

    def __init__(
        self,
        data: DataDir,
        *,
        on_owner: Callable[[Store | None], None] = lambda _: None,
        max_spool_bytes: int = MAX_SPOOL_BYTES,
    ) -> None:
        self.data = data
        self.acknowledged = 0
        self.refused = 0
        self.store: Store | None = None
        self._on_owner = on_owner
        self._journal = GroupCommit(JournalWriter(data.spool, fsync_interval_s=None, max_total_bytes=max_spool_bytes))
        self._count = threading.Lock()
        self._journal_failure = ""
        self._load_failure = "what an earlier process left is being taken in"
        self._oldest: float | None = None
        self._new = threading.Event()
        self._stop = threading.Event()
        self._loader = threading.Thread(target=self._load_behind, name="arttrace-loader", daemon=True)
        self._loader.start()

    def take(self, payload: bytes, spans: int) -> Future[None]:
        """A future that is done when the payload is on the disk; it raises OSError when the disk refuses."""
        began = time.monotonic()
        done = self._journal.append(payload)

        def count(done: Future[None]) -> None:
            error = done.exception()
            with self._count:
                self._journal_failure = "" if error is None else f"the journal cannot be written: {error}"
                if error is None:
                    self.acknowledged += spans
                    if self._oldest is None:
                        self._oldest = began
            if error is None:
                self._new.set()

        done.add_done_callback(count)
        return done

    def refuse(self, spans: int) -> None:
        """Count spans that were not taken."""
        with self._count:
            self.refused += spans

    @property
    def load_lag_s(self) -> float:
        """Seconds since the oldest span was acknowledged that may not be in the store yet."""
        oldest = self._oldest
        return 0.0 if oldest is None else time.monotonic() - oldest

    @property
    def trouble(self) -> str:
        """Why the collector is not ready, or nothing."""
        return self._journal_failure or self._load_failure

    def close(self) -> None:
        """Makes everything durable, loads it, and lets the store go. The second time does nothing."""
        if self._stop.is_set():
            return
        self._stop.set()
        self._journal.close()
        self._new.set()
        self._loader.join()

    def _load_behind(self) -> None:
        while not self._stop.is_set():
            self._new.clear()
            loaded = self._load()
            if self._stop.wait(_LOAD_INTERVAL_S if loaded else _RETRY_S):
                break
            self._new.wait(_RETRY_S)  # other processes write to the spool too, and tell nobody
        self._load()
        self._release()

    def _load(self) -> bool:
        """Brings the spool into the store, if this process can own it."""
        with self._count:
            oldest, self._oldest = self._oldest, None
        try:
            if self.store is None:
                self.store = Store.open(self.data, create=True)
                self._on_owner(self.store)
            else:
                self.store.ingest_spool()
        except StoreInUse as error:
            _log.info("another process loads the spans for now: %s", error.message)
            self._load_failure = ""
            return False  # its owner takes the spool in when it is asked
        except Exception as error:  # noqa: BLE001 - spans are safe in the spool; try again
            failure = f"spans stay in the spool: {error}"
            if failure != self._load_failure:
                _log.error("%s", failure)
            self._load_failure = failure
            with self._count:
                self._oldest = oldest or self._oldest
            if not isinstance(error, StoreError):
                self._release()
            return False
        self._load_failure = ""
        return True

    def _release(self) -> None:
        if self.store is None:
            return
        store, self.store = self.store, None
        with contextlib.suppress(Exception):
            self._on_owner(None)
        try:
            store.close()
        except Exception as error:  # noqa: BLE001 - what was not loaded is in the spool
            _log.error("the store could not be closed in order: %s", error)


def directory_bytes(path: os.PathLike[str]) -> int:
    """The size of the files right inside a directory; 0 when it is not there."""
    total = 0
    with contextlib.suppress(FileNotFoundError), os.scandir(path) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                total += entry.stat().st_size
    return total
