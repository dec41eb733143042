"""Seconds per step of a training loop written with arttrace.loop, beside those of the daemon on the same recorded runs.

    python benchmarks/loop.py [--steps 8] [--groups 4] [--runs 8]

What both have in common is the learner's own time for a step, which the step itself reports; what counts is the
rest: choosing and reading the runs, the checkpoint, the records, and for the loop the way to its trainer and back. A
tiny random model; nobody serves. The first step of each, which loads the model, is shown by itself. The expectation:
the loop's rest is at most that of the daemon.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # the loop's trainer inherits it
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import torch
from recorded_runs import recorded_groups
from tiny_model import make_base_model

import arttrace
from arttrace.loop import LocalBackend, TrainableModel, TrajectoryGroup
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.daemon.config import DaemonConfig
from trainer.daemon.gateway import FoundGateway
from trainer.daemon.state_machine import Daemon
from trainer.learner import LearnerConfig, make_learner
from trainer.policies.checkpoints import Checkpoints

OWN = "step_s"
"""The metric that has the learner's own seconds."""

Step = tuple[float, float]
"""Seconds of a step as the user waits for it, and of those the learner's own."""


def by_daemon(folder: Path, base_model: Path, steps: int, groups: int, runs: int) -> list[Step]:
    data = DataDir(folder)
    found: list[Step] = []
    config = DaemonConfig.model_validate({"min_groups": groups, "group_size": runs, "max_steps": steps, "poll": 0.01})
    settings = LearnerConfig(lora_rank=8, max_logprob_difference=1e6)
    with Store.open(data, create=True) as store, Checkpoints(data.policies, "policy").only_writer():
        store.append(recorded_groups(steps * groups, runs))
        began = time.perf_counter()

        def stepped(metrics: dict[str, float]) -> None:
            nonlocal began
            now = time.perf_counter()
            found.append((now - began, metrics[OWN]))
            began = now

        Daemon(
            config,
            policy="policy",
            base_model=base_model,
            store=store,
            learner=lambda: make_learner(base_model, settings),
            gateway=FoundGateway(data, "policy"),
            on_step=lambda done: stepped(done.metrics),
        ).run()
    return found


async def by_loop(folder: Path, base_model: Path, steps: int, groups: int, runs: int) -> list[Step]:
    data = DataDir(folder)
    arttrace.init(dir=folder)
    with Store.open(data, create=True) as store:
        store.append(recorded_groups(steps * groups, runs))
        keys = [group.key for group in group_trajectories(store.trajectories())]
    gathered = [TrajectoryGroup.stored(key) for key in keys]
    found: list[Step] = []
    model = TrainableModel("policy", base_model)
    async with LocalBackend(dir=folder) as backend:
        for number in range(steps):
            began = time.perf_counter()
            [done] = await backend.train(
                model,
                gathered[number * groups : (number + 1) * groups],
                lora_rank=8,
                max_logprob_difference=1e6,
            )
            found.append((time.perf_counter() - began, done.metrics[OWN]))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="groups per step")
    parser.add_argument("--runs", type=int, default=8, help="runs per group")
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = (given.steps, given.groups, given.runs)
    measured: dict[str, list[list[Step]]] = {"daemon": [], "loop": []}
    with tempfile.TemporaryDirectory() as folder:
        base_model = make_base_model(Path(folder) / "base")
        for turn in range(2):
            measured["daemon"].append(by_daemon(Path(folder) / f"daemon{turn}", base_model, *shape))
            measured["loop"].append(asyncio.run(by_loop(Path(folder) / f"loop{turn}", base_model, *shape)))
    print(f"2 times {given.steps} steps of {given.groups} groups of {given.runs} runs, in turn, tiny model, one thread")
    print(f"{'':<8}{'first s':>10}{'step s':>10}{'of it own':>12}{'rest':>10}   (medians without the first)")
    rest: dict[str, float] = {}
    for name, turns in measured.items():
        later = [step for turn in turns for step in turn[1:]]
        rest[name] = statistics.median(whole - own for whole, own in later)
        whole, own = (statistics.median(step[place] for step in later) for place in (0, 1))
        first = statistics.median(turn[0][0] for turn in turns)
        print(f"{name:<8}{first:>10.2f}{whole:>10.3f}{own:>12.3f}{rest[name]:>10.3f}")
    print(f"the loop's rest is {rest['loop'] / rest['daemon']:.2f} of the daemon's")


if __name__ == "__main__":
    main()
