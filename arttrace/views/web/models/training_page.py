"""Training: what the daemon does, the curves of a policy's steps, and its versions with what their runs earned."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from arttrace.records.policy import PolicyStep, version_rewards

CHARTS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Reward", "mean of the runs trained on", ("reward_mean",)),
    ("Spread", "of the rewards in a group, mean", ("reward_spread",)),
    ("Entropy", "nats", ("entropy",)),
    ("KL", "nats, against the base model", ("kl",)),
    ("Clipped", "share of tokens", ("clip_fraction",)),
    (
        "Log-probability difference",
        "engine against learner, nats",
        ("logprob_difference_mean", "logprob_difference_max"),
    ),
    ("Throughput", "trained tokens per second", ("tokens_per_second",)),
    ("Seconds by phase", "of each step", ("rollout_s", "score_s", "batch_s", "train_s", "step_s", "publish_s")),
    ("Distance from the teacher", "mean over the trained tokens, nats", ("teacher_kl",)),
    ("Loss and gradient", "mean over the step", ("loss", "grad_norm")),
    ("Groups", "all, and those of equal rewards", ("groups", "groups_equal")),
)
"""Title, unit and metrics of each chart; those whose metrics no step has are left out."""

_MOST_EVALUATIONS = 6
_METHODS = {"grpo": "GRPO", "distill": "distillation", "sft": "SFT", "dpo": "DPO", "fork": "fork"}


class QueuedGroups(msgspec.Struct, frozen=True):
    """What lies before a daemon, as far as its file says it."""

    ready: int = 0
    waiting: int = 0
    left_out: dict[str, int] = {}
    paused: int = 0
    late: int = 0


class DaemonStatus(msgspec.Struct, frozen=True):
    """What a policy's daemon.json says of what it does now."""

    policy: str = ""
    state: str = ""
    pid: int = 0
    since_ns: int = 0
    step: int = 0
    queue: QueuedGroups = QueuedGroups()
    skips: int = 0
    reason: str = ""
    hint: str = ""


class ServedPolicy(msgspec.Struct, frozen=True):
    """What a gateway's serving.json says of the policy that it serves now."""

    policy: str = ""
    version: str = ""
    pid: int = 0


class Chart(msgspec.Struct, frozen=True):
    """One chart: a line per metric over the steps; None where a step does not have it."""

    title: str
    unit: str
    steps: tuple[int, ...]
    lines: dict[str, tuple[float | None, ...]]
    last: dict[str, float | None]


class VersionRow(msgspec.Struct, frozen=True):
    """A version of a policy: what made it, and the mean reward of the runs it answered in that a step was trained on
    (None for the newest). `evaluated` are the numbers of runs that nothing was trained on."""

    name: str
    step: int
    method: str
    made_ns: int
    earned: float | None
    runs: int
    tokens: int | None
    equal_groups: int | None
    groups: int | None
    forked_from: str
    evaluated: tuple[tuple[str, float], ...] = ()


def charts(steps: Sequence[PolicyStep], evaluated: Mapping[int, Mapping[str, float]]) -> tuple[Chart, ...]:
    """The charts that have something to show; `evaluated` are numbers of evaluations by step."""
    numbers = tuple(step.step for step in steps)
    made = []
    for title, unit, names in CHARTS:
        lines = {
            name: tuple(_finite(step.metrics.get(name)) for step in steps)
            for name in names
            if any(_finite(step.metrics.get(name)) is not None for step in steps)
        }
        if lines:
            made.append(_chart(title, unit, numbers, lines))
    shown = sorted({name for numbers in evaluated.values() for name in numbers})[:_MOST_EVALUATIONS]
    if shown:
        lines = {name: tuple(numbers.get(name) for numbers in evaluated.values()) for name in shown}
        made.insert(0, _chart("Evaluation", "runs that nothing is trained on, mean", tuple(evaluated), lines))
    return tuple(made)


def _chart(title: str, unit: str, steps: tuple[int, ...], lines: dict[str, tuple[float | None, ...]]) -> Chart:
    last = {name: next((v for v in reversed(values) if v is not None), None) for name, values in lines.items()}
    return Chart(title, unit, steps, lines, last)


def versions(
    policy: str, steps: Sequence[PolicyStep], evaluated: Mapping[int, Mapping[str, float]]
) -> tuple[VersionRow, ...]:
    """The versions, the newest first, and last the base model where it was evaluated."""
    earned = {step: _finite(reward) for step, reward in version_rewards(steps).items()}
    made = [
        VersionRow(
            name=step.version,
            step=step.step,
            method=_METHODS.get(step.made_by, step.made_by),
            made_ns=step.time_ns,
            earned=earned.get(step.step),
            runs=step.own_runs,
            tokens=_count(step.numbers, "tokens_trained"),
            equal_groups=_count(step.metrics, "groups_equal"),
            groups=_count(step.metrics, "groups"),
            forked_from=step.forked_from,
            evaluated=tuple(sorted(evaluated.get(step.step, {}).items()))[:_MOST_EVALUATIONS],
        )
        for step in reversed(steps)
    ]
    if 0 in evaluated and not any(step.step == 0 for step in steps):
        numbers = tuple(sorted(evaluated[0].items()))[:_MOST_EVALUATIONS]
        made.append(VersionRow(f"{policy}@0", 0, "base model", 0, earned.get(0), 0, None, None, None, "", numbers))
    return tuple(made)


def doing(daemon: DaemonStatus, alive: bool) -> str:
    """What a daemon does, in words."""
    if daemon.state in ("stopped", "failed"):
        return daemon.state
    if not alive:
        return f"killed while in {daemon.state}"
    return {
        "wait": "waits for groups to train on",
        "rollout": "runs the agent again",
        "score": "lets runs be scored",
        "batch": "makes a batch",
        "step": "trains",
        "checkpoint": "writes a version",
        "publish": "publishes a version",
        "record": "records the step",
    }.get(daemon.state, daemon.state)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _count(metrics: Mapping[str, float], *names: str) -> int | None:
    for name in names:
        value = _finite(metrics.get(name))
        if value is not None:
            return int(value)
    return None
