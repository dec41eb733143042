"""Ctrl-C while DuckDB works: it takes the signal, and raises RuntimeError in place of KeyboardInterrupt."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


@contextlib.contextmanager
def ctrl_c_as_usual() -> Iterator[None]:
    """Raises KeyboardInterrupt where DuckDB says that a query was interrupted."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == "Query interrupted":
            raise KeyboardInterrupt from error
        raise
