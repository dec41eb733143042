"""What a follower of a store gets: each event once, whatever the clocks of those who sent it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from simulated_agent import research_run

from arttrace.records.reward import Reward
from arttrace.store import Store
from arttrace.store.ingest import writer
from arttrace.system.paths import DataDir
from arttrace.views.console import events as shown
from arttrace.views.console.events import Events

HOUR_NS = 3_600_000_000_000


def test_a_reward_of_a_clock_that_is_ahead_hides_no_later_one(tmp_path: Path) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
        now = time.time_ns()
        events = Events(store, now - HOUR_NS)
        store.append([Reward("ahead", "run", 1.0, time_ns=now + HOUR_NS)])
        first = [one.value for one in events.new() if one.kind == "reward"]
        store.append([Reward("later", "run", 2.0, time_ns=time.time_ns())])
        second = [one.value for one in events.new() if one.kind == "reward"]
    assert (first, second) == ([1.0], [2.0])


def test_what_came_in_at_one_moment_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shown, "_REMEMBERED", 2)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("run"))
        events = Events(store, 0)
        assert len(events.new()) > 2
        assert events.new() == []


def test_what_comes_from_now_on_is_reported_where_the_store_s_clock_is_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "_now_ns", lambda: time.time_ns() - HOUR_NS)
    with Store.open(DataDir(tmp_path), create=True) as store:
        store.append(research_run("before"))
        events = Events(store, None)
        assert events.new() == []
        store.append(research_run("after"))
        assert {one.run for one in events.new()} == {"after"}


def test_a_long_past_is_read_in_pages_and_each_event_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(DataDir(tmp_path), create=True) as store:
        now = time.time_ns()
        for number in range(6):
            store.append(research_run(f"run{number}", f"s{number}"))
        store.append([Reward(f"r{number}", "run1", 1.0, time_ns=now - HOUR_NS + number) for number in range(20)])
        whole = Events(store, 0).new()
        monkeypatch.setattr(shown, "_AT_ONCE", 4)
        events = Events(store, 0)
        pages = [events.new()]
        while events.more:
            pages.append(events.new())
        assert events.new() == []
    assert len(pages) > 3
    assert max(map(len, pages)) < len(whole) / 2
    assert sorted(one.time_ns for page in pages for one in page) == sorted(one.time_ns for one in whole)
    assert len([one for page in pages for one in page if one.kind == "reward"]) == 20
