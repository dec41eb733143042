"""A store is closed while another process is about to open it."""

from __future__ import annotations

import threading
from pathlib import Path

from arttrace.records.reward import Reward
from arttrace.store.access.local import Store
from arttrace.store.file.duckdb_file import opening
from arttrace.system.paths import DataDir


def test_a_store_is_closed_while_nobody_opens_it(tmp_path: Path) -> None:
    """DuckDB reads a file's headers before it locks the file. Whoever had read them as the last one closed it went on
    from them, and what that one had stored was lost."""
    data = DataDir(tmp_path / "data")
    store = Store.open(data, create=True)
    store.append([Reward(id="one", trajectory_id="t", value=1.0)])
    closing = threading.Thread(target=store.close)
    with opening(data.store):
        closing.start()
        closing.join(1.0)
        assert closing.is_alive()
    closing.join(60)
    assert not closing.is_alive()
    with Store.open(data) as again:
        assert again.sql("SELECT id FROM rewards")[1] == [("one",)]
