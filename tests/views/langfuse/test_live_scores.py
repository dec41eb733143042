"""Scores that are given to stored runs later, by a judge or a function, reach Langfuse as they are given."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from langfuse_server import LangfuseServer, langfuse_server
from recorded_runs import recorded_group

import arttrace
from arttrace.capture.base.langfuse_project import Connection
from arttrace.commands import main
from arttrace.loop import TrajectoryGroup, gather_trajectory_groups
from arttrace.rewards import ruler_score_group
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.views.langfuse.client import LangfuseClient
from arttrace.views.langfuse.push import push
from arttrace.views.langfuse.state import SentRuns

REWARD = "def length(trajectory):\n    return 0.5\n"


@pytest.fixture
def data(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    with Store.open(data, create=True) as store:
        store.append(recorded_group("g", [None, None, None]))
    return data


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Any:
    def to(server: LangfuseServer) -> None:
        for name, value in {**server.environ(), "ARTTRACE_LANGFUSE": "1"}.items():
            monkeypatch.setenv(name, value)

    return to


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["arttrace", *arguments])
    try:
        main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def pushed(data: DataDir, server: LangfuseServer) -> None:
    connection = Connection.resolve(server.environ())
    with Store.open(data) as store, LangfuseClient(connection) as client:
        push(store, client, connection, SentRuns(data, connection))


def test_a_judges_scores_are_those_that_a_push_sends(
    data: DataDir, live: Any, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = ["--judge", "openai/stand-in", "--judge-base-url", judge_server.url, "--dir", str(data.root)]
    with langfuse_server() as server:
        live(server)
        assert run(monkeypatch, "score", *ask) == 0
        shown = dict(server.scores)
        with Store.open(data) as store:
            rewards = {one.id: one for run in store.summaries() for one in run.rewards}
        assert {(one["name"], one["value"], one.get("comment", "")) for one in shown.values()} == {
            ("ruler", reward.value, reward.explanation) for reward in rewards.values()
        }
        assert len(shown) == len(rewards) == 3
        assert any(one.get("comment") for one in shown.values()), "the judge's words"
        pushed(data, server)
        assert {key: one for key, one in server.scores.items() if one["name"] == "ruler"} == shown
        assert {one["traceId"] for one in shown.values()} == {trace for trace, *_ in server.observations}


def test_while_langfuse_is_away_scoring_goes_on_and_its_outbox_keeps_them(
    data: DataDir, live: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rewarding.py").write_text(REWARD)
    with langfuse_server() as server:
        live(server)
    monkeypatch.setenv("LANGFUSE_BASE_URL", "http://127.0.0.1:9")
    given = ["--reward", f"{tmp_path / 'rewarding.py'}:length", "--dir", str(data.root)]
    assert run(monkeypatch, "score", *given) == 0
    with Store.open(data) as store:
        assert [len(one.rewards) for one in store.summaries()] == [1, 1, 1]
    assert not server.scores
    [outbox] = data.receivers.iterdir()
    with langfuse_server() as back:
        monkeypatch.setenv("LANGFUSE_BASE_URL", back.url)
        moved = data.receivers / Connection.resolve().receiver.folder()
        outbox.rename(moved)  # the same server at the same address, as far as the outbox is concerned
        assert run(monkeypatch, "ship", "--dir", str(data.root)) == 0
        assert sorted((one["name"], one["value"]) for one in back.scores.values()) == [("rewarding.py:length", 0.5)] * 3
        shown = dict(back.scores)
        pushed(data, back)
        assert {key: one for key, one in back.scores.items() if one["name"] == "rewarding.py:length"} == shown


def test_the_loops_judge_and_rewards_go_there_too(
    tmp_path: Path, live: Any, judge_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with langfuse_server() as server:
        live(server)
        arttrace.init(dir=tmp_path, langfuse=True)

        @arttrace.trajectory(scenario="pears")
        async def rollout(number: int) -> int:
            await asyncio.sleep(0)
            return number

        async def gathered() -> int:
            [group] = await gather_trajectory_groups([TrajectoryGroup((rollout(n) for n in range(2)), key="g")])
            judgement = await ruler_score_group(group.group, "openai/stand-in", {"api_base": judge_server.url})
            assert judgement is not None
            group.take(judgement)
            return len(judgement.scores)

        count = asyncio.run(gathered())
        assert arttrace.shutdown()
        with Store.open(DataDir(tmp_path)) as store:
            stored = [one for run in store.summaries() for one in run.rewards]
        assert sorted(one["name"] for one in server.scores.values()) == ["ruler"] * count
        assert {one.id for one in stored} == {
            json.loads(one["metadata"]["arttrace_reward"])["id"] for one in server.scores.values()
        }
        assert len(stored) == count, "recorded and stored, and there once"
