"""The demo's numbers, in one place: how much of what, found by measurement, and where its parts lie."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from trainer.demo import scenarios
from trainer.grpo.advantages import Scale

AGENT = scenarios.MARKET / "agent.py"

DEMONSTRATIONS = 600
"""Runs of the agent under the stand-in teacher."""
HELD_OUT = 120
"""Scenarios that nothing is trained on; each is asked once sampled and once greedily, before and after."""
STEPS = 80
"""At most. Nearly all runs are sure before the half of them; which kind of goods is learned last is chance."""
SURE_REWARD = 0.99
"""Mean reward of the last `SURE_STEPS` steps from which on no more are made: a wrong service costs a run 0.35, so 97 %
of the runs are right."""
SURE_STEPS = 5
"""Together 320 runs: of single steps, one in three was above `SURE_REWARD` before the policy was sure."""
GROUPS = 8
"""Scenarios per step."""
GROUP_SIZE = 8
"""Rollouts per scenario."""
WORKERS = 2
"""Processes that run the agent. In a single one a call takes a fifth more of a core: httpx looks at every connection
that is open, at each request, whether its server has closed it. With four it is no less than with two, and each costs a
start."""
CONCURRENCY = 32
"""Runs of the agent at once in each of them: together one step's rollouts."""
LEARNING_RATE = 1e-3
"""To the end: where it fell from the 20th of 40 steps on, a kind of goods that was mostly wrong until then was learned
too late in some runs. With 2e-3, the first steps moved all kinds of goods together, by what chance gave most of them:
in two of five simulated runs a kind that was mostly wrong at first came down from a third right services to below one
in a hundred."""
ADAM_BETAS = (0.5, 0.999)
"""With the usual 0.9, steps go on for ten in the direction of earlier ones, and a kind of goods is learned in three: in
one of five simulated runs one kind's rise took another's share of right services from nine in ten down to nothing."""
LORA_RANK = 32
"""With 8, what one kind of goods learned moved the others along: in some runs a kind that was mostly wrong at first was
never again asked at the right service, so that no reward could teach it."""
LORA_ALPHA = 64
KL_WEIGHT = 0.05
"""Towards the base model: without it a model this small loses its form, or one habit while it corrects another."""
ADVANTAGE_SCALE: Scale = "std"
SERVE_OPTIONS = ("--max-model-len=256", f"--vllm-arg=--max-lora-rank={LORA_RANK}")
"""vLLM pads every adapter to the largest rank it accepts, which costs time on a CPU."""


def base_model_path(seed: int) -> Path:
    """Where the base model of a seed is cached: `$XDG_CACHE_HOME/arttrace/demo`, by the code that makes it."""
    made_by = hashlib.blake2b(digest_size=6)
    here = Path(__file__).parent
    for source in (
        here / "model" / "build.py",
        here / "model" / "tokenizer.py",
        here / "teacher.py",
        AGENT,
        AGENT.parent / "world.py",
    ):
        made_by.update(source.read_bytes())
    made_by.update(str(DEMONSTRATIONS).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "arttrace" / "demo" / f"base-seed-{seed}-{made_by.hexdigest()}"
