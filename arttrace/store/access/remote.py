"""RemoteStore: a client of the store of a data directory that another process owns, over HTTP.

An operation that its owner's death interrupts is sent again to the next owner, which may be this process itself.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from arttrace.records.record import Record
from arttrace.store.access.any_store import AnyStore
from arttrace.store.access.client import OwnerBusy, OwnerClient, OwnerGone
from arttrace.store.access.local import Store
from arttrace.store.file.reading import Elsewhere
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir

R = TypeVar("R")

RETRY_S = 30.0
"""For how long an interrupted operation is sent again. The operation itself may take longer, once an owner answers."""
_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0


class RemoteStore(AnyStore):
    """A store that another process owns; threads may share it.

    Args:
        data: The data directory.
        client: The connection to its owner.
        reopen: Called when the owner has ended: finds the next one, or opens the store here. None if the owner is on
            another machine; then it is asked again until it answers.
    """

    def __init__(self, data: DataDir, client: OwnerClient, reopen: Callable[[], OwnerClient | Store] | None) -> None:
        self.data = data
        self._reopen = reopen
        self._backend: OwnerClient | Store = client
        self._finding = threading.Lock()
        self._closed = False

    def close(self) -> None:
        """Close the connection; the owner keeps running."""
        with self._finding:
            self._closed = True
            self._backend.close()

    def append(self, records: Iterable[Record]) -> int:
        """As AnyStore.append."""
        given = list(records)
        new: int = self._retried(lambda backend: backend.append(given))
        return new

    def _request(self, name: str, arguments: Mapping[str, Any]) -> Any:
        def run(backend: OwnerClient | Store) -> Any:
            if isinstance(backend, OwnerClient):
                return backend.request(name, arguments)
            return getattr(backend, name)(**arguments)

        return self._retried(run)

    def _retried(self, run: Callable[[OwnerClient | Store], Any]) -> Any:
        asked = self._backend

        def ask() -> Any:
            nonlocal asked
            asked = self._backend
            return run(asked)

        return asked_again(ask, after=OwnerGone, before_each=lambda: self._find_next(asked))

    def _find_next(self, gone: OwnerClient | Store) -> None:
        """The next one in the place of the one that is gone, unless another thread has found it."""
        with self._finding:
            if self._closed:
                raise StoreError(f"the store {self.data.store} was closed", "Open it again to go on.")
            if self._reopen is not None and self._backend is gone:
                self._backend = self._reopen()
                gone.close()


def asked_again(ask: Callable[[], R], *, after: type[OwnerGone], before_each: Callable[[], object] | None = None) -> R:
    """What `ask` returns, called again for RETRY_S while it raises `after`, and longer while the owner says that it
    reads runs again, and gets further."""
    waiting, pause = Elsewhere(RETRY_S), _PAUSE_S
    while True:
        try:
            result = ask()
        except after as error:
            waiting.at(error.reading if isinstance(error, OwnerBusy) else None)
            if waiting.is_over:
                raise
        else:
            waiting.end()
            return result
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)
        if before_each is not None:
            before_each()
