"""Games of a policy against itself: two players, each with a reward of its own, as ART's examples of self-play have."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from scripted_server import Reply, serve_script

import arttrace
import arttrace.loop as art
from arttrace.rewards import trajectory_reward
from arttrace.store import Store
from arttrace.system.errors import ArttraceError
from arttrace.system.paths import DataDir


@pytest.fixture
def client(tmp_path: Path) -> Iterator[openai.AsyncOpenAI]:
    arttrace.init(dir=tmp_path)
    with serve_script(lambda asked: Reply(f"after {asked.users[-1]}"[:40])) as server:
        yield openai.AsyncOpenAI(base_url=server.url, api_key="k")
    arttrace.shutdown()


async def move(client: openai.AsyncOpenAI, said: list[Any]) -> Any:
    return (await client.chat.completions.create(model="policy", messages=said)).choices[0]


@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize("decorated", [True, False])
async def test_trajectories_that_share_a_run_are_refused_where_they_are_returned(
    client: openai.AsyncOpenAI, form: Any, decorated: bool
) -> None:
    """ART trains on each of them; here both are one run, which has one reward, and theirs were dropped."""

    async def game() -> Any:
        players = [art.Trajectory([{"role": "user", "content": f"You are {side}."}], reward=0) for side in "xo"]
        for player in players:
            player.messages_and_choices.append(await move(client, player.messages()))
            player.reward = 0.5
        return form(players)

    async def alone() -> art.Trajectory:
        said: list[Any] = [{"role": "user", "content": "You play alone."}]
        return art.Trajectory([*said, await move(client, said)], reward=1.0)

    group = await art.gather_trajectories([(arttrace.trajectory(game) if decorated else game)(), alone()])
    [raised] = group.exceptions
    assert isinstance(raised, ArttraceError)
    assert str(raised).startswith("the rollout returned 2 trajectories of its one run, which has one reward")
    assert "Play the game outside of a gather" in str(raised.hint)
    assert [one.reward for one in group] == [1.0]


async def test_blocks_of_one_rollout_are_one_run_and_refused_together(client: openai.AsyncOpenAI) -> None:
    async def player(side: str) -> str:
        return str((await move(client, [{"role": "user", "content": f"You are {side}."}])).message.content)

    async def game() -> tuple[art.Trajectory, ...]:
        both = await asyncio.gather(*(art.trajectory(player(side)) for side in "xo"))
        for number, one in enumerate(both):
            one.reward = float(number)
        return tuple(both)

    with pytest.raises(ArttraceError, match="All 2 rollouts raised") as shown:
        await art.gather_trajectories(game() for _ in range(2))
    assert "2 trajectories of its one run" in str(shown.value.__cause__)


async def test_a_trajectory_beside_other_values_is_refused_unless_its_block_says_whose_it_is(
    client: openai.AsyncOpenAI,
) -> None:
    said: list[Any] = [{"role": "user", "content": "You play alone."}]

    async def by_hand() -> tuple[art.Trajectory, str]:
        return art.Trajectory([*said, await move(client, said)], reward=1.0), "won"

    async def by_a_block() -> tuple[str, art.Trajectory]:
        with art.Trajectory() as one:
            await move(client, said)
        return "won", one

    group = await art.gather_trajectories([by_hand(), by_a_block()])
    [raised] = group.exceptions
    assert str(raised).startswith("the rollout returned its trajectory in a tuple, where its reward is not seen")
    assert group.results[1][1].id in {run.id for run in group.captured}


async def test_trajectories_of_runs_of_their_own_may_be_returned_together(client: openai.AsyncOpenAI) -> None:
    async def tries() -> list[art.Trajectory]:
        return list(await art.gather_trajectories(attempt(reward) for reward in (0.0, 1.0)))

    async def attempt(reward: float) -> art.Trajectory:
        said: list[Any] = [{"role": "user", "content": "Try."}]
        return art.Trajectory([*said, await move(client, said)], reward=reward)

    @arttrace.trajectory
    async def decorated() -> list[art.Trajectory]:
        return await tries()

    group = await art.gather_trajectories([decorated()])
    assert [one.reward for one in group.results[0]] == [0.0, 1.0]


async def test_the_program_of_the_documentation(client: openai.AsyncOpenAI, tmp_path: Path) -> None:
    async def player(side: str, mine: asyncio.Queue[str], other: asyncio.Queue[str]) -> str:
        said: list[Any] = [{"role": "system", "content": f"You are {side}."}]
        for _ in range(2):
            said.append({"role": "user", "content": await mine.get()})
            choice = await move(client, said)
            said.append({"role": "assistant", "content": choice.message.content})
            other.put_nowait(choice.message.content)
        return said[-1]["content"]  # type: ignore[no-any-return]

    async def game() -> list[art.Trajectory]:
        to_x: asyncio.Queue[str] = asyncio.Queue()
        to_o: asyncio.Queue[str] = asyncio.Queue()
        to_x.put_nowait("begin")
        x, o = await asyncio.gather(art.trajectory(player("x", to_x, to_o)), art.trajectory(player("o", to_o, to_x)))
        x.reward, o.reward = 1.0, 0.25
        return [x, o]

    games = await asyncio.gather(*(game() for _ in range(2)))
    groups = [art.TrajectoryGroup(of_side) for of_side in zip(*games, strict=True)]
    for group in groups:
        group.record_rewards()
    assert [[one.reward for one in group] for group in groups] == [[1.0, 1.0], [0.25, 0.25]]
    with Store.open(DataDir(tmp_path)) as store:
        found = {run.id: run for run in store.trajectories()}
    for group, side, reward in zip(groups, "xo", (1.0, 0.25), strict=True):
        for run in (found[one.id] for one in group):
            assert [call.call.messages[0].text for call in run.calls] == [f"You are {side}."] * 2
            assert (run.incomplete, trajectory_reward(run)) == ("", reward)
