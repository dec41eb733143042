"""Runs to train on, made up or of tau-bench, as the samples of one step. Needs neither a tokenizer nor msgspec."""

from __future__ import annotations

import gzip
import json
import random
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.grpo.advantages import group_advantages
from trainer.learner.interface import Sample

VOCABULARY = 8192
Call = tuple[tuple[int, ...], tuple[int, ...]]
"""Prompt ids and sampled ids of one model call."""


@dataclass(frozen=True)
class Sequence:
    """The fields of `arttrace.records.sequence.TokenSequence` that a learner reads."""

    trajectory_id: str
    token_ids: tuple[int, ...]
    trained: tuple[int, ...]
    logprobs: tuple[float | None, ...]
    versions: tuple[int, ...]
    policy_versions: tuple[str, ...] = ("policy@0",)
    temperatures: tuple[float, ...] = ()
    agent_id: str = "root"
    call_ids: tuple[str, ...] = ()

    @property
    def trained_tokens(self) -> int:
        """How many tokens are targets."""
        return sum(self.trained)


def synthetic(group: int = 8, prefix: int = 2048, turns: tuple[int, int] = (10, 20), seed: int = 0) -> list[list[Call]]:
    """Runs with a shared beginning; each turn samples 20 to 60 tokens and reads 20 to 80; one in four forks once."""
    rng = random.Random(seed)

    def ids(count: int) -> tuple[int, ...]:
        return tuple(rng.randrange(VOCABULARY) for _ in range(count))

    shared = ids(prefix)
    runs = []
    for number in range(group):
        history, calls = shared + ids(30), []
        for turn in range(rng.randint(*turns)):
            if number % 4 == 0 and turn == 5:  # the history's middle was rewritten
                history = history[: prefix + 200] + ids(60)
            sampled = ids(rng.randint(20, 60))
            calls.append((history, sampled))
            history = history + sampled + ids(rng.randint(20, 80))
        runs.append(calls)
    return runs


def tau_bench(path: Path, tasks: int) -> list[list[list[Call]]]:
    """The four runs of each of the shortest tasks whose rewards differ, as calls over words and marks."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for run in json.loads(gzip.decompress(path.read_bytes())):
        groups.setdefault(run["task_id"], []).append(run)
    unequal = [runs for runs in groups.values() if len({run["reward"] for run in runs}) > 1]
    as_calls = [[_calls(run["traj"]) for run in runs] for runs in unequal]
    return sorted(as_calls, key=lambda runs: sum(len(prompt) for calls in runs for prompt, _ in calls))[:tasks]


def _calls(messages: list[dict[str, Any]]) -> list[Call]:
    history: tuple[int, ...] = ()
    calls = []
    for message in messages:
        said = {key: message[key] for key in ("content", "tool_calls", "name") if message.get(key)}
        words = re.findall(r"\w{1,6}|\s|[^\w\s]", json.dumps(said))
        ids = tuple(3 + int.from_bytes(word.encode(), "big") % (VOCABULARY - 3) for word in words if word != " ")
        if message["role"] == "assistant":
            calls.append(((*history, 1), (*ids, 2)))
        history = (*history, 1 if message["role"] == "assistant" else 0, *ids, 2)
    return calls


def samples_of(runs: list[list[Call]], *, merged: bool, seed: int = 1) -> list[Sample]:
    """One sample per run; its calls as rows of their own, or merged where one continues the other."""
    rng = random.Random(seed)
    advantages = group_advantages([float(number % 2) for number in range(len(runs))])
    samples = []
    for number, (calls, advantage) in enumerate(zip(runs, advantages, strict=True)):
        rows: list[tuple[list[int], list[int], list[float | None]]] = []
        for prompt, sampled in calls:
            logprobs = [rng.uniform(-10.0, -8.0) for _ in sampled]
            if not (merged and rows and prompt[: len(rows[-1][0])] == tuple(rows[-1][0])):
                rows.append(([], [], []))
            ids, trained, captured = rows[-1]
            context = prompt[len(ids) :]
            ids += [*context, *sampled]
            trained += [0] * len(context) + [1] * len(sampled)
            captured += [*[None] * len(context), *logprobs]
        sequences = tuple(
            Sequence(
                trajectory_id=str(number),
                token_ids=tuple(ids),
                trained=tuple(trained),
                logprobs=tuple(captured),
                versions=tuple(0 if flag else -1 for flag in trained),
            )
            for ids, trained, captured in rows
        )
        samples.append(Sample(sequences, advantage))
    return samples
