"""A stream that a rollout leaves before its end, and does not close, ends with the rollout, whenever Python would have
freed it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI
from scripted_server import Reply, serve_script

import arttrace
from arttrace.loop import Trajectory, gather_trajectories, gather_trajectory_groups
from arttrace.loop.evaluation.left_out import require_whole
from arttrace.system.errors import TrainingError

ASKED: Any = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
KEPT: list[Any] = []


@pytest.fixture(autouse=True)
def url(tmp_path: Path) -> Iterator[str]:
    arttrace.init(dir=tmp_path)
    gc.disable()  # as between two collections, which may be minutes apart
    try:
        with serve_script(lambda _: Reply("word " * 20_000)) as server:
            yield server.url
    finally:
        gc.enable()
        KEPT.clear()
        arttrace.shutdown()


async def left(url: str) -> Trajectory:
    async with AsyncOpenAI(base_url=url, api_key="key") as client:
        stream = await client.chat.completions.create(**ASKED)
        async for _ in stream:
            break
    return Trajectory(reward=1.0)


async def left_in_a_thread(url: str) -> Trajectory:
    def ask() -> Trajectory:
        for _ in OpenAI(base_url=url, api_key="key").chat.completions.create(**ASKED):
            break
        return Trajectory(reward=1.0)

    return await asyncio.to_thread(ask)


async def held(url: str) -> Trajectory:
    stream = await AsyncOpenAI(base_url=url, api_key="key").chat.completions.create(**ASKED)
    KEPT.append(stream)
    async for _ in stream:
        break
    return Trajectory(reward=1.0)


@pytest.mark.parametrize("rollout", [left, left_in_a_thread])
async def test_a_stream_that_was_left_ends_with_its_rollout(
    rollout: Callable[[str], Coroutine[Any, Any, Trajectory]], url: str, caplog: pytest.LogCaptureFixture
) -> None:
    group = await gather_trajectories(rollout(url) for _ in range(2))
    assert not group.incomplete
    assert [call.call.interrupted for run in group.captured for call in run.calls] == ["closed"] * 2
    assert "neither judged nor trained on" not in caplog.text
    group.record_rewards()
    assert not group.incomplete


async def test_what_a_judge_is_given_after_each_is_whole(url: str) -> None:
    seen: list[dict[str, str]] = []
    [group] = await gather_trajectory_groups(
        [arttrace.loop.TrajectoryGroup(left(url) for _ in range(2))],
        after_each=lambda group: seen.append(group.incomplete) or group,  # type: ignore[func-returns-value]
    )
    assert seen == [{}]
    assert not group.incomplete


async def test_a_stream_that_is_still_held_is_said_with_the_remedy(url: str) -> None:
    group = await gather_trajectories(held(url) for _ in range(2))
    assert list(group.incomplete.values()) == ["call in progress"] * 2
    with pytest.raises(TrainingError, match=r"(?s)call in progress.*close a stream that is not read to its end"):
        require_whole({"incomplete: call in progress": 2}, [0])
