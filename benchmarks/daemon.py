"""Seconds per phase of the training daemon's steps, on recorded runs: where the time of a step goes beside the learner.

    python benchmarks/daemon.py [--steps 8] [--groups 4] [--runs 8]

A tiny random model and a real store, checkpoints on the disk of the temporary directory; nobody serves, so `publish` is
the look for a gateway. The expectation: all that is not the step together takes less than the step.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

import torch
from recorded_runs import recorded_groups
from tiny_model import make_base_model

from arttrace.paths import DataDir
from arttrace.store import Store
from trainer.checkpoints import Checkpoints
from trainer.config import DaemonConfig
from trainer.daemon import Phase
from trainer.daemon.machine import Daemon
from trainer.daemon.publishing import FoundGateway
from trainer.learner import LearnerConfig, make_learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--groups", type=int, default=4, help="groups per step")
    parser.add_argument("--runs", type=int, default=8, help="runs per group")
    given = parser.parse_args()
    torch.set_num_threads(1)
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

            def timed(**changes: object) -> None:
                note(**changes)
                if "state" in changes:
                    entered.append((daemon.state.state, daemon.state.since_ns))

            daemon._note = timed
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


if __name__ == "__main__":
    main()
