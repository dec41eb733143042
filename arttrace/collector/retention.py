"""Retention: while the collector runs, it removes old runs from the store, and those that sampling left out."""

from __future__ import annotations

import threading
from collections.abc import Callable

from arttrace.store import open_store
from arttrace.store.file.retention import Limits, apply, described, wished
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

_HOUR_S = 3600.0


class Retention:
    """Applies the limits every hour, in a thread; without any, those that are wished for in the data directory. `say`
    gets a line when something went, or could not."""

    def __init__(self, data: DataDir, limits: Limits, say: Callable[[str], None], *, every_s: float = _HOUR_S) -> None:
        self._data, self._limits, self._say, self._every_s = data, limits, say, every_s
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="arttrace-retention", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.wait(self._every_s):
            try:
                with open_store(self._data) as store:
                    done = apply(store, wished(self._data) if self._limits == Limits() else self._limits)
            except (ArttraceError, OSError) as error:
                why = error.message if isinstance(error, ArttraceError) else error
                self._say(f"retention: {why}; tried again in an hour")
                continue
            if done is not None:
                self._say(described(done))

    def close(self) -> None:
        """End the thread; what it is doing is finished first."""
        self._ended.set()
        self._thread.join()
