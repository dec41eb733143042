"""New stores of a process of tests: each is opened as a copy of one that was made here.

To make one takes DuckDB four times as long as to open one, as it reads and checks the views, and thousands of tests
begin with an empty store. What the tests start in processes of their own makes its own.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@contextlib.contextmanager
def copied_from(folder: Path) -> Iterator[None]:
    """Meanwhile a new store of this process is a copy of an empty one, which is made in `folder` on first use."""
    from arttrace.store.file import connect

    made = connect.connect_while_opening
    empty, making = folder / "empty.duckdb", threading.Lock()

    def opened(path: Path, **options: Any) -> Any:
        if not path.exists():
            with making:
                if not empty.exists():
                    made(empty).close()
            try:
                shutil.copyfile(empty, path)
            except OSError:  # what is wrong there is the store's to say
                path.unlink(missing_ok=True)
        return made(path, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connect, "connect_while_opening", opened)
        yield
