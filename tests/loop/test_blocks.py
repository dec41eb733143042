"""Runs as blocks, as programs of newer ART write them: each call is of the innermost trajectory that is open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_server import Asked, Call, Reply, serve_script

import arttrace
import arttrace.loop as art
from arttrace.formats.imported_files import read_file
from arttrace.loop.recorded.directories import captured_runs
from arttrace.rewards import trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir

TOOL: Any = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def answer(asked: Asked) -> Reply:
    if asked.tools and not asked.results:
        return Reply("I look.", (Call("look", {"q": asked.users[-1]}),))
    return Reply(f"{asked.users[-1]} is 42")


@pytest.fixture
def client(tmp_path: Path) -> Iterator[openai.AsyncOpenAI]:
    arttrace.init(dir=tmp_path)
    with serve_script(answer) as server:
        yield openai.AsyncOpenAI(base_url=server.url, api_key="k")
    arttrace.shutdown()


async def ask(client: openai.AsyncOpenAI, question: Any, *more: Any, **options: Any) -> Any:
    said = [{"role": "user", "content": question}, *more]
    answered = await client.chat.completions.create(model="policy", messages=said, **options)
    return answered.choices[0].message


async def agent(client: openai.AsyncOpenAI, question: str) -> str:
    first = await ask(client, question, tools=[TOOL])
    found = {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "found"}
    return str((await ask(client, question, first.model_dump(exclude_none=True), found, tools=[TOOL])).content)


def recorded(*trajectories: art.Trajectory) -> list[tuple[list[str], str]]:
    """What each was asked, call by call, and why it is not whole."""
    runs = captured_runs(trajectories)
    found = [runs[one.id] for one in trajectories]
    return [([call.call.messages[0].text for call in run.calls], run.incomplete) for run in found]


async def test_a_call_is_of_the_innermost_block_that_is_open(client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    await ask(client, "before")
    assert art.current_trajectory() is None
    with art.Trajectory(metadata={"scenario": "s"}) as outer:
        assert art.current_trajectory() is outer
        await ask(client, "outer")
        with art.Trajectory() as inner:
            await ask(client, "inner")
            assert art.current_trajectory(require=True) is inner
        with art.no_capture():
            await ask(client, "hidden")
            with art.Trajectory() as within:
                await ask(client, "within")
        await ask(client, "outer again")
    await ask(client, "after")
    assert recorded(outer, inner, within) == [(["outer", "outer again"], ""), (["inner"], ""), (["within"], "")]
    assert "duration" in outer.metrics
    with Store.open(DataDir(tmp_path)) as store:
        assert store.trajectory(outer.id).metadata["scenario"] == "s"
        assert sum(not run.incomplete for run in store.trajectories()) == 3
    with pytest.raises(ArttraceError, match="no trajectory is open here"):
        art.current_trajectory(require=True)
    with pytest.raises(ArttraceError, match="entered before"), outer:
        pass


async def test_blocks_of_tasks_are_apart_and_say_what_was_said(client: openai.AsyncOpenAI) -> None:
    async def one(question: str) -> art.Trajectory:
        with art.Trajectory() as trajectory:
            await agent(client, question)
            assert art.current_trajectory() is trajectory
        return trajectory

    both = await asyncio.gather(one("6 x 7"), one("5 x 7"))
    assert recorded(*both) == [(["6 x 7"] * 2, ""), (["5 x 7"] * 2, "")]
    asked, looked, found, said = both[1].messages()
    assert (asked["content"], looked["tool_calls"][0]["function"]["name"], found["content"], said["content"]) == (
        "5 x 7", "look", "found", "5 x 7 is 42"
    )  # fmt: skip


async def test_what_was_said_is_in_openais_form(client: openai.AsyncOpenAI) -> None:
    seen: Any = [
        {"type": "text", "text": "what is it?"},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
    ]
    with art.Trajectory() as trajectory:
        looked = await ask(client, seen, tools=[TOOL])
        found = {"role": "tool", "tool_call_id": looked.tool_calls[0].id, "content": "found"}
        await ask(client, seen, looked.model_dump(exclude_none=True), found, tools=[TOOL])
    asked, calls, result, _ = trajectory.messages()
    assert asked == {"role": "user", "content": seen}
    assert calls["tool_calls"] == looked.model_dump(exclude_none=True)["tool_calls"]
    assert result == found


def test_tool_calls_without_ids_and_their_results_get_the_same(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    look = {"type": "function", "function": {"name": "look", "arguments": "{}"}}
    said = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": "", "tool_calls": [look, look]},
        {"role": "tool", "content": "one"},
        {"role": "tool", "content": "two"},
        {"role": "assistant", "content": "!"},
    ]
    with Store.open(data, create=True) as store:
        store.append(read_file(json.dumps({"messages": said}).encode(), "file").records)
        [run] = store.trajectories()
    trajectory = art.Trajectory()
    trajectory.id, trajectory.recorded_in = run.id, data
    _, calls, one, two, _ = trajectory.messages()
    ids = [call["id"] for call in calls["tool_calls"]]
    assert ids == [one["tool_call_id"], two["tool_call_id"]] == ["call_0", "call_1"]


async def test_what_a_block_raises_goes_on_and_its_run_has_the_error(
    client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    trajectory = art.Trajectory()

    async def rollout() -> None:
        with trajectory:
            await ask(client, "q")
            raise KeyError("gone")

    with pytest.raises(KeyError):
        await rollout()
    assert art.current_trajectory() is None
    await ask(client, "after")
    assert recorded(trajectory) == [(["q"], "")]
    with Store.open(DataDir(tmp_path)) as store:
        assert "gone" in (store.trajectory(trajectory.id).error or "")


async def test_a_group_of_captured_agents_is_judged_and_gets_rewards(
    client: openai.AsyncOpenAI, judge_server: Any, tmp_path: Path
) -> None:
    group = await art.trajectory_group(art.trajectory(agent(client, f"{n} x 7")) for n in range(3))
    assert [len(calls) for calls, _ in recorded(*group)] == [2, 2, 2]
    judge_server.script.append(
        lambda request: judge_server.says(
            json.dumps({"scores": [{**one, "score": i / 4} for i, one in enumerate(judge_server.scores(request), 1)]})
        )(request)
    )
    judged = await art.ruler_score_group(group, "openai/o3", {"api_base": judge_server.url})
    assert judged is group
    assert sorted(one.reward or 0.0 for one in group) == [0.25, 0.5, 0.75]
    with Store.open(DataDir(tmp_path)) as store:
        runs = list(store.trajectories(group=group.key))
    assert sorted(trajectory_reward(run) or 0.0 for run in runs) == [0.25, 0.5, 0.75]
    assert {(run.agents[0].name, run.result) for run in runs} == {("agent", f"{n} x 7 is 42") for n in range(3)}


async def test_trajectories_by_hand_are_judged_by_what_was_captured(
    client: openai.AsyncOpenAI, judge_server: Any
) -> None:
    both = [await art.trajectory(agent(client, question)) for question in ("6 x 7", "6 x 7 again")]
    group = art.TrajectoryGroup(both)
    judge_server.script.append(
        lambda request: judge_server.says(
            json.dumps({"scores": [{**one, "score": 0.5} for one in judge_server.scores(request)]})
        )(request)
    )
    await art.ruler_score_group(group, "openai/o3", {"api_base": judge_server.url})
    assert "6 x 7 again is 42" in json.dumps(judge_server.requests[-1])
    assert [(one.reward, one.result) for one in group] == [(0.5, "6 x 7 is 42"), (0.5, "6 x 7 again is 42")]


async def test_rewards_set_after_the_block_are_stored_with_the_group(
    client: openai.AsyncOpenAI, tmp_path: Path
) -> None:
    async def rollout(question: str, reward: float) -> art.Trajectory:
        with art.Trajectory() as trajectory:
            await agent(client, question)
        trajectory.reward = reward
        return trajectory

    [group] = await art.gather_trajectory_groups([art.TrajectoryGroup(rollout("6 x 7", n / 2) for n in range(2))])
    assert [(one.id, one.reward) for one in group] == [(run.id, trajectory_reward(run)) for run in group.captured]
    assert [len(run.calls) for run in group.captured] == [2, 2]
    assert [len(run.agents) for run in group.captured] == [1, 1], "a block in a gathered rollout is that rollout's run"


async def test_the_first_exception_is_raised_or_kept(client: openai.AsyncOpenAI) -> None:
    async def fails() -> None:
        await ask(client, "q")
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await art.trajectory_group([art.trajectory(agent(client, "6 x 7")), art.trajectory(fails())])
    group = await art.trajectory_group(
        [art.trajectory(agent(client, "6 x 7")), art.trajectory(fails()), art.Trajectory(reward=1.0)],
        exceptions=[ValueError("before")],
        return_exceptions=True,
    )
    assert (len(group.trajectories), sorted(map(repr, group.exceptions))) == (
        2,
        ["KeyError('gone')", "ValueError('before')"],
    )
    ready = await art.trajectory_group([art.Trajectory(reward=1.0), ValueError("before")])
    assert (len(ready), len(ready.exceptions)) == (1, 1)
    with pytest.raises(ArttraceError, match="a Task is no call of a coroutine function"):
        art.trajectory(asyncio.ensure_future(asyncio.sleep(0)))  # type: ignore[arg-type]


async def test_the_program_of_the_documentation(client: openai.AsyncOpenAI) -> None:
    async def solve(question: str) -> str:
        return await agent(client, question)

    async def rollout(scenario: str) -> art.Trajectory:
        with art.Trajectory(metadata={"scenario": scenario}) as trajectory:
            answer = await solve(scenario)
        trajectory.reward = 1.0 if "42" in answer else 0.0
        return trajectory

    groups = [await art.trajectory_group(rollout(scenario) for _ in range(2)) for scenario in ("6 x 7?", "5 x 7?")]
    judged = await art.trajectory_group(art.trajectory(solve("6 x 7?")) for _ in range(2))
    assert [[one.reward for one in group] for group in (*groups, judged)] == [[1.0, 1.0], [1.0, 1.0], [None, None]]
    for group in (*groups, judged):
        assert [len(run.calls) for run in group.captured] == [2, 2]
    assert groups[1].captured[0].metadata["scenario"] == "5 x 7?"
