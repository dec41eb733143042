"""A loop in a program that sends what it records to a collector: a gather reads its runs when they are there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from collector_process import collecting
from openai import AsyncOpenAI
from scripted_server import Reply, serve_script

import arttrace
from arttrace.loop import Trajectory, gather_trajectories
from arttrace.rewards import trajectory_reward
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir


@pytest.fixture(autouse=True)
def ends(tmp_path: Path) -> Iterator[None]:
    """No later test of this process waits for a collector of these."""
    yield
    arttrace.shutdown(0.1)
    arttrace.init(dir=tmp_path)


@arttrace.trajectory
async def rollout(reward: float) -> Trajectory:
    return Trajectory(reward=reward)


async def test_runs_that_are_sent_to_the_collector_of_the_directory_are_gathered(tmp_path: Path) -> None:
    data = DataDir(tmp_path / "data")
    with collecting(data) as (_, url):
        arttrace.init(dir=data.root, endpoint=url)
        for _ in range(3):
            group = await gather_trajectories([rollout(0.25), rollout(0.5), rollout(0.75)])
            assert (len(group.captured), group.uncaptured, group.incomplete) == (3, 0, {})
            assert sorted(trajectory_reward(run) or 0.0 for run in group.captured) == [0.25, 0.5, 0.75]
        arttrace.shutdown(5)


async def test_the_end_of_a_stream_that_was_left_is_waited_for(tmp_path: Path) -> None:
    asked: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}

    async def left(url: str) -> Trajectory:
        async for _ in await AsyncOpenAI(base_url=url, api_key="key").chat.completions.create(**asked):
            break
        return Trajectory(reward=1.0)

    data = DataDir(tmp_path / "data")
    with serve_script(lambda _: Reply("word " * 20_000)) as server, collecting(data) as (_, url):
        arttrace.init(dir=data.root, endpoint=url)
        group = await gather_trajectories(left(server.url) for _ in range(4))
        assert (len(group.captured), group.incomplete) == (4, {})
        arttrace.shutdown(5)


async def test_a_collector_that_is_not_there_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("arttrace.loop.gathering.gather._DELIVERED_WITHIN_S", 0.2)
    arttrace.init(dir=tmp_path, endpoint="http://127.0.0.1:9")
    with pytest.raises(ArttraceError, match=r"(?s)none was captured.*http://127\.0\.0\.1:9 .*ARTTRACE_ENDPOINT"):
        await gather_trajectories([rollout(0.25), rollout(0.5)])
