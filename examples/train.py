"""Train the agent of an example: `python examples/train.py 2048 --base-model Qwen/Qwen3-1.7B`.

`--tiny` makes a model of under a million parameters on the spot, which plays as the example's stand-in does, and so
needs no GPU. `--evaluate N` plays N held-out scenarios before and after, and prints each mean with its standard error;
with `--model` it is any model that is evaluated, and nothing is trained. At the end the rewards of all steps are drawn.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import math
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import arttrace
import arttrace.loop as art
from arttrace.store import open_store
from arttrace.system.paths import DataDir
from trainer.demo.report import curve

EXAMPLES = Path(__file__).resolve().parent
HELD_OUT = 1_000_000
"""Numbers of scenarios from here on are never trained on."""
TINY = {
    "learning_rate": 2e-3,
    "kl_weight": 0.02,
    "advantages": "std",
    "lora_rank": 8,
    "lora_alpha": 16,
}
"""What a step is made with where the model is tiny."""


def load(example: str, tiny: bool = False) -> ModuleType:
    """The `rollout.py` of an example. Examples have files of the same names, so its modules are its own.

    A tiny model plays the example's `tiny_scenario`, where it has one.
    """
    folder = str(EXAMPLES / example)
    sys.path.insert(0, folder)
    try:
        task = importlib.import_module("rollout")
        if tiny:
            task.scenario = getattr(task, "tiny_scenario", task.scenario)
        return task
    finally:
        sys.path.remove(folder)
        for name, module in list(sys.modules.items()):
            if str(getattr(module, "__file__", None)).startswith(folder):
                del sys.modules[name]


async def gather(
    task: ModuleType, model: Any, numbers: Iterable[int], attempts: int, text: str
) -> list[art.TrajectoryGroup]:
    """A group of attempts at each of these scenarios."""
    groups = (art.TrajectoryGroup(task.rollout(model, task.scenario(n)) for _ in range(attempts)) for n in numbers)
    return await art.gather_trajectory_groups(groups, pbar_desc=text, max_concurrency=64, max_exceptions=0.1)


async def train(
    task: ModuleType, model: art.TrainableModel, rounds: Iterable[int], groups: int, attempts: int, **settings: Any
) -> list[str]:
    """A step of training on each round's scenarios. The versions that were made."""
    versions = []
    for number in rounds:
        played = await gather(task, model, range(number * groups, (number + 1) * groups), attempts, f"round {number}")
        made = await model.train(played, **settings)
        versions += [step.version for step in made]
        print(f"{versions[-1] if made else 'nothing to learn'}: {figures(played)}", flush=True)
    return versions


def figures(groups: Iterable[art.TrajectoryGroup], errors: bool = False) -> str:
    """The means over all runs: the reward, the task's metrics, sampled tokens and calls. With `errors`, which is for
    runs of different scenarios, each with its standard error."""
    groups = list(groups)
    built = [one for group in groups for one in group.built]
    runs = [run for group in groups for run in group.captured]
    values = {"reward": [float(one.reward or 0) for one in built]}
    values |= {name: [float(one.metrics[name]) for one in built] for name in built[0].metrics}
    values["tokens"] = [sum(call.call.output_tokens or 0 for call in run.calls) for run in runs]
    values["calls"] = [len(run.calls) for run in runs]
    shown = (f"{name} {fmean(each):.3g}" + (f"±{standard_error(each):.2g}" * errors) for name, each in values.items())
    return "  ".join(shown)


def standard_error(values: Sequence[float]) -> float:
    """Of their mean; not a number where there is one value only."""
    return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan


async def evaluate(task: ModuleType, model: Any, count: int, name: str) -> None:
    """Play held-out scenarios once each, and print a line of the table."""
    rollouts = (task.rollout(model, task.scenario(n)) for n in range(HELD_OUT, HELD_OUT + count))
    [played] = await art.gather_trajectory_groups(
        [art.TrajectoryGroup(rollouts)], pbar_desc=f"held out, {name}", max_concurrency=64, max_exceptions=0.1
    )
    print(f"held out, {name}: {figures([played], errors=True)}  of {len(played.built)} runs", flush=True)


def reward_curve(data: DataDir, policy: str) -> str:
    """The mean reward of the runs that each step was trained on, from the store's metrics; "" before the first step."""
    with open_store(data) as store:
        rewards = [step.metrics["reward_mean"] for step in store.policy_steps(policy)]
    return f"mean reward by step\n{curve(rewards)}" if rewards else ""


async def tiny_model(task: ModuleType, path: Path, games: int, steps: int) -> Path:
    """A tiny model that plays as the task's stand-in does: it is trained on the stand-in's answers to the agent."""
    from trainer.demo.scripted import Scripted

    if not (path / "config.json").exists():
        scripted = Scripted(task.stand_in)
        with scripted.served() as url, arttrace.no_capture():
            teacher = art.Model("stand-in", inference_base_url=url, inference_api_key="unused")
            for first in range(0, games, 32):
                numbers = range(2 * HELD_OUT + first, 2 * HELD_OUT + min(first + 32, games))
                await asyncio.gather(*(task.rollout(teacher, task.scenario(n)) for n in numbers))
        print(f"{len(scripted.demonstrations)} answers of a stand-in; a tiny model is trained on them", flush=True)
        await asyncio.to_thread(scripted.build, path, steps, progress=lambda line: print(line, flush=True))
    return path


def parsed() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("example", help="a folder beside this file, such as 2048 or games/tic_tac_toe")
    parser.add_argument("--base-model", help="a directory, or a name on the hub")
    parser.add_argument("--tiny", action="store_true", help="make a tiny model and train that, on a CPU")
    parser.add_argument("--tiny-games", type=int, default=400, help="how many the stand-in plays for it")
    parser.add_argument("--tiny-steps", type=int, default=800, help="for how many steps it is trained on them")
    parser.add_argument("--model", help="evaluate this model at $OPENAI_BASE_URL, and train nothing")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--groups", type=int, default=8, help="scenarios in a step")
    parser.add_argument("--attempts", type=int, default=8, help="rollouts of each scenario")
    parser.add_argument("--learning-rate", type=float)
    parser.add_argument("--evaluate", type=int, default=0, metavar="N")
    parser.add_argument("--dir", default=os.environ.get("ARTTRACE_DIR", ".arttrace"))
    return parser.parse_args()


async def main() -> None:
    options = parsed()
    arttrace.init(dir=options.dir)
    task = load(options.example, options.tiny)
    if options.model:
        await evaluate(task, art.Model(options.model), options.evaluate or 100, options.model)
        return
    base_model = options.base_model
    if options.tiny:
        where = Path(options.dir) / f"tiny-{Path(options.example).name}-{options.tiny_games}-{options.tiny_steps}"
        base_model = await tiny_model(task, where, options.tiny_games, options.tiny_steps)
    settings = TINY if options.tiny else {"learning_rate": 1e-5}
    if options.learning_rate:
        settings = settings | {"learning_rate": options.learning_rate}
    model = art.TrainableModel("policy", base_model, project=options.example)
    async with art.LocalBackend(options.dir) as backend:
        await model.register(backend)
        done = await asyncio.to_thread(model.get_step)
        if options.evaluate:
            await evaluate(task, model, options.evaluate, f"policy@{done}")
        await train(task, model, range(done, options.steps), options.groups, options.attempts, **settings)
        if options.evaluate:
            await evaluate(task, model, options.evaluate, f"policy@{await asyncio.to_thread(model.get_step)}")
        print(await asyncio.to_thread(reward_curve, backend.data, model.name))


if __name__ == "__main__":
    asyncio.run(main())
