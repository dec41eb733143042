"""Plays a verifiers environment on the policy that `arttrace serve` serves: each episode is a run with its reward.

It takes the arguments of `vf-eval`. Tasks are played in turns, again and again with `--forever`, as `arttrace train
--daemon` makes versions of the policy from them.
"""

from __future__ import annotations

import asyncio
import sys
import uuid
from itertools import count
from statistics import fmean
from typing import Any

import httpx
import verifiers.v1 as vf
from pydantic_config import cli
from verifiers.v1.cli.resolve import narrow_config, with_positional_taskset
from verifiers.v1.configs.cli.eval import EvalConfig

POLICY = "policy:latest"
SERVER = "http://127.0.0.1:8000/v1"


def settings(arguments: list[str]) -> EvalConfig:
    """What `vf-eval` would make of its arguments; the model and its server are arttrace's unless they say otherwise."""
    given = with_positional_taskset(arguments)
    sys.argv[1:] = ["--model", POLICY, "--client.base-url", SERVER, "--client.api-key-var", "ARTTRACE_API_KEY", *given]
    config: EvalConfig = cli(narrow_config(EvalConfig, given))
    return config


async def episode(env: vf.Env, task: vf.Task, config: EvalConfig, client: httpx.AsyncClient) -> float | None:
    """Play a task once, as a run of its own: its reward, or None where it failed or asked nothing."""
    server = config.client.base_url.removesuffix("/").removesuffix("/v1")
    run = f"{server}/r/{uuid.uuid4().hex}"
    endpoint = config.client.model_copy(update={"base_url": f"{run}/v1"})
    given_up: list[vf.Trace] = []
    played = await env.run_episode(
        task, vf.ModelContext(config.model, endpoint, config.sampling), on_discard=given_up.append
    )
    traces = [trace for trace in played.traces if trace.agent.trainable]
    if len(traces) > 1:
        raise SystemExit(f"{env.config.env_id} trains {len(traces)} agents at once, and a run has one reward")
    end: dict[str, Any] = {"group": f"{env.config.env_id}/{task.key}", "scenario": task.key, "entry": env.config.env_id}
    scored = all(trace.rewards and None not in trace.rewards.values() for trace in traces)
    if played.ok and scored and not given_up:
        [trace] = traces
        end |= {"reward": trace.reward, "metadata": {"trace": trace.id, "metrics": trace.metrics}}
    else:
        errors = [f"{error.type}: {error.message}" for each in (played, *traces) for error in each.errors]
        end["error"] = "; ".join(errors) or "not scored, or an attempt was given up"
    answer = await client.post(f"{run}/end", json=end)
    if answer.status_code == httpx.codes.NOT_FOUND:  # it ended before its first call
        return None
    answer.raise_for_status()
    return end.get("reward")


async def main(arguments: list[str]) -> None:
    forever = "--forever" in arguments
    config = settings([each for each in arguments if each != "--forever"])
    env = vf.load_environment(config.env)
    tasks = list(env.taskset.select(config.select))
    places = asyncio.Semaphore(config.max_concurrent or len(tasks) * config.num_rollouts)
    key = vf.resolve_client(config.client).api_key

    async with env.serving(), httpx.AsyncClient(headers={"authorization": f"Bearer {key}"}) as client:

        async def one(task: vf.Task) -> float | None:
            async with places:
                return await episode(env, task, config, client)

        for turn in count() if forever else range(1):
            rewards = await asyncio.gather(*(one(task) for task in tasks for _ in range(config.num_rollouts)))
            scored = [reward for reward in rewards if reward is not None]
            mean = f"mean reward {fmean(scored):.3f}" if scored else "no reward"
            print(f"turn {turn}: {len(scored)} of {len(rewards)} episodes to train on, {mean}", flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
