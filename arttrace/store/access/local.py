"""Store: the owner of one data directory's DuckDB file. Records go in through its journal, trajectories come out
(queries.py).

Only one process at a time can own a store. Whoever opens it ingests the spool that captured processes left.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import duckdb

from arttrace.records.record import Record, encode_record
from arttrace.store.access.queries import StoreQueries
from arttrace.store.file.connections import SharedFile
from arttrace.store.file.prune import Pruned, prune
from arttrace.store.ingest.read_ahead import ReadAhead
from arttrace.store.ingest.segments import ingest_segments
from arttrace.store.transactions import ctrl_c_as_usual
from arttrace.store.unread import UnreadCount, UnreadThere, unread_in
from arttrace.system.errors import StoreBarred, StoreError, StoreFull
from arttrace.system.journal import JournalWriter, list_segments
from arttrace.system.paths import DataDir

_REOPENED_AFTER = 200_000  # records: DuckDB keeps something of every row it has written, about 150 bytes of each span


class Store(StoreQueries):
    """An open store; threads may share it. Use `Store.open`, and close it (or use it as a context manager).

    Args:
        data: The data directory.
        file: Its DuckDB file, open.
        ahead: Reads a backlog of segments ahead, in another process.
    """

    def __init__(self, data: DataDir, file: SharedFile, ahead: ReadAhead | None = None) -> None:
        super().__init__(data, file)
        self._journal = JournalWriter(data.journal, fsync_interval_s=None)
        self._journaling, self._appending = threading.Lock(), threading.Lock()
        self._ahead = ahead
        self._told: Callable[[], object] = lambda: None
        file.made_again = self._made_again
        self._unread = UnreadCount(data.unread_entries)

    @classmethod
    def open(cls, data: DataDir, *, create: bool = False, take_in: bool = True, read_ahead: bool = False) -> Store:
        """The store of a data directory, with its spool and journal ingested.

        Args:
            data: The data directory.
            create: Create the store if there is none; it is also created if a spool waits.
            take_in: False leaves the spool and journal to the first `ingest_spool`.
            read_ahead: Read a backlog ahead in another process, if a core is free.

        Raises:
            StoreError: There is neither a store nor a spool, another process owns the store (the message names it), it
                is damaged, or its schema is not known.
        """
        if not create and not data.store.exists() and not list_segments(data.spool) and not list_segments(data.journal):
            last_run = data.last_run()
            if last_run is not None:
                raise StoreError(
                    f"no store in {data.root}: nothing has been captured there yet",
                    f"The last `arttrace run` said: {last_run}",
                )
            raise StoreError(
                f"no store in {data.root}",
                "Run an agent first (`arttrace run -- python agent.py`, or decorate its entry with @trajectory), "
                "or pass the directory that holds one with --dir.",
            )
        store = cls(data, SharedFile(data.store), ReadAhead() if read_ahead else None)
        try:
            if take_in:
                store._take_in(data.journal)  # what a former owner could not load any more
                store.ingest_spool()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the file; a second call does nothing. Whatever was appended is in it, or in the journal, which is
        loaded at the next open. In a process that was forked since it was opened it does nothing at all."""
        if self._file.is_of_another_process:
            return
        with self._file.lock:
            if self._file.closed:
                return
            self._file.closed = True
            with contextlib.ExitStack() as at_last:
                at_last.callback(self._file.close)
                if self._ahead is not None:
                    at_last.callback(self._ahead.close)
                self._journal.close()
                if not self._file.invalidated and self._file.is_in_its_place:
                    self._load_from(self.data.journal)

    def when_made_again(self, told: Callable[[], object]) -> None:
        """`told` is called when somebody removed the file, and this store uses the one that is in its place now."""
        self._told = told

    def _made_again(self) -> None:
        with contextlib.suppress(OSError):  # it went with the directory
            self._journal.close()
        self._told()

    # --- in ------------------------------------------------------------------------------------------------

    def journal(self, records: Iterable[Record]) -> None:
        """Return once `records` are durable in the journal; `load` (or the next open) brings them into the store.

        Raises:
            StoreFull: The disk takes no more; the records may then be stored or not.
        """
        with self._journaling:  # a flush that fails is raised to those whose records it was for
            try:
                for record in records:
                    self._journal.append(encode_record(record))
                self._journal.sync()
            except OSError as error:
                with contextlib.suppress(OSError):
                    self._journal.sync()
                raise StoreFull(
                    f"the journal in {self.data.journal} cannot be written: {error.strerror or error}",
                    "Free disk space or correct the directory's permissions, then try again.",
                ) from error

    def load(self) -> int:
        """Load the journal into the store. Returns the number of new records."""
        return self._take_in(self.data.journal)

    def append(self, records: Iterable[Record]) -> int:
        """As AnyStore.append."""
        with self._appending:  # what is loaded is what was journaled here
            if not self._file.closed and not self._file.is_in_its_place:  # nor is the journal then
                with self._file.lock:
                    self._file.for_writing()
            self.journal(records)
            return self.load()

    def ingest_spool(self) -> int:
        """As AnyStore.ingest_spool."""
        return self._take_in(self.data.spool)

    def _take_in(self, directory: Path) -> int:
        with self._file.lock:
            self._file.for_writing()
            return self._load_from(directory)

    def _load_from(self, directory: Path) -> int:
        file = self._file
        try:
            total = 0
            while True:
                with ctrl_c_as_usual():
                    for new in ingest_segments(file.connection, file.writer, directory, self._ahead, self._unread):
                        total += new
                        file.taken_in += new
                        file.changes += new
                        if file.taken_in >= _REOPENED_AFTER and not file.readers and not file.closed:
                            break
                    else:
                        return total
                file.reopen()
        except PermissionError as error:
            raise StoreBarred(
                f"what waits in {directory} cannot be taken into the store: {error.filename}: {error.strerror}",
                "It is another user's, such as root's of a container: give it to yours, "
                f'`sudo chown -R "$USER" {self.data.root}`. Nothing is lost.',
            ) from error
        except (duckdb.Error, OSError) as error:
            file.invalidated = True
            file.raise_if_damaged("written", error)
            raise StoreFull(
                f"the store {self.data.store} could not be written: {error}",
                f"Free disk space. Nothing is lost: what was not stored is still in {directory}.",
            ) from error

    def unread(self) -> UnreadThere:
        """As AnyStore.unread."""
        return unread_in(self.data)

    def prune(self, *, before_ns: int | None = None, max_bytes: int | None = None, dry_run: bool = False) -> Pruned:
        """As AnyStore.prune."""
        return prune(self._file, before_ns=before_ns, max_bytes=max_bytes, dry_run=dry_run)
