"""Work on a connection that is undone unless it completes, also at Ctrl-C, which DuckDB would handle itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import duckdb

if TYPE_CHECKING:
    import pyarrow as pa

_in_python = re.compile(r"failed: KeyboardInterrupt:\s*\Z")


@contextlib.contextmanager
def transaction(connection: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """All that the block does is stored at its end, or nothing. A commit that fails may be either."""
    try:
        connection.execute("BEGIN")  # Ctrl-C may come when it has begun
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(duckdb.Error):  # it would hide the cause
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def registered(connection: duckdb.DuckDBPyConnection, **tables: pa.Table) -> Iterator[None]:
    """Within the block queries find the tables by their names."""
    try:
        for name, table in tables.items():
            connection.register(name, table)
        yield
    finally:
        with contextlib.suppress(duckdb.TransactionException):  # the failure of a query goes before; rolling back
            for name in tables:  # removes the names
                connection.unregister(name)


def is_ctrl_c(error: Exception) -> bool:
    """Whether DuckDB raised this in place of KeyboardInterrupt: in a query, or while it read a table of Python's."""
    if isinstance(error, duckdb.InvalidInputException):
        return _in_python.search(str(error)) is not None
    return isinstance(error, RuntimeError) and str(error) == "Query interrupted"


@contextlib.contextmanager
def ctrl_c_as_usual() -> Iterator[None]:
    """Raises KeyboardInterrupt where DuckDB says that it took the signal."""
    try:
        yield
    except (RuntimeError, duckdb.InvalidInputException) as error:
        if is_ctrl_c(error):
            raise KeyboardInterrupt from error
        raise
