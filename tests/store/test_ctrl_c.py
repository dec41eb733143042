"""Ctrl-C while a store is opened or written, at the moments at which DuckDB says something else or nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.store.file import connect as connect_module
from arttrace.store.ingest import given_rows
from arttrace.store.ingest.writer import Writer
from arttrace.system.paths import DataDir

Execute = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(DataDir(tmp_path / "data"), create=True) as store:
        yield store


def reward(number: int) -> Reward:
    return Reward(id=f"r{number}", trajectory_id="t", value=float(number))


class Interrupted:
    """A store's connection, in which Ctrl-C comes once: `how` is given its first statement that begins with `at`."""

    def __init__(self, real: duckdb.DuckDBPyConnection, at: str, how: Callable[[Execute, str], None]) -> None:
        self._real, self._at, self._how = real, at, how
        self.came = False

    def execute(self, query: str, *parameters: Any) -> Any:
        if query.startswith(self._at) and not self.came:
            self.came = True
            self._how(self._real.execute, query)
        return self._real.execute(query, *parameters)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def as_it_returned(execute: Execute, query: str) -> None:
    execute(query)
    raise KeyboardInterrupt


def within_the_query(execute: Execute, query: str) -> None:
    with contextlib.suppress(duckdb.Error):
        execute("SELECT error('as an interrupted query, this one leaves its transaction aborted')")
    raise RuntimeError("Query interrupted")  # in the words of DuckDB 2.0, which takes the signal


@pytest.mark.parametrize(
    ("at", "how"), [("BEGIN", as_it_returned), ("INSERT", within_the_query), ("COMMIT", as_it_returned)]
)
def test_it_is_ctrl_c_and_the_next_use_stores_all(
    store: Store, monkeypatch: pytest.MonkeyPatch, at: str, how: Callable[[Execute, str], None]
) -> None:
    writer = store._file.writer
    connection = Interrupted(writer._connection, at, how)
    monkeypatch.setattr(writer, "_connection", connection)
    with pytest.raises(KeyboardInterrupt):
        store.append([reward(1)])
    assert connection.came
    store.append([reward(2)])
    assert store.sql("SELECT value FROM rewards ORDER BY 1")[1] == [(1.0,), (2.0,)]


def test_while_duckdb_reads_what_it_is_given(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises InvalidInputException, as for a record that no store can hold."""

    class Pressed:
        def __arrow_c_stream__(self, requested_schema: object = None) -> object:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(given_rows, "arrow_table", lambda columns: Pressed())
        patch.setattr(store._file.writer._given, "_left", 0)
        with pytest.raises(KeyboardInterrupt):
            store.append([reward(1)])
    store.append([reward(2)])
    assert store.sql("SELECT value FROM rewards ORDER BY 1")[1] == [(1.0,), (2.0,)]
    assert not list(store.data.journal.glob("*kept*"))


@pytest.mark.parametrize("where", [(connect_module, "_schema"), (Writer, "__init__")])
def test_while_the_store_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: tuple[Any, str]) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append([reward(1)])
    with monkeypatch.context() as patch:
        patch.setattr(*where, lambda *_: within_the_query(duckdb.connect().execute, ""))
        with pytest.raises(KeyboardInterrupt):
            Store.open(data)
    with Store.open(data) as store:
        assert store.sql("SELECT value FROM rewards")[1] == [(1.0,)]
