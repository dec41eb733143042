"""Somebody removes the data directory, to begin anew, while a viewer, a daemon or a collector has its store open: what
is captured from then on is stored, and kept."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from simulated_agent import research_run

from arttrace.records.record import encode_record
from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.store.access.owner_file import read_owner
from arttrace.store.server.owner import answering
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir

_ANOTHER = """
import os, sys
from pathlib import Path

from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.system.paths import DataDir

Store.open(DataDir(Path(sys.argv[1])), create=True).append([Reward("another's", "t", 1.0)])
os._exit(0)  # killed: what it stored stands in DuckDB's log beside the file
"""


def _capture(data: DataDir, run: str) -> None:
    spool = JournalWriter(data.spool)
    spool.append(*map(encode_record, research_run(run)))
    spool.close()


def _reward(id: str) -> Reward:
    return Reward(id, "t", 1.0)


def _ids(store: Store) -> list[str]:
    return sorted(id for (id,) in store.sql("SELECT id FROM rewards")[1])


@contextmanager
def _replaced(data: DataDir) -> Iterator[Store]:
    """A store that is open, and whose directory was removed and made anew by another process."""
    with Store.open(data, create=True) as store:
        store.append([_reward("before")])
        shutil.rmtree(data.root)
        subprocess.run([sys.executable, "-c", _ANOTHER, str(data.root)], check=True)
        yield store


@pytest.mark.parametrize("how", ["removed", "moved away"])
def test_what_comes_when_the_directory_is_gone_is_in_the_store_that_is_made_there(tmp_path: Path, how: str) -> None:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store, answering(store):
        owner = read_owner(data)
        store.append([_reward("before")])
        if how == "removed":
            shutil.rmtree(data.root)
        else:
            data.root.rename(tmp_path / "before")
        assert _ids(store) == []
        _capture(data, "after")
        store.ingest_spool()
        store.append([_reward("after")])
        assert read_owner(data) == owner, "other commands find who has it open"
    with Store.open(data) as again:
        assert [run.id for run in again.summaries()] == ["after"]
        assert _ids(again) == ["after"]
    if how == "moved away":
        with Store.open(DataDir(tmp_path / "before")) as moved:
            assert _ids(moved) == ["before"]


def test_a_store_that_another_process_made_there_is_gone_on_with_and_loses_nothing(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with _replaced(data) as store:
        _capture(data, "after")
        store.ingest_spool()
        assert _ids(store) == ["another's"]
        assert [run.id for run in store.summaries()] == ["after"]


def test_a_removed_store_is_closed_without_harm_to_the_one_in_its_place(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with _replaced(data) as store:
        store.journal([_reward("journaled")])
    with Store.open(data) as again:
        assert _ids(again) == ["another's", "journaled"]
