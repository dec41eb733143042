"""Section d: the whole loop on one machine: sample, reward, step, publish, again; does the model get better?

The base model is made here from scratch, from demonstrations that are often wrong. It is trained by GRPO on a part of
the questions and asked the others, sampled at temperature 1, before and after. (At toy size sums are known by heart, so
what is learned of some says nothing of the others: there "rewards", of the first and the last step, is what rises.)
Twice where it can: with a plain torch sampler as the engine, which needs torch alone; and as a user runs it, with
`arttrace serve`, vLLM, recorded runs, the store and published versions, which needs bundles.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.card.arithmetic import Task, make_base
from benchmarks.card.bundle import missing_for_vllm
from benchmarks.card.frame import Config, Table
from benchmarks.card.torch_engine import NAME, TorchEngine, sampled_run

COLUMNS = (
    "engine",
    "rewards",
    "held out before",
    "after",
    "steps",
    "rollout s",
    "step s",
    "publish s",
    "engine idle",
    "learner idle",
)
Pair = tuple[int, int]
_FOR_VLLM = 180
"""Seconds that are left to the other way."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of what."""

    steps: int
    groups: int
    size: int
    asked: int
    learning_rate: float


@dataclass(slots=True)
class Took:
    """Seconds by phase, and from the first phase to the end of the last."""

    phases: dict[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    def __call__(self, phase: str, do: Callable[[], Any]) -> Any:
        """What `do` returns; its time counts to `phase`."""
        started = time.perf_counter()
        try:
            return do()
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + time.perf_counter() - started

    def cells(self) -> list[str]:
        """As columns of the table."""
        whole = time.perf_counter() - self.began
        shown = [f"{self.phases.get(phase, 0.0):.1f}" for phase in ("rollout", "step", "publish")]
        idle = [f"{1 - self.phases.get(phase, 0.0) / whole:.0%}" for phase in ("rollout", "step")]
        return [*shown, *idle]


def run(config: Config) -> Table:
    """One row per engine."""
    table = Table(f"The loop, share of right answers to held-out questions; {config.machine()}", COLUMNS, _path(config))
    base, task, made = make_base(config.scratch, config.device, 60 if config.toy else 150)
    table.note(
        f"base model: {made['parameters'] / 1e6:.2f} M parameters, {made['steps']:.0f} steps from scratch in "
        f"{made['seconds']:.0f} s; its likeliest answer is right for {made['known']:.0%}, a right one has "
        f"{made['likely']:.0%} of the probability"
    )
    if config.toy:
        plan = Plan(10 if config.quick else 30, 8, 16, 200, 5e-3)
    else:
        plan = Plan(30 if config.quick else 60, 32, 16, 1000, 2e-4)
    with table.attempt(NAME):
        _with_torch(config, table, base, task, plan)
    missing = missing_for_vllm()
    if missing:
        for name in missing:
            table.note(f"with vLLM: {name}")
    elif config.toy and config.quick:
        table.note("with vLLM: not at toy size with --quick")
    elif config.left_s < 120 and not config.toy:
        table.note("with vLLM: not run for want of time")
    else:
        with table.attempt("with vLLM"):
            from benchmarks.card.loop_served import with_vllm

            with_vllm(config, table, base, task, plan)
            if config.toy:
                with_vllm(config, table, base, task, replace(plan, steps=10), dtype="bfloat16")
    return table


def _with_torch(config: Config, table: Table, base: Path, task: Task, plan: Plan) -> None:
    from trainer.learner import make_learner

    learner: Any = make_learner(base, learner_config(config, plan))
    engine = TorchEngine(base, learner)
    pairs, drawn, took = task.scenarios(held_out=False), random.Random(1), Took()
    asked = (task.scenarios(held_out=True) * (plan.asked // 20 + 1))[: plan.asked]
    before = _right(engine, task, asked)
    took.began = time.perf_counter()
    means: list[float] = []
    for number in range(plan.steps):
        chosen = drawn.sample(pairs, plan.groups)
        prompts = [task.prompt(pair) for pair in chosen for _ in range(plan.size)]
        answers = took("rollout", lambda prompts=prompts: engine.sample(prompts, task.longest, task.end))
        samples, total = [], 0.0
        for at, pair in enumerate(chosen):
            group = range(at * plan.size, (at + 1) * plan.size)
            rewards = [task.reward(pair, text_of(task, answers[one][0])) for one in group]
            total += sum(rewards)
            for one, advantage in zip(group, advantages(rewards), strict=True):
                tokens, logps = answers[one]
                name = f"t{number}-{one}"
                samples.append(sampled_run(name, prompts[one], tokens, logps, f"policy@{number}", advantage))
        means.append(total / len(prompts))
        took("step", lambda samples=samples, number=number: learner.step(samples, current_version=f"policy@{number}"))
        took("publish", lambda: engine.take(learner))
        if not config.toy and config.left_s < _FOR_VLLM:
            table.note(f"stopped after {number + 1} steps for want of time")
            break
    cells = took.cells()
    after = _right(engine, task, asked)
    table.add(NAME, rise(means), f"{before:.1%}", f"{after:.1%}", len(means), *cells)


def learner_config(config: Config, plan: Plan, dtype: Any = None) -> Any:
    """Of both ways."""
    from trainer.learner import LearnerConfig

    device: Any = "cuda" if config.device == "cuda" else "cpu"
    return LearnerConfig(device=device, dtype=dtype, learning_rate=plan.learning_rate, lora_rank=16)


def advantages(rewards: Sequence[float]) -> list[float]:
    """Each reward's distance from the mean of its group."""
    mean = sum(rewards) / len(rewards)
    return [reward - mean for reward in rewards]


def rise(means: Sequence[float]) -> str:
    """The mean reward of the first two steps and of the last two."""
    first, last = sum(means[:2]) / len(means[:2]), sum(means[-2:]) / len(means[-2:])
    return f"{first:.2f}>{last:.2f}"


def text_of(task: Task, tokens: Sequence[int]) -> str:
    """An answer without its end."""
    text: str = task.tokenizer.decode([token for token in tokens if token != task.end])
    return text


def _right(engine: TorchEngine, task: Task, asked: Sequence[Pair]) -> float:
    answers = engine.sample([task.prompt(pair) for pair in asked], task.longest, task.end)
    rewards = [task.reward(pair, text_of(task, tokens)) for pair, (tokens, _) in zip(asked, answers, strict=True)]
    return sum(rewards) / len(rewards)


def in_threads(count: int, do: Callable[[Any], Any], over: Sequence[Any]) -> list[Any]:
    """What `do` gives for each, so many at once."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(do, over))


def _path(config: Config) -> Path:
    return config.out / "d.txt"
