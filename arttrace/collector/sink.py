"""Where collected spans go: the spool first, durable before the answer; the store behind it, when nobody else has it.

The collector does not hold the DuckDB file: it opens it for as long as loading takes. So every command works beside
it, and while another process owns the store, that process takes the spool in itself.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from arttrace.errors import StoreError
from arttrace.journal import JournalWriter
from arttrace.paths import DataDir
from arttrace.records.record import encode_record
from arttrace.records.span import SpanRow
from arttrace.store import Store

_log = logging.getLogger("arttrace")

_MAX_SPOOL_BYTES = 16 << 30
_LOAD_INTERVAL_S = 1.0


class Sink:
    """Takes spans; a thread of its own loads them into the store. `acknowledged` counts the durable ones."""

    def __init__(self, data: DataDir) -> None:
        self.data = data
        self.acknowledged = 0
        self._spool = JournalWriter(data.spool, fsync_interval_s=None, max_total_bytes=_MAX_SPOOL_BYTES)
        self._count = threading.Lock()
        self._new = threading.Event()
        self._stop = threading.Event()
        self._loader = threading.Thread(target=self._load_behind, name="arttrace-loader", daemon=True)
        self._loader.start()

    def take(self, spans: Iterable[SpanRow]) -> None:
        """Returns when the spans are on the disk. Raises OSError when it refuses; then send them again."""
        payloads = [encode_record(span) for span in spans]
        for payload in payloads:
            self._spool.append(payload)
        self._spool.sync()
        with self._count:
            self.acknowledged += len(payloads)
        if payloads:
            self._new.set()

    def close(self) -> None:
        """Seals the spool and loads the rest."""
        self._stop.set()
        self._new.set()
        self._loader.join()
        self._spool.close()
        self._load()

    def _load_behind(self) -> None:
        while self._new.wait() and not self._stop.is_set():
            self._new.clear()
            self._load()
            self._stop.wait(_LOAD_INTERVAL_S)

    def _load(self) -> None:
        try:
            Store.open(self.data, create=True).close()
        except (StoreError, OSError) as error:
            _log.info("spans stay in the spool for now: %s", error)
