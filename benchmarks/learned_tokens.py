"""What keeping each trained token's numbers costs within a step: CPU seconds spent in it, against the whole step's.

python benchmarks/learned_tokens.py [--group 8] [--prefix 1024]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from arttrace.records.values.learned_tokens import LEARNED_TOKENS
from benchmarks.learner import make_base
from benchmarks.learner_cases import samples_of, synthetic
from trainer.learner import LearnerConfig, base, make_learner, samples


def main() -> None:
    """One step in this process, with clocks around what keeps the numbers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--prefix", type=int, default=1024)
    given = parser.parse_args()
    torch.set_num_threads(1)
    spent = dict.fromkeys(("keep", "kept", "sequence_key", "write_learned"), 0.0)

    def clocked(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments)
            finally:
                spent[name] += time.process_time() - began

        return timed

    for owner, name in (
        (base.StepTally, "keep"),
        (base.StepTally, "kept"),
        (samples, "sequence_key"),
        (base, "write_learned"),
    ):
        setattr(owner, name, clocked(name, getattr(owner, name)))
    with tempfile.TemporaryDirectory() as scratch:
        config = LearnerConfig(micro_batch_tokens=2048, max_logprob_difference=1e9)
        learner = make_learner(make_base(Path(scratch) / "base"), config)
        learner.step(samples_of(synthetic(2, 32, (2, 3)), merged=True))  # loads what is loaded lazily
        spent.update(dict.fromkeys(spent, 0.0))
        began = time.process_time()
        metrics = learner.step(samples_of(synthetic(given.group, given.prefix), merged=True))
        step = time.process_time() - began
        learner.save(Path(scratch))
        size = (Path(scratch) / LEARNED_TOKENS).stat().st_size
    print(f"step: {step:.2f} CPU seconds, {metrics.trained_tokens} trained tokens; file: {size} bytes")
    for name, seconds in spent.items():
        print(f"{name}: {1000 * seconds:.2f} ms, {100 * seconds / step:.3f} % of the step")


if __name__ == "__main__":
    main()
