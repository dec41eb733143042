"""The collector's child process: it owns the store, ingests the spool, and answers queries.

A process of its own, so that neither loading nor a query keeps an ack waiting, and none of DuckDB's troubles ends the
collecting. Its first line of input is the token to answer to; the word STOP makes it load the rest and go. At the end
of its input without that, the collector's death, it goes at once: what is not loaded stays in the spool, and whoever
comes next finds the store free. After each round it prints a `Round`.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import msgspec

from arttrace.store import Store
from arttrace.store.file.read_so_far import reading_message
from arttrace.store.file.reading import Tell, reading_reported
from arttrace.store.server.owner import answering
from arttrace.system.errors import StoreInUse
from arttrace.system.paths import DataDir
from arttrace.system.private_files import only_for_its_user
from arttrace.system.processes import leave_signals_to_the_parent

STOP = "stop\n"
"""What the collector says when it ends in order."""

_PAUSE_S = 0.25
_BUSY = 4096  # records of a round beyond which the next follows at once: smaller ones cost as much each
_RETRY_S = 1.0
_TELL_S = 5.0
_NICE = 5  # acks first


class Round(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was in the spool at monotonic time `began` is in the store now, unless there is trouble; `owner`: whether
    this process owns the store, or leaves the loading to the one that does. `reading` says how far it is with the runs
    that another version of arttrace stored, which it reads again before that."""

    began: float
    owner: bool
    trouble: str = ""
    reading: str = ""


def main() -> None:
    """Runs until the end of input."""
    leave_signals_to_the_parent()
    only_for_its_user()
    if hasattr(os, "nice"):
        os.nice(_NICE)
    data = DataDir(Path(sys.argv[1]))
    token = sys.stdin.readline().strip()
    ended = threading.Event()
    threading.Thread(target=_wait_for_the_end, args=(ended,), daemon=True).start()
    _load_until(ended, data, token)


def _wait_for_the_end(ended: threading.Event) -> None:
    if sys.stdin.readline() != STOP:
        os._exit(0)  # whatever is under way: a store survives that
    ended.set()


def _load_until(ended: threading.Event, data: DataDir, token: str) -> None:
    store: Store | None = None
    is_answering = is_loaded = False
    with ExitStack() as owned:
        while True:
            last = ended.is_set()
            began = time.monotonic()
            trouble = ""
            new = 0
            try:
                if store is None:
                    # It answers first: whoever asks waits for what is being taken in, and is not turned away.
                    with reading_reported(partial(_reading, began)):
                        store = owned.enter_context(Store.open(data, create=True, take_in=False, read_ahead=True))
                if not is_answering:
                    owned.enter_context(answering(store, token))
                    is_answering = True
                if not is_loaded:
                    store.load()
                    is_loaded = True
                new = store.ingest_spool()
            except StoreInUse:
                pass  # its owner takes the spool in
            except Exception as error:  # noqa: BLE001 - spans are safe in the spool; try again
                trouble = f"spans stay in the spool: {error}"
            _tell(Round(began, store is not None, trouble))
            if last:
                return
            if store is None or trouble:
                ended.wait(_RETRY_S)
            elif new < _BUSY:
                ended.wait(_PAUSE_S)


def _reading(began: float, total: int) -> Tell:
    sent_at = time.monotonic()

    def tell(done: int) -> None:
        nonlocal sent_at
        if time.monotonic() - sent_at >= _TELL_S:
            sent_at = time.monotonic()
            _tell(Round(began, False, reading=reading_message(done, total)))

    return tell


def _tell(round: Round) -> None:
    with contextlib.suppress(OSError):  # the collector is gone
        os.write(1, msgspec.json.encode(round) + b"\n")


if __name__ == "__main__":
    main()
