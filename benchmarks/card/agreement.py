"""Section e: how far the log-probabilities of engine and learner are apart, and whether the gate tells versions apart.

A policy is trained step after step on random tokens. Before each step they are scored by an engine that holds the same
version; now and then, too, by one that was left a version behind, which the learner has to refuse. The engine here is
transformers with PEFT in another process's place: its own copy of the weights, its own attention, no packing. What vLLM
itself samples is compared in section d, step by step.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.card.frame import Config, Table
from benchmarks.card.shapes import MIDDLING, QWEN3_06B, QWEN3_4B, TOY, Shape, make_model
from benchmarks.card.torch_engine import TorchEngine, sampled_runs

COLUMNS = ("model", "steps", "mean", "p99.9", "max", "fresh gone", "stale gone", "stale caught", "false alarms")
BEFORE = "the version before it"
_PROMPT, _SAMPLED = 16, 64


def run(config: Config) -> Table:
    """One row per model and precision: on a CPU, which serves in float32, one in bfloat16 too.

    "gone" is how much of the way to the version before lies behind what the current one sampled ("fresh"), and what the
    one before it did ("stale"): least and most of the steps.
    """
    table = Table(f"Engine against learner, in nats; {config.machine()}", COLUMNS, config.out / "e.txt")
    more = [] if config.quick else [MIDDLING] if config.toy else [QWEN3_4B]
    for shape in [TOY if config.toy else QWEN3_06B, *more]:
        if config.left_s < 60:
            table.note(f"not run for want of time: {shape.name}")
            break
        steps, stale, runs = 40 if config.toy else 200, 20, 32
        if config.toy and config.quick:
            steps, stale, runs = 4, 2, 16
        elif shape == MIDDLING:
            steps, stale = 6, 2
        for dtype in ("bfloat16",) if config.device == "cuda" else ("float32", "bfloat16"):
            with table.attempt(f"{shape.name}, {dtype}"):
                base_model = make_model(shape, config.models / shape.name, config.device)
                _row(config, table, shape, base_model, dtype, steps, stale, runs)
    return table


def _row(
    config: Config, table: Table, shape: Shape, base_model: Path, dtype: Any, steps: int, stale: int, runs: int
) -> None:
    from arttrace.system.errors import TrainingError
    from trainer.learner import LearnerConfig, make_learner

    device: Any = "cuda" if config.device == "cuda" else "cpu"
    settings = LearnerConfig(device=device, dtype=dtype, learning_rate=1e-4, lora_rank=16)
    learner: Any = make_learner(base_model, settings)
    engine = TorchEngine(base_model, learner)
    rng = random.Random(1)
    seen = Agreement(learner)
    alarms = 0
    for number in range(steps):
        rows = [[rng.randrange(shape.vocabulary) for _ in range(_PROMPT + _SAMPLED)] for _ in range(runs)]
        version = f"policy@{number}"
        fresh = sampled_runs(rows, _PROMPT, engine.score(rows, _PROMPT), version)
        seen.compare(fresh, version)
        if number > 1 and seen.tried < stale:
            seen.look_at_stale(sampled_runs(rows, _PROMPT, engine.score(rows, _PROMPT, "before"), version), version)
        try:
            learner.step(fresh, current_version=version)
        except TrainingError as error:
            alarms += 1
            table.note(f"refused: {error.message}")
            break
        engine.take(learner)
        if config.left_s < 20:
            table.note(f"stopped after {number + 1} steps for want of time")
            break
    table.add(f"{shape.name}, {dtype}", learner.steps, *seen.cells(), alarms)


@dataclass(slots=True)
class Agreement:
    """How far an engine and a learner are apart (nats), and how many stale versions the learner's check refused."""

    learner: Any
    gaps: list[float] = field(default_factory=list)
    fresh: list[float] = field(default_factory=list)
    stale: list[float] = field(default_factory=list)
    caught: int = 0

    @property
    def tried(self) -> int:
        """How many stale versions were looked at."""
        return len(self.stale)

    def compare(self, samples: Sequence[Any], version: str) -> None:
        """What the version sampled, under the learner, which holds it."""
        own, captured, *_ = self.learner._compared(self._rows(samples), version)
        self.gaps += [abs(mine - its) for mine, its in zip(own, captured, strict=True)]
        if share := self._shares_gone(samples, version).get(BEFORE):
            self.fresh.append(share.gone)

    def look_at_stale(self, samples: Sequence[Any], version: str) -> None:
        """Samples that say they are of the version that the learner holds, and are not: looked at where the learner's
        check would look, which needs some different tokens."""
        from arttrace.system.errors import TrainingError
        from trainer.learner.stale_adapter.check import check_nearest

        shares = self._shares_gone(samples, version)
        if BEFORE not in shares:
            return
        self.stale.append(shares[BEFORE].gone)
        try:
            check_nearest(shares, version)
        except TrainingError:
            self.caught += 1

    def _shares_gone(self, samples: Sequence[Any], version: str) -> dict[str, Any]:
        chosen = self.learner._looker.choose(self._rows(samples), version)
        return self.learner._shares_gone(chosen, version) if chosen else {}

    def _rows(self, samples: Sequence[Any]) -> Any:
        from trainer.learner.samples import plan_step

        return plan_step(samples, self.learner.config).rows

    def cells(self) -> tuple[str, str, str, str, str, str]:
        """Mean, 99.9 % quantile and maximum of what they are apart, how much of the way to the version before is gone,
        fresh and stale, and the share of stale versions that was caught."""
        ordered = sorted(self.gaps)
        mean, high = sum(ordered) / len(ordered), ordered[int(0.999 * (len(ordered) - 1))]
        gone = (f"{min(one):.2f}..{max(one):.2f}" if one else "-" for one in (self.fresh, self.stale))
        return f"{mean:.2g}", f"{high:.2g}", f"{ordered[-1]:.2g}", *gone, f"{self.caught} of {self.tried}"
