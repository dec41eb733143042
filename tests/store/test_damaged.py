"""A store's file that the disk damaged, that was copied in part, or that a newer DuckDB wrote: the error names which of
these it is, and a remedy that loses the least. It is not taken for a full disk, which a daemon waits for."""

from __future__ import annotations

import re
import shutil
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from recorded_runs import recorded_group

from arttrace.records.record import encode_record
from arttrace.store import Store
from arttrace.system.errors import MayPass, StoreError
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir

OLD, NEW, WAITING = range(20), range(20, 40), range(40, 41)
"""Groups of two runs each."""


def runs(number: int) -> list[Any]:
    return recorded_group(f"g{number}", (0.0, 1.0), at=2000 * number)


def ids(numbers: Iterable[int]) -> set[str]:
    return {f"g{number}-{run}" for number in numbers for run in (0, 1)}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a process that was killed: OLD is in the file, NEW in its log, WAITING in the spool."""
    data, left = (DataDir(tmp_path_factory.mktemp(name)) for name in ("alive", "left"))
    with Store.open(data, create=True) as store:
        for number in OLD:
            store.append(runs(number))
    with Store.open(data) as store:
        for number in NEW:
            store.append(runs(number))
        for name in ("store.duckdb", "store.duckdb.wal"):
            shutil.copy(data.root / name, left.root / name)
    spool = JournalWriter(left.spool)
    spool.append(*(encode_record(one) for number in WAITING for one in runs(number)))
    spool.close()
    return left.root


@pytest.fixture
def data(made: Path, tmp_path: Path) -> DataDir:
    return DataDir(shutil.copytree(made, tmp_path / "data"))


def damaged(path: Path, how: Callable[[bytearray], None]) -> None:
    content = bytearray(path.read_bytes())
    how(content)
    path.write_bytes(content)


def cut(at: float) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        del content[int(at * len(content)) :]

    return change


def flip(at: float) -> Callable[[bytearray], None]:
    def change(content: bytearray) -> None:
        content[int(at * len(content))] ^= 0xFF

    return change


def refused(data: DataDir) -> StoreError:
    with pytest.raises(StoreError) as raised, Store.open(data) as store:
        store.trajectories()
    return raised.value


def stored(data: DataDir) -> set[str]:
    with Store.open(data) as store:
        return {one.id for one in store.trajectories() if not one.incomplete}


def test_what_a_killed_process_left_is_whole(data: DataDir) -> None:
    assert stored(data) == ids([*OLD, *NEW, *WAITING])


@pytest.mark.parametrize("log", [True, False], ids=["with its log", "closed"])
@pytest.mark.parametrize("how", [cut, flip])
@pytest.mark.parametrize("at", [0.1, 0.3, 0.5, 0.7, 0.9])
def test_a_damaged_file_is_no_full_disk(
    data: DataDir, how: Callable[[float], Callable[[bytearray], None]], at: float, log: bool
) -> None:
    if not log:
        data.store.with_name("store.duckdb.wal").unlink()
    damaged(data.store, how(at))
    error = refused(data)
    assert not isinstance(error, MayPass)
    assert str(data.store) in error.message
    assert "move it away" in (error.hint or "")


def test_a_query_that_meets_the_damage_is_not_said_to_be_wrong(data: DataDir) -> None:
    data.store.with_name("store.duckdb.wal").unlink()
    damaged(data.store, flip(0.5))

    def asked() -> None:
        with Store.open(data, take_in=False) as store:
            for table in ("span_records", "texts", "prompts", "token_prompts", "reward_records", "summaries"):
                store.sql(f"SELECT * FROM {table}")

    with pytest.raises(StoreError) as raised:
        asked()
    assert "cannot be read: Corrupt" in raised.value.message
    assert "move it away" in (raised.value.hint or "")


@pytest.mark.parametrize("query", ["SELECT error('Corrupt')", "SELECT 'Corrupt'::INT"])
def test_a_query_that_fails_by_a_word_does_not_say_that_the_store_is_damaged(data: DataDir, query: str) -> None:
    with Store.open(data) as store, pytest.raises(StoreError, match=r"the query failed: .*Corrupt"):
        store.sql(query)


@pytest.mark.parametrize(("at", "kept"), [(0.001, 0), (0.5, 10), (0.9, 20)])
def test_of_a_damaged_log_all_is_kept_that_comes_before_the_damage(data: DataDir, at: float, kept: int) -> None:
    log = data.store.with_name("store.duckdb.wal")
    damaged(log, flip(at))
    error = refused(data)
    assert not isinstance(error, MayPass)
    found = re.search(r"`truncate -s (\d+) (\S+)`", error.hint or "")
    assert found is not None, error.hint
    assert Path(found[2]) == log
    damaged(log, lambda content: content.__delitem__(slice(int(found[1]), None)))
    left = stored(data)
    assert left >= ids([*OLD, *WAITING])
    assert len(left & ids(NEW)) >= kept


def test_a_store_of_a_newer_duckdb_is_not_said_to_be_damaged(data: DataDir) -> None:
    data.store.with_name("store.duckdb.wal").unlink()

    def newer(content: bytearray) -> None:
        for header in (4096, 8192):
            struct.pack_into("<Q", content, header + 56, 1000)  # the version of its storage
            checksum = 5381
            for (word,) in struct.iter_unpack("<Q", content[header + 8 : header + 4096]):
                checksum ^= word * 0xBF58476D1CE4E5B9 % 2**64
            struct.pack_into("<Q", content, header, checksum)

    damaged(data.store, newer)
    error = refused(data)
    assert "storage version number 1000" in error.message
    assert (error.hint or "").startswith("A newer DuckDB wrote it")
