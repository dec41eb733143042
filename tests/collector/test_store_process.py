"""The process that loads the store says how far it is with another version's runs, and the collector says it."""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from simulated_agent import research_run
from stored_runs import store_by_an_earlier_version

from arttrace.collector import store_process
from arttrace.collector.store_process import Round
from arttrace.collector.supervisor import StoreSupervisor
from arttrace.formats.journal_entry import encode_records
from arttrace.store import Store
from arttrace.store.access.owner_file import read_owner
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir

TOLD = "runs that another version stored are read: 1 of 2"


def test_the_process_says_it_while_it_opens_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, told, ended = DataDir(tmp_path), list[Round](), threading.Event()
    store_by_an_earlier_version(data)
    monkeypatch.setattr("arttrace.store.file.reread._AT_ONCE", 1)
    monkeypatch.setattr(store_process, "_TELL_S", 0.0)
    monkeypatch.setattr(store_process, "_tell", told.append)
    ended.set()
    store_process._load_until(ended, data, "token")
    assert [(one.reading, one.owner) for one in told] == [
        (TOLD, False),
        (TOLD.replace("1 of", "2 of"), False),
        ("", True),
    ]


@pytest.mark.parametrize("step", ["answers", "loads"])
def test_what_fails_as_the_store_is_opened_is_done_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    data, told, ended = DataDir(tmp_path), list[Round](), threading.Event()
    failures = [OSError("No space left on device")]
    found: list[tuple[bool, int]] = []

    def tell(round: Round) -> None:
        told.append(round)
        if not failures and not round.trouble:
            owner = read_owner(data)
            [(runs,)] = stores[0].sql("SELECT count(*) FROM trajectories")[1]
            found.append((owner is not None and owner.token == "token", runs))
            ended.set()
        assert len(told) < 10

    def once_fails(do: Callable[..., Any]) -> Callable[..., Any]:
        def failing(*args: Any) -> Any:
            if failures:
                raise failures.pop()
            return do(*args)

        return failing

    with contextlib.closing(JournalWriter(data.journal)) as journal:  # of an owner that could not load it any more
        journal.append(encode_records(research_run("run")))
    stores: list[Store] = []
    ingest = Store.ingest_spool
    monkeypatch.setattr(Store, "ingest_spool", lambda store: (stores.append(store), ingest(store))[1])
    if step == "answers":
        monkeypatch.setattr(store_process, "answering", once_fails(store_process.answering))
    else:
        monkeypatch.setattr(Store, "load", once_fails(Store.load))
    monkeypatch.setattr(store_process, "_RETRY_S", 0.0)
    monkeypatch.setattr(store_process, "_PAUSE_S", 0.0)
    monkeypatch.setattr(store_process, "_tell", tell)
    store_process._load_until(ended, data, "token")
    assert told[0].trouble == "spans stay in the spool: No space left on device"
    assert found[0] == (True, 1)


def test_the_collector_says_it_and_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    line = msgspec.json.encode(Round(time.monotonic(), False, reading=TOLD)).decode()
    program = f"import sys; print({line!r}, flush=True); sys.stdin.readline(); sys.stdin.readline()"
    command = [sys.executable, "-c", program]
    started = subprocess.Popen[bytes]
    monkeypatch.setattr(subprocess, "Popen", lambda _, **given: started(command, **given))
    with caplog.at_level(logging.WARNING, "arttrace"):
        supervisor = StoreSupervisor(DataDir(tmp_path), "token")
        deadline = time.monotonic() + 60
        while supervisor.trouble != TOLD:
            assert time.monotonic() < deadline, supervisor.trouble
            time.sleep(0.01)
        assert not supervisor.owner
        supervisor.close()
    assert [record.message for record in caplog.records] == [TOLD]
