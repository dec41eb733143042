"""Times of the gateway's rewards where clocks differ: its own before a restart, and those of whoever uploads."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from gateway_site import Site, gateway_at

from arttrace.records.reward import Reward, reward_clock
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from trainer.gateway.recording.reward_times import RewardTimes

DAY = 24 * 3600 * 10**9


@pytest.fixture(autouse=True)
def clock_of_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_clock, "_last", 0)


async def give(site: Site, value: float) -> None:
    assert (await site.http.post("/r/t/reward", json={"value": value, "id": "mine"})).status_code == 200


async def test_a_correction_after_a_restart_counts_also_where_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_at(tmp_path) as site:
        await site.http.post("/r/t/v1/chat/completions", json={"model": "policy", "messages": []})
        await give(site, 1.0)
        await site.gateway.recorder.take([Reward("other", "elsewhere", 0.5, time_ns=time.time_ns() - 7 * DAY)])
    now = time.time_ns()
    monkeypatch.setattr("time.time_ns", lambda: now - DAY)
    reward_clock._last = 0
    async with gateway_at(tmp_path) as site:
        await give(site, 2.0)
        await site.http.post("/r/t/end")
    with open_store(DataDir(tmp_path), create=True) as store:
        [run] = store.trajectories(ids=["t"])
    assert [reward.value for reward in run.rewards] == [2.0]


async def test_a_clock_of_whoever_uploads_is_not_taken_for_this_one(tmp_path: Path) -> None:
    async with gateway_at(tmp_path) as site:
        await site.gateway.recorder.take([Reward("other", "elsewhere", 0.5, time_ns=2**63 - 1)])
    async with gateway_at(tmp_path) as site:
        await site.http.post("/r/t/v1/chat/completions", json={"model": "policy", "messages": []})
        await give(site, 2.0)
        await site.http.post("/r/t/end")
    with open_store(DataDir(tmp_path), create=True) as store:
        [run] = store.trajectories(ids=["t"])
    assert [reward.time_ns for reward in run.rewards] == [pytest.approx(time.time_ns(), abs=DAY)]


def test_an_end_that_was_sent_again_does_not_turn_the_times_back(tmp_path: Path) -> None:
    times = RewardTimes(tmp_path)
    times.note([Reward("late", "t", 1.0, time_ns=200)])
    times.note([Reward("again", "t", 1.0, time_ns=100)])
    RewardTimes(tmp_path)
    assert reward_clock._last == 200
