"""Seconds per phase of the training daemon's steps, on recorded runs: where the time of a step goes beside the learner.

    python benchmarks/daemon.py [--steps 8] [--groups 4] [--runs 8]
    python benchmarks/daemon.py --unconsumed 10000

A tiny random model and a real store, checkpoints on the disk of the temporary directory; nobody serves, so `publish` is
the look for a gateway. The expectation: all that is not the step together takes less than the step.

The second measures only how long it takes to choose a step's groups, and to build them, when so many runs wait that
were not trained on: from summaries, as the daemon and `arttrace train` choose, beside building every run first.
"""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import torch
from recorded_runs import recorded_group, recorded_groups
from tiny_model import make_base_model

from arttrace.records.group import Group
from arttrace.store import Store
from arttrace.system.paths import DataDir
from arttrace.trajectories.groups import group_trajectories
from trainer.daemon.config import DaemonConfig
from trainer.daemon.gateway import FoundGateway
from trainer.daemon.state_machine import Daemon
from trainer.grpo.batch import make_batch
from trainer.grpo.selection import choose
from trainer.learner import LearnerConfig, make_learner
from trainer.policies.checkpoints import Checkpoints
from trainer.step.phases import Phase


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="groups per step")
    parser.add_argument("--runs", type=int, default=8, help="runs per group")
    parser.add_argument("--unconsumed", type=int, help="measure the choice among so many runs instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.unconsumed:
        choosing(given.unconsumed, given.groups, given.runs)
        return
    with tempfile.TemporaryDirectory() as folder:
        data, base_model = DataDir(Path(folder) / "data"), make_base_model(Path(folder) / "base")
        learner = make_learner(base_model, LearnerConfig(lora_rank=8, max_logprob_difference=1e6))
        config = DaemonConfig.model_validate(
            {"min_groups": given.groups, "group_size": given.runs, "max_steps": given.steps, "poll": 0.01}
        )
        metrics: list[dict[str, float]] = []
        entered: list[tuple[str, int]] = []
        with Store.open(data, create=True) as store, Checkpoints(data.policies, "policy").only_writer():
            store.append(recorded_groups(given.steps * given.groups, given.runs))
            daemon = Daemon(
                config,
                policy="policy",
                base_model=base_model,
                store=store,
                learner=lambda: learner,
                gateway=FoundGateway(data, "policy"),
                on_step=lambda done: metrics.append(done.metrics),
            )
            note = daemon._note

            def noting(**changes: object) -> None:
                note(**changes)
                if "state" in changes:
                    entered.append((daemon.state.state, daemon.state.since_ns))

            daemon._note = noting
            daemon.run()
    seconds: dict[str, list[float]] = {}
    for (phase, began), (_, ended) in itertools.pairwise(entered):
        seconds.setdefault(phase, []).append((ended - began) / 1e9)
    print(f"{given.steps} steps of {given.groups} groups of {given.runs} runs, tiny model, one thread")
    print(f"{'phase':<12}{'min ms':>10}{'median ms':>12}{'max ms':>10}{'share':>8}")
    whole = sum(sum(values) for phase, values in seconds.items() if phase in set(Phase))
    for phase in Phase:
        if values := seconds.get(phase):
            low, middle, high = min(values), statistics.median(values), max(values)
            share = sum(values) / whole
            print(f"{phase:<12}{low * 1e3:>10.1f}{middle * 1e3:>12.1f}{high * 1e3:>10.1f}{share:>8.0%}")
    tokens = sum(one["tokens_trained"] for one in metrics)
    print(f"{tokens:.0f} tokens trained, {tokens / whole:.0f} per second of the whole loop")


def choosing(unconsumed: int, taken: int, size: int) -> None:
    """Every fourth group has all its rewards; the first `taken` of them in the order of their keys are taken."""
    policy, rng = "policy", random.Random(1)
    with tempfile.TemporaryDirectory() as folder, Store.open(DataDir(Path(folder)), create=True) as store:
        for begin in range(0, unconsumed // size, 100):
            records = [
                record
                for n in range(begin, min(begin + 100, unconsumed // size))
                for record in recorded_group(
                    f"g{n:06d}", [None if n % 4 else rng.random() for _ in range(size)], at=n * 2000
                )
            ]
            store.journal(records)
        store.load()

        def from_summaries() -> list[Group]:
            chosen = choose(store.summaries(unconsumed_by=policy), policy=policy, step=0).groups[:taken]
            return group_trajectories(store.trajectories(ids=[id for group in chosen for id in group.ids]))

        def from_trajectories() -> list[Group]:
            groups = group_trajectories(store.trajectories(unconsumed_by=policy))
            return [group for group in groups if make_batch([group], policy=policy).consumed][:taken]

        ways = {"every run built": from_trajectories, "from summaries": from_summaries}
        first, expected = timed(from_summaries)
        seconds: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(3):
            for name, way in ways.items():
                took, found = timed(way)
                assert found == expected
                seconds[name].append(took)
    print(f"{taken} groups of {size} runs chosen among {unconsumed} runs and built, best of 3, taken in turn")
    naive = min(seconds["every run built"])
    for name, took in {"summaries made": first, **{name: min(found) for name, found in seconds.items()}}.items():
        print(f"{name:<16}{took * 1e3:>10.0f} ms{naive / took:>8.1f} x")


def timed(way: Callable[[], list[Group]]) -> tuple[float, list[Group]]:
    """Seconds, and what it found."""
    began = time.perf_counter()
    found = way()
    return time.perf_counter() - began, found


if __name__ == "__main__":
    main()
