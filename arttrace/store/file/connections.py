"""The open file of a store, shared by threads: one connection writes, each reader has its own, and all are opened anew
when an error invalidated them or another file takes the place of this one."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb

from arttrace.store.file.cancellation import stoppable
from arttrace.store.file.connect import connect, connect_while_opening
from arttrace.store.file.duckdb_file import close_whole, identity, opening, replace
from arttrace.store.file.failures import cannot_be, is_damage
from arttrace.store.ingest.writer import Writer
from arttrace.store.transactions import ctrl_c_as_usual
from arttrace.system.errors import StoreError, StoreFull, StoreInUse
from arttrace.system.private_files import make_directory

_log = logging.getLogger("arttrace")

_READERS_END_S = 30.0


class SharedFile:
    """An open file. Hold `lock` for everything but `reading`; what waits here lets go of it meanwhile. `taken_in` is
    for whoever writes: 0 again whenever the file is opened anew. `changes` is another number after each change of the
    records. `one_rewrite` is held, and taken before `lock`, by who writes the file anew beside it. Where somebody
    removed the file, the one that is in its place, or a new one, is opened, and `made_again` is called: what went into
    the removed one would be lost."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lock = threading.RLock()
        self.one_rewrite = threading.Lock()
        self.readers = 0
        self.closed = False
        self.invalidated = False
        self.taken_in = 0
        self.changes = 0
        self.made_again: Callable[[], object] = lambda: None
        self._opener = os.getpid()
        self._last_close: weakref.finalize[..., SharedFile] | None = None
        connection = connect(path)
        try:
            self._use(connection)
        except duckdb.Error as error:
            _close(path, connection, self.lock, self._opener, identity(path))
            raise cannot_be("opened", path, error) from error
        self._changed = threading.Condition(self.lock)
        self._rewriting = False
        self._reopening = 0
        self._logged: set[str] = set()

    @property
    def is_of_another_process(self) -> bool:
        """Whether this process was forked from the one that opened the file, and that alone may use it."""
        return os.getpid() != self._opener

    @ctrl_c_as_usual()
    def _use(self, connection: duckdb.DuckDBPyConnection) -> None:
        if self._last_close is not None:
            self._last_close.detach()
        self.connection, self.writer = connection, Writer(connection)
        self._identity = identity(self.path)
        # A program that never closes the store has it closed like this too, at the latest as its interpreter ends.
        self._last_close = weakref.finalize(
            self, _close, self.path, connection, self.lock, self._opener, self._identity
        )

    def close(self) -> None:
        """Closes the file, for good, once those who read it have their answer: DuckDB closes no connection in use."""
        self.closed = True
        self._changed.wait_for(lambda: not self.readers, _READERS_END_S)
        if self._last_close is not None:
            self._last_close()

    @property
    def is_in_its_place(self) -> bool:
        """Whether the file that is open is the one that has its name."""
        return self._identity is not None and self._identity == identity(self.path)

    def opened(self) -> duckdb.DuckDBPyConnection:
        """The connection, a new one after an error that invalidated the last, or when the file was removed. Raises
        StoreError when there can be none, or after `close`."""
        self._refuse_when_closed()
        removed = not self.is_in_its_place
        if self.invalidated or removed:
            try:
                self.reopen()
            except (duckdb.Error, OSError) as error:
                self.raise_if_damaged("opened again", error)
                raise StoreFull(
                    f"the store {self.path} could not be opened again: {error}",
                    "Free disk space. Nothing is lost, and the next use tries again.",
                ) from error
        if removed:
            _log.warning("the store %s was removed: the one that is there now is used", self.path)
            self.made_again()
        return self.connection

    def for_writing(self) -> duckdb.DuckDBPyConnection:
        """`opened`, when no rewrite waits for its readers: what is written then would go with the old file."""
        while self._rewriting or self.invalidated or not self.is_in_its_place:  # opening anew may wait too
            self._changed.wait_for(lambda: not self._rewriting)
            self.opened()
        return self.opened()

    @contextlib.contextmanager
    def reading(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of its own, so that readers wait neither for each other nor for the writer. One who reads
        already must not come here again: he would wait for himself when the file is to be opened anew. Raises
        StoreError when the store cannot be read."""
        with self.lock:
            self._changed.wait_for(lambda: not self._reopening)
            connection = self.opened().cursor()
            self.readers += 1
        try:
            with ctrl_c_as_usual(), stoppable(connection):
                yield connection
        except duckdb.Error as error:
            self.note(error)
            raise cannot_be("read", self.path, error) from error
        finally:
            try:
                connection.close()
            finally:
                with self.lock:
                    self.readers -= 1
                    self._changed.notify_all()

    @contextlib.contextmanager
    def rewriting(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """The connection, while what is written by others waits."""
        connection = self.for_writing()
        self._rewriting = True
        try:
            with ctrl_c_as_usual():
                yield connection
        except duckdb.Error as error:
            self.note(error)
            raise
        finally:
            self._rewriting = False
            self._changed.notify_all()

    @contextlib.contextmanager
    def if_possible(self) -> Iterator[None]:
        """For what is only kept so that it need not be made again: a question is answered without. What is no fault
        of the disk is logged, each error once."""
        try:
            with ctrl_c_as_usual():
                yield
        except duckdb.Error as error:
            self.note(error)
            message = f"{type(error).__name__}: {error}"
            if not isinstance(error, (duckdb.IOException, duckdb.FatalException)) and message not in self._logged:
                self._logged.add(message)
                _log.error("the store %s answers without what it keeps beside the records: %s", self.path, message)

    def note(self, error: Exception) -> None:
        """After a fatal error, a commit that fails for a full disk, say, the whole DuckDB instance is of no use."""
        if isinstance(error, duckdb.FatalException):
            self.invalidated = True

    def raise_if_damaged(self, used: str, error: Exception) -> None:
        """Raises StoreError for an error that says that the file is damaged: no room on the disk would mend it."""
        if isinstance(error, duckdb.Error) and is_damage(error):
            raise cannot_be(used, self.path, error) from error

    def reopen(self, replace_by: Path | None = None) -> None:
        """Opens the file anew, another one in its place if given. A reader's connection would keep the old one open,
        so readers end first; new ones wait, or they would never end."""
        self._reopening += 1
        try:
            self._changed.wait_for(lambda: not self.readers)
            self._refuse_when_closed()
            self._open_anew(replace_by)
        finally:
            self._reopening -= 1
            self._changed.notify_all()

    def _open_anew(self, replace_by: Path | None) -> None:
        make_directory(self.path.parent)
        with opening(self.path):
            self.invalidated = True
            close_whole(self.connection, self.path, self._identity)
            try:
                if replace_by is not None:
                    replace(self.path, replace_by)
            finally:
                self._use(connect_while_opening(self.path))
        self.taken_in = 0
        self.changes += 1
        self.invalidated = False

    def _refuse_when_closed(self) -> None:
        if self.is_of_another_process:
            raise StoreError(
                f"the store {self.path} was opened by the process that this one was forked from",
                "Ask it there, or open it after the fork.",
            )
        if self.closed:
            raise StoreError(f"the store {self.path} was closed", "Open it again to go on.")


def _close(
    path: Path,
    connection: duckdb.DuckDBPyConnection,
    lock: threading.RLock,
    opener: int,
    opened: tuple[int, int] | None,
) -> None:
    """Closes the file while nobody opens it: DuckDB reads a file's headers before it locks the file, so that another
    would go on from the old ones, and what was stored since would be lost. A process that was forked from the one that
    opened it leaves it open: DuckDB's threads are not in it, and it would write into the other's file."""
    if os.getpid() != opener:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
        return
    alone = contextlib.ExitStack()
    with contextlib.ExitStack() as held:
        if lock.acquire(timeout=_READERS_END_S):  # a daemon thread may still write as the interpreter ends
            held.callback(lock.release)
        try:
            with contextlib.suppress(StoreInUse, OSError):
                alone.enter_context(opening(path))
        finally:
            with alone:
                close_whole(connection, path, opened)
