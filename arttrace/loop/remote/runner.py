"""ArtClient: for programs that only name tasks and prompts. Agents run here, against the server's newest version."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any

from arttrace.loop.gathering.group import TrajectoryGroup
from arttrace.loop.gathering.outcome import warn_of_what_is_missing
from arttrace.loop.processes.trainer_process import TrainedStep
from arttrace.loop.remote.clients import AsyncClient, in_thread
from arttrace.loop.trajectory import Trajectory
from arttrace.rewards import DEFAULT_RUBRIC, ruler_score_group
from arttrace.rewards.judge import DEFAULT_JUDGE
from arttrace.system.errors import TrainingError

MODEL = "lora:latest"
_AT_A_TIME = 32
"""How many agents run at once, as in `gather_trajectory_groups`."""

Agent = Callable[[AsyncClient, str], Awaitable[Trajectory]]
"""Called with a client and a prompt; makes its calls with the client and returns its trajectory."""


class ArtClient:
    """Runs agents on prompts, and trains a server's policy on the runs, by a judge's scores.

    Args:
        server_url: The server's address.
        api_key: Its key; by default $ARTTRACE_API_KEY.
        agents: The coroutine function of each task, by the task's name. A task without one is a single call whose
            system message is the task's name.
    """

    def __init__(self, server_url: str, api_key: str | None = None, agents: Mapping[str, Agent] | None = None) -> None:
        self._url = server_url
        self._api_key = api_key
        self._agents = dict(agents or {})
        self._prompts: dict[tuple[str, str], None] = {}

    def run_agent(self, task: str, prompt: str) -> Trajectory:
        """Run one agent.

        Args:
            task: The name of its task.
            prompt: The prompt that the agent gets.

        Returns:
            The agent's trajectory, which the server has recorded.

        Raises:
            openai.OpenAIError: The server does not answer, or refuses.
        """
        self._prompts[task, prompt] = None
        [group] = in_thread(self._groups(1, [(task, prompt)]))
        return group.ready_made[0]

    def train(
        self,
        iterations: int = 1,
        *,
        group_size: int = 8,
        judge_model: str = DEFAULT_JUDGE,
        extra_litellm_params: dict[str, Any] | None = None,
        rubric: str = DEFAULT_RUBRIC,
        **settings: Any,
    ) -> list[TrainedStep]:
        """Train on the prompts that were run. Each iteration runs every prompt again, has the judge score each prompt's
        runs against each other, and trains a step. An agent that raises ends no other: a warning says how many did.

        Args:
            iterations: The largest number of steps.
            group_size: Runs of each prompt per iteration.
            judge_model: The judge, by the name that litellm has for it.
            extra_litellm_params: Further arguments of litellm's `acompletion`, such as `api_base`.
            rubric: What the judge is asked to reward, in words.
            settings: The options of `arttrace train` by their names.

        Returns:
            A TrainedStep per version; an iteration whose runs all have equal scores makes none.

        Raises:
            TrainingError: No prompt was run, or a step failed.
            JudgeError: The judge cannot be asked.
        """
        if not self._prompts:
            raise TrainingError("there is no prompt to train on", "Call run_agent(task=..., prompt=...) first.")
        if group_size < 2:
            raise TrainingError(f"group_size is {group_size}: the reward of one run compares nothing")

        async def iterate() -> list[TrainedStep]:
            made: list[TrainedStep] = []
            for _ in range(iterations):
                groups = [group for group in await self._groups(group_size) if len(group.ready_made) > 1]
                for group in groups:
                    await ruler_score_group(group, judge_model, extra_litellm_params, rubric)
                async with AsyncClient(self._url, self._api_key) as client:
                    made += await client.submit_trajectories(groups, **settings)
            return made

        return in_thread(iterate())

    async def _groups(self, size: int, prompts: Iterable[tuple[str, str]] | None = None) -> list[TrajectoryGroup]:
        """A group of runs of each prompt; where agents raise, their exceptions. Raises the first where all do."""
        slots = asyncio.Semaphore(_AT_A_TIME)
        chosen = list(self._prompts if prompts is None else prompts)

        async def run(task: str, prompt: str) -> Trajectory | Exception:
            async with slots:
                try:
                    return await (self._agents.get(task) or partial(_ask, task))(client, prompt)
                except Exception as error:  # noqa: BLE001 - whatever the user's agent raises is its outcome
                    return error

        async with AsyncClient(self._url, self._api_key) as client:
            runs = await asyncio.gather(*(run(*one) for one in chosen for _ in range(size)))
        raised = [one for one in runs if isinstance(one, Exception)]
        if raised and len(raised) == len(runs):
            raise raised[0]
        warn_of_what_is_missing(len(runs), (), 0, raised)
        return [TrajectoryGroup(runs[at : at + size]) for at in range(0, len(runs), size)]


async def _ask(task: str, client: AsyncClient, prompt: str) -> Trajectory:
    messages = [{"role": "system", "content": task}, {"role": "user", "content": prompt}]
    answer = await client.chat.completions.create(model=MODEL, messages=messages)
    trajectory: Trajectory = answer.trajectory
    return trajectory
