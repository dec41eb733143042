"""The process that loads the store goes on where something failed as it opened it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from loading_process import load_by_printing
from simulated_agent import research_run

from arttrace.collector import store_process
from arttrace.collector.store_process import Round
from arttrace.collector.supervisor import StoreSupervisor
from arttrace.formats.journal_entry import encode_records
from arttrace.store import Store
from arttrace.store.access.owner_file import read_owner
from arttrace.system.journal import JournalWriter
from arttrace.system.paths import DataDir


@pytest.mark.parametrize("step", ["answers", "loads"])
def test_what_fails_as_the_store_is_opened_is_done_once_it_can_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    data, rounds, ended = DataDir(tmp_path), list[Round](), threading.Event()
    failures = [OSError("No space left on device")]
    found: list[tuple[bool, int]] = []

    def tell(round: Round) -> None:
        rounds.append(round)
        if not failures and not round.trouble:
            owner = read_owner(data)
            [(runs,)] = stores[0].sql("SELECT count(*) FROM trajectories")[1]
            found.append((owner is not None and owner.token == "token", runs))
            ended.set()
        assert len(rounds) < 10

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
    assert rounds[0].trouble == "spans stay in the spool: No space left on device"
    assert found[0] == (True, 1)


def test_what_a_machine_prints_wherever_python_starts_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a `sitecustomize` does: the collector was never ready, and did not start the process again."""
    load_by_printing(monkeypatch, "Welcome!", msgspec.json.encode(Round(time.monotonic(), True)).decode())
    with caplog.at_level(logging.WARNING, "arttrace"):
        supervisor = StoreSupervisor(DataDir(tmp_path), "token")
        deadline = time.monotonic() + 60
        while not supervisor.owner and supervisor._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.01)
        found = supervisor.owner, supervisor.trouble
        supervisor.close()
    assert found == (True, "")
    assert "'Welcome!'" in caplog.text
