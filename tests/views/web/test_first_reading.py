"""A store whose runs were never read: the newest are listed at once, the others as they are read."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from simulated_agent import Run, research_run
from starlette.testclient import TestClient
from viewer_site import KEY

from arttrace.records import semconv
from arttrace.records.policy import PolicyStep
from arttrace.records.span import SpanRow
from arttrace.store import Store
from arttrace.system.errors import StoreError
from arttrace.system.paths import DataDir
from arttrace.views.web import store_reader
from arttrace.views.web.app import create_app
from arttrace.views.web.models.run_list import parse_query, run_list
from arttrace.views.web.rendering import page
from arttrace.views.web.store_reader import StoreReader


class Slow:
    """A store that makes no more than the first summaries, and those of single runs, until it may."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.go = threading.Event()
        self.fails = False
        self.asked: list[list[str]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def summaries(self, ids: list[str] | None = None, **given: Any) -> Any:
        self.asked.append(ids or [])
        if len(self.asked) > 1 and (ids is None or len(ids) > 1):
            assert self.go.wait(60)
            if self.fails:
                self.fails = False
                raise StoreError("the disk is gone")
        return self._store.summaries(ids=ids, **given)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    monkeypatch.setattr(store_reader, "FIRST", 2)
    with Store.open(DataDir(tmp_path), create=True) as store:
        for number in range(7):
            store.append(research_run(f"run-{number}", f"s{number}"))
        yield Slow(store)


def test_the_newest_are_listed_while_the_others_are_read(slow: Slow) -> None:
    reader = StoreReader(slow)  # type: ignore[arg-type]
    first = reader.so_far()
    assert (len(first.runs), first.unread) == (2, 5)
    state = reader.state
    assert reader.run(first.runs[0].id) == first.runs[0], "a run that is listed is found without waiting"
    assert reader.run("run-0").id == "run-0", "one that is not is read by itself"
    listed = run_list(first.runs, parse_query([]), None, unread=first.unread)
    assert "2 runs" in (shown := bytes(page("_counts.html", list=listed).body).decode())
    assert "5 more are being read" in shown
    slow.go.set()
    assert len(reader.runs()) == 7
    assert reader.so_far() == (reader.runs(), 0)
    assert reader.state != state, "the page looks again"


def test_what_cannot_be_read_is_said_when_it_is_asked_for(slow: Slow) -> None:
    reader = StoreReader(slow)  # type: ignore[arg-type]
    assert reader.so_far().unread == 5
    slow.fails = True
    slow.go.set()
    assert len(reader.runs()) == 7, "the reading in the background failed, this one did not"
    assert reader.so_far().unread == 0


def test_few_runs_are_read_at_once(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reader, "FIRST", 100)
    slow.go.set()
    assert StoreReader(slow).so_far().unread == 0  # type: ignore[arg-type]


def test_a_long_run_keeps_no_list_waiting(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reader, "FIRST", 500)
    [(spans,)] = slow.sql("SELECT count(*) FROM span_records WHERE trajectory_id = 'run-0'")[1]
    monkeypatch.setattr(store_reader, "FIRST_SPANS", 7 * spans)
    long = Run("long")
    for number in range(8 * spans):
        long.tool(f"t{number}", "look", at=number + 1, until=number + 2)
    slow.append(long.end(at=9 * spans))
    reader = StoreReader(slow)  # type: ignore[arg-type]
    first = reader.so_far()
    assert [run.id for run in first.runs] == [f"run-{number}" for number in reversed(range(7))]
    assert first.unread == 1
    assert "long" not in slow.asked[0]
    assert reader.run("long").tool_calls == 8 * spans
    slow.go.set()
    assert {run.id for run in reader.runs()} == {"long", *(run.id for run in first.runs)}


def test_what_is_no_run_is_not_waited_for(slow: Slow) -> None:
    slow.go.set()
    given = {semconv.OPERATION_NAME: semconv.OPERATION_LEFT_OUT}
    slow.append(
        SpanRow(f"{n:032x}", f"{n:016x}", "left out", 1, 2, attributes={**given, semconv.TRAJECTORY_ID: f"left-{n}"})
        for n in range(1, 5)
    )
    reader = StoreReader(slow)  # type: ignore[arg-type]
    assert reader.so_far().unread == 5, "as many as there are runs"
    while reader._reading is not None:
        time.sleep(0.01)
    assert len(reader.so_far().runs) == 7
    assert reader.so_far().unread == 0


def test_pages_of_all_runs_say_that_they_are_being_read(slow: Slow) -> None:
    heard = {"authorization": f"Bearer {KEY}"}
    pages = TestClient(create_app(slow, KEY), base_url="http://localhost", headers=heard)  # type: ignore[arg-type]
    slow.append([PolicyStep("policy", 1, "adapter")])
    for address in ("/groups", "/groups/one?key=s0", "/training/step?policy=policy&step=1"):
        shown = pages.get(address).text
        assert "The runs are being read" in shown, address
        assert "2 runs so far, 5 more" in shown
        assert 'hx-get="/rows/ready"' in shown
    slow.go.set()
    assert pages.get("/rows/ready").headers["hx-refresh"] == "true"
    assert "7 groups" in pages.get("/groups").text
    assert "policy@1" in pages.get("/training/step?policy=policy&step=1").text
