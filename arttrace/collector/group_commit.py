"""Group commit: requests that wait together are made durable by one flush of the disk, and answered after it."""

from __future__ import annotations

import contextlib
import queue
import threading
from concurrent.futures import Future

from arttrace.system.journal import JournalWriter

_BATCH_BYTES = 32 << 20


class GroupCommit:
    """A thread that appends payloads to a journal. Threads and event loops may share it."""

    def __init__(self, writer: JournalWriter) -> None:
        self._writer = writer
        self._queue: queue.SimpleQueue[tuple[bytes, Future[None]] | None] = queue.SimpleQueue()
        self._closing = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="arttrace-journal", daemon=True)
        self._thread.start()

    def append(self, payload: bytes) -> Future[None]:
        """A future that is done when the payload is on the disk. It raises OSError when the disk refuses, or after
        `close`: the payload is then to be sent again, and may be in the journal all the same."""
        done: Future[None] = Future()
        done.set_running_or_notify_cancel()  # a task that waits for it may be cancelled, the others are answered
        with self._closing:
            if self._closed:
                done.set_exception(OSError("the journal is closed"))
            else:
                self._queue.put((payload, done))
        return done

    def close(self) -> None:
        """Finish what was appended, and seal the journal. The second time does nothing."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        with contextlib.suppress(OSError):
            self._writer.close()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            waiting: list[tuple[bytes, Future[None]]] = []
            size = 0
            item = self._queue.get()
            while True:
                if item is None:
                    stopping = True
                    break
                waiting.append(item)
                size += len(item[0])
                if size >= _BATCH_BYTES:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            if waiting:
                self._commit(waiting)

    def _commit(self, waiting: list[tuple[bytes, Future[None]]]) -> None:
        written: list[Future[None]] = []
        for payload, done in waiting:
            try:
                self._writer.append(payload)
            except Exception as error:  # noqa: BLE001 - the one that waits gets it
                done.set_exception(error)
            else:
                written.append(done)
        try:
            self._writer.sync()
        except Exception as error:  # noqa: BLE001 - those that wait get it
            for done in written:
                done.set_exception(error)
            return
        for done in written:
            done.set_result(None)
