"""The process that loads the store says how far it is with another version's runs, and the collector says it."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path

import msgspec
import pytest
from loading_process import load_by_printing
from stored_runs import store_by_an_earlier_version

from arttrace.collector import store_process
from arttrace.collector.store_process import Round
from arttrace.collector.supervisor import StoreSupervisor
from arttrace.system.paths import DataDir

TOLD = "runs that another version stored are read: 1 of 2"


def test_the_process_says_it_while_it_opens_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, shown, ended = DataDir(tmp_path), list[Round](), threading.Event()
    store_by_an_earlier_version(data)
    monkeypatch.setattr("arttrace.store.file.reread._AT_ONCE", 1)
    monkeypatch.setattr(store_process, "_TELL_S", 0.0)
    monkeypatch.setattr(store_process, "_tell", shown.append)
    ended.set()
    store_process._load_until(ended, data, "token")
    assert [(one.reading, one.owner) for one in shown] == [
        (TOLD, False),
        (TOLD.replace("1 of", "2 of"), False),
        ("", True),
    ]


def test_the_collector_says_it_and_is_not_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    load_by_printing(monkeypatch, msgspec.json.encode(Round(time.monotonic(), False, reading=TOLD)).decode())
    with caplog.at_level(logging.WARNING, "arttrace"):
        supervisor = StoreSupervisor(DataDir(tmp_path), "token")
        deadline = time.monotonic() + 60
        while supervisor.trouble != TOLD:
            assert time.monotonic() < deadline, supervisor.trouble
            time.sleep(0.01)
        assert not supervisor.owner
        supervisor.close()
    assert [record.message for record in caplog.records] == [TOLD]
